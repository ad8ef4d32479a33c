"""Every case once: numbers with their intervals, verdicts, failures and skips with their reasons."""

from ampbench.report.material import Material
from ampbench.report.view import View


def cases(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="cases", title="Cases", template="cases.html") if material else None
