"""Throughput over a swept parameter, and where precisions cross."""

from ampbench.report.material import Material
from ampbench.report.view import View


def sweeps(material: Material) -> View | None:
    """Return the view; None where there is no data for it."""
    return View(id="sweeps", title="Sweeps", template="sweeps.html") if material else None
