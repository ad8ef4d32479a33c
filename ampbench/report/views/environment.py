"""The machines and installations, and in what they differ."""

from ampbench.report.material import Material
from ampbench.report.view import View


def environment(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="environment", title="Environment", template="environment.html") if material else None
