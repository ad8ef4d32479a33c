"""Rounds and samples of a case, the baseline's beside the candidate's."""

from ampbench.report.material import Material
from ampbench.report.view import View


def distributions(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="distributions", title="Distributions", template="distributions.html") if material else None
