"""How long the first steps of a case take: the document of a run."""

from collections.abc import Sequence
from typing import Any

from ampbench.instruments.warmup.findings import warmup_said
from ampbench.instruments.warmup.records import WarmUp
from ampbench.records.case import Case
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, table
from ampbench.show.page import Held, Part, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun

SHOWN = 8
"""So many steps are shown unless all are asked for."""
COLUMNS: Sequence[Column[tuple[int, float]]] = (
    Column("step", lambda row: row[0], "step", "whole"),
    Column("seconds", lambda row: row[1], "time", "s"),
)


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return the first steps of the cases `case_ids` of a run, a flat row for each step."""
    return document_of_cases(
        stored, case_ids, stored.of(WarmUp),
        section=lambda case, found: warmup_section(case, found, everything=everything),
        data=_data,
        columns=COLUMNS,
        rows=_steps,
    )  # fmt: skip


def warmup_section(case: Case, found: WarmUp, *, everything: bool = False) -> Section:
    """Return the first steps of a case; `everything`: all that were timed."""
    steps = table("The first steps", COLUMNS, _steps(found), shown=None if everything else SHOWN)
    return Section(case_title(case), [*(Block(as_sentence(line)) for line in warmup_said(found)), steps])


def _steps(found: WarmUp) -> list[tuple[int, float]]:
    return list(enumerate(found.samples, start=1))


def _data(_: Case, found: WarmUp) -> dict[str, Any]:
    return {"sentences": warmup_said(found), "warmup": record_data(found)}


def part(held: Held[WarmUp]) -> Part | None:
    """Return the cases whose first steps were timed."""
    return told_part(
        held,
        held.told,
        lambda one: warmup_section(one.case, one.found, everything=True),
        id="warmup",
        title="Warm-up",
        caption="After how many steps each case settled",
        verb="Timed",
        finding=lambda one: warmup_said(one.found)[0],
    )
