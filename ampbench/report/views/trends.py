"""Series over torch versions and commits, with their change points."""

from ampbench.report.material import Material
from ampbench.report.view import View


def trends(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="trends", title="Trends", template="trends.html") if material else None
