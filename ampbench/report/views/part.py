"""One part of a section, as data, and what parts share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ampbench.present.document import Block
from ampbench.report.drawing import Chart, Rows, View
from ampbench.report.explained import Changed, Untold, strangers
from ampbench.report.material import Material

T = TypeVar("T")

LISTED = 200
"""So many rows a part has at most, the worst or the first; a page of 10,000 cases need not repeat them all."""
DETAILED = 20
"""So many cases that a run explains, the worst or the first, are told of one by one."""
ROWS = 40
"""So many rows does a table of one case have, those that say most."""
MODULE_ROWS = 20
"""So many has one of modules where a chart shows all of them."""
CHOICES = 50
"""So many cases can be chosen from in a chart, the first ones."""
ROWS_OF_THE_PAGE = 8_000
"""So many rows do the charts of one kind carry in all, those of the first cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the section: `id` is unique and names its block of the template, `content` is what that reads.

    `said` are its findings in sentences. `left_out` counts the rows that are not listed. What few look for is `folded`.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    left_out: int = 0
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What is told of one case: a line of it, what to say and show, what is folded, by title, and `code` to paste."""

    name: str
    said: str
    blocks: Sequence[Block] = ()
    folded: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    code: str = ""


def told_part(
    found: Sequence[T],
    missing: Sequence[Untold],
    *,
    id: str,
    title: str,
    said: Sequence[str],
    detail: Callable[[T], Detail],
    row: Callable[[T], Mapping[str, Any]] | None = None,
    drawn: tuple[Sequence[Chart], Mapping[str, Rows]] = ((), {}),
    changed: Sequence[Changed] = (),
) -> Part:
    """Return the part that tells of cases: of several a table with a `row` of each, if given, then some in `detail`.

    `missing` are those without a result, `changed` what differs from the baseline's, `drawn` the charts and their
    data.
    """
    listed = found[:LISTED]
    charts, datasets = drawn
    return Part(
        id=id,
        title=title,
        said=said,
        content={
            "rows": [row(one) for one in listed] if row is not None and len(found) > 1 else [],
            "cases": [detail(one) for one in found[:DETAILED]],
            "undetailed": max(len(listed) - DETAILED, 0),
            "untold": missing[:LISTED],
            "changed": changed[:LISTED],
            "overview": None,
        },
        left_out=sum(max(len(each) - LISTED, 0) for each in (found, missing, changed)),
        charts=charts,
        datasets=datasets,
    )


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


def cut(block: Block, most: int = ROWS) -> Block:
    """Return a block with so many rows as a page has room for, and in its note how many there are."""
    if len(block.rows) <= most:
        return block
    note = f"{most} of {len(block.rows):,}"
    return replace(block, rows=block.rows[:most], note="; ".join(part for part in (block.note, note) if part))


def strange(material: Material, kind: str, verb: str) -> list[str]:
    """Return a sentence on what explains `kind` from elsewhere than what was measured: "Traced with torch 2.9 on …"."""
    found = strangers(material, kind)
    return [f"{verb} with {'; '.join(found)}, which measured nothing on this page."] if found else []
