"""What the modules of a case give: the document of a run."""

from collections.abc import Sequence
from typing import Any

from ampbench.instruments.shapes.findings import shapes_said
from ampbench.instruments.shapes.records import Given, ShapesPass
from ampbench.records.case import Case
from ampbench.show.document import Block, Column, Document, Section, as_sentence, records, table
from ampbench.show.page import Held, Part, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun

SHOWN = 20
"""So many modules are shown unless all are asked for."""
COLUMNS: Sequence[Column[Given]] = (
    Column("path", lambda one: one.path, "module", said=lambda one: one.path or "(network)"),
    Column("module", lambda one: one.module, "kind"),
    Column("shape", lambda one: "×".join(map(str, one.shape)), "shape"),
    Column("dtype", lambda one: one.dtype, "dtype"),
    Column("stored_bytes", lambda one: one.stored_bytes, "bytes", "B"),
)


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what the modules of the cases `case_ids` of a run give, a flat row for each."""
    return document_of_cases(
        stored, case_ids, stored.of(ShapesPass),
        section=lambda case, found: shapes_section(case, found, everything=everything),
        data=_data,
        columns=COLUMNS,
        rows=lambda found: found.modules,
    )  # fmt: skip


def shapes_section(case: Case, found: ShapesPass, *, everything: bool = False) -> Section:
    """Return what the modules of a case give; `everything`: all of them."""
    modules = table("What each module gives", COLUMNS, found.modules, shown=None if everything else SHOWN)
    return Section(case_title(case), [*(Block(as_sentence(line)) for line in shapes_said(found)), modules])


def _data(_: Case, found: ShapesPass) -> dict[str, Any]:
    return {"sentences": shapes_said(found), "tables": {"modules": records(COLUMNS, found.modules)}}


def part(held: Held[ShapesPass]) -> Part | None:
    """Return the cases whose modules were watched."""
    return told_part(
        held,
        held.told,
        lambda one: shapes_section(one.case, one.found, everything=True),
        id="shapes",
        title="Shapes",
        caption="What the modules of each case give",
        verb="Watched",
    )
