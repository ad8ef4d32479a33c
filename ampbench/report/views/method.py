"""What each number means and how verdicts are reached."""

from ampbench.report.material import Material
from ampbench.report.view import View


def method(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="method", title="Method", template="method.html") if material else None
