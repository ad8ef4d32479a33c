"""Why numbers are what they are, where a run holds what tells it."""

from ampbench.report.explaining import PARTS
from ampbench.report.material import Material
from ampbench.report.view import View


def explanation(material: Material) -> View | None:
    """Return the view; None where no run holds data for any part."""
    parts = [part for make in PARTS if (part := make(material)) is not None]
    if not parts:
        return None
    return View(
        id="explanation",
        title="Explanation",
        template="explanation.html",
        content={"parts": parts},
        charts=[chart for part in parts for chart in part.charts],
        datasets={name: rows for part in parts for name, rows in part.datasets.items()},
    )
