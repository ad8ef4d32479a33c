"""Why: what a run holds about casts, errors by layer, headroom and loss scaling."""

from ampbench.report.material import Material
from ampbench.report.view import View


def explanation(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="explanation", title="Explanation", template="explanation.html") if material else None
