"""Sections of parts, and what parts share that knows what else is on the page."""

from collections.abc import Callable, Sequence

from ampbench.present.page import Part, View
from ampbench.report.explained import strangers
from ampbench.report.material import Material


def view_of(
    material: Material, makers: Sequence[Callable[[Material], Part | None]], *, id: str, title: str
) -> View | None:
    """Return a section of parts, with the template of its name; None where no run holds data for any part."""
    parts = [part for make in makers if (part := make(material)) is not None]
    if not parts:
        return None
    return View(
        id=id,
        title=title,
        template=f"{id}.html",
        content={"parts": parts},
        charts=[chart for part in parts for chart in part.charts],
        datasets={name: rows for part in parts for name, rows in part.datasets.items()},
    )


def strange(material: Material, kind: str, verb: str) -> list[str]:
    """Return a sentence on what explains `kind` from elsewhere than what was measured: "Traced with torch 2.9 on …"."""
    found = strangers(material, kind)
    return [f"{verb} with {'; '.join(found)}, which measured nothing on this page."] if found else []
