"""What each precision buys and costs per device, and the advice per workload."""

from ampbench.report.material import Material
from ampbench.report.view import View


def precisions(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="precisions", title="Precisions", template="precisions.html") if material else None
