"""The verdict and the counts in words, and what was measured, where, when and with what."""

from ampbench.report.material import Material
from ampbench.report.view import View


def banner(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="banner", title="Result", template="banner.html") if material else None
