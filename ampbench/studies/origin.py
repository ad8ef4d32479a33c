"""The origin of a low precision's error: each module's error on exact inputs, and its inherited error."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from ampbench.core.precisions import EXAMINED
from ampbench.core.statement import Statement, state
from ampbench.core.units import counted, format_share
from ampbench.records.case import Case
from ampbench.records.kinds import ORIGIN
from ampbench.records.labels import few
from ampbench.records.ranges import FLUSHES, ROOT, ModuleError, OriginPass, ranked
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Study, Table, advise, asks, info

_MATTERS = 0.05
"""The share of the output's error from which one module matters: roundings that change by chance move it by less."""


class OriginAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Options: `own` errors of modules alone, without a forward pass for each that is kept in fp32."""

    own: Annotated[bool, asks("Rank by own errors alone: saves a forward pass a module.")] = False


class Origin(StrEnum):
    """What the errors of modules say."""

    NOTHING = "origin-nothing"
    OUTPUT = "origin-output"
    UNDEFINED = "origin-undefined"
    OVERFLOWS = "origin-overflows"
    FLUSHES = "origin-flushes"
    KEPT = "origin-kept"
    SPREAD = "origin-spread"
    WORST = "origin-worst"
    EXACT = "origin-exact"
    FIRST = "origin-first"
    LEFT_OUT = "origin-left-out"


def conclusions(_: Case, record: OriginPass) -> Iterator[Statement]:
    """Yield the output's error, the modules that cause it, and overflow or flushing."""
    if not record.modules and record.output_rel_l2 is None:
        yield state(Origin.NOTHING)
        return
    compared = [row for row in record.modules if row.elements]
    if record.output_rel_l2 is not None:
        yield info(Origin.OUTPUT, error=record.output_rel_l2, reference=record.reference)
    else:
        strange = record.first_nonfinite is not None or any(row.overflowed for row in compared)
        yield state(Origin.UNDEFINED, strange=int(strange))
    best = [(row.module, row.kept_rel_l2) for row in ranked(record.modules) if row.kept_rel_l2 is not None]
    if best and record.output_rel_l2 != 0:
        module, error = best[0]
        share = None if record.output_rel_l2 is None else 1 - error / record.output_rel_l2
        if share is not None and share < _MATTERS:
            yield info(Origin.SPREAD, module=module, share=max(share, 0.0))
        else:
            then = ", ".join(name for name, _ in best[1:3]) or None
            yield advise(Origin.KEPT, module=module, error=error, share=share, then=then)
    overflows = [row.module or ROOT for row in ranked(compared) if row.overflowed and not row.inputs_overflowed]
    flushes = [row.module or ROOT for row in compared if row.flushed >= FLUSHES * row.elements]
    facts = {"modules": len(compared)}
    if overflows:
        yield state(Origin.OVERFLOWS, names=few(overflows), count=len(overflows), **facts)
    if flushes:
        yield state(Origin.FLUSHES, names=few(flushes), count=len(flushes), least=FLUSHES, **facts)
    worst = sorted((row for row in compared if row.own_rel_l2), key=lambda row: -(row.own_rel_l2 or 0.0))
    if worst and not record.ablations:
        names = ", ".join(row.module or ROOT for row in worst[:3])
        yield advise(Origin.WORST, names=names, error=worst[0].own_rel_l2)
    elif compared and not worst and not overflows and not flushes:
        yield info(Origin.EXACT)
    if record.first_nonfinite is not None:
        yield state(Origin.FIRST, first=str(record.first_nonfinite))
    if left := [row.note or "no reason given" for row in record.modules if not row.elements]:
        reasons = few(f"{reason} ({count:,})" for reason, count in Counter(left).most_common())
        yield info(Origin.LEFT_OUT, count=len(left), modules=len(record.modules), reasons=reasons)


Placed = tuple[int, ModuleError]
"""A module and its place in the order of running."""


def _of_outputs(field: str) -> Any:
    """Return a function that formats a module's count in `field` as a share of its outputs."""
    return lambda row: format_share(getattr(row[1], field) / row[1].elements if row[1].elements else None)


COLUMNS: Sequence[Column[Placed]] = (
    Column("place", lambda row: row[0], "#", "whole", lambda row: f"{row[0]}"),
    Column("module", lambda row: row[1].module, "module", said=lambda row: row[1].module or ROOT),
    Column("kind", lambda row: row[1].kind, "kind"),
    Column("elements", lambda row: row[1].elements),
    Column("kept_rel_l2", lambda row: row[1].kept_rel_l2, "kept", "error", rare=True),
    Column("own_rel_l2", lambda row: row[1].own_rel_l2, "own", "error"),
    Column("overflowed", lambda row: row[1].overflowed, "overflowed", "share", _of_outputs("overflowed")),
    Column("flushed", lambda row: row[1].flushed, "flushed", "share", _of_outputs("flushed")),
    Column("inputs_overflowed", lambda row: row[1].inputs_overflowed),
    Column(
        "note", lambda row: row[1].note, "remark",
        said=lambda row: row[1].note or ("given inf" if row[1].inputs_overflowed else ""), rare=True,
    ),
)  # fmt: skip
"""Columns of a module: the output's error with it kept in fp32, its own error, and remarks."""


def worst_first(record: OriginPass) -> list[Placed]:
    """Return the modules of a pass: best candidates for fp32 first, modules without a comparison last."""
    rows = {row.module: (place, row) for place, row in enumerate(record.modules)}
    names = [row.module for row in ranked(record.modules)]
    return [rows[name] for name in dict.fromkeys([*names, *rows])]


STUDY: Study[OriginAsked, OriginPass] = Study(
    kind=ORIGIN,
    help="""\
Keep each module in fp32 alone: modules that lower the error of the output most come first.

Each module takes a forward pass more; --own does without, and ranks by each module's own error. The module
where an infinity or NaN begins is named, too. The run is stored: ampbench show RUN prints it again, with --all every
module.

\b
Examples:
  ampbench explain origin model.py:make
  ampbench explain origin resnet50 --precision fp16_pure --precision bf16_pure
  ampbench explain origin decoder_lm --own --all
""",
    doing="comparing the modules of",
    timeout="1800",
    asked=OriginAsked,
    task=Task(ORIGIN, OriginAsked, OriginPass, "ampbench.studies.headroom_measure:do_origin"),
    selects=Selects(among=EXAMINED),
    title="Where errors begin",
    heading=lambda record: counted(record.ablations, "module") + " tried" if record.ablations else "",
    tables=(
        Table(
            "modules", COLUMNS, worst_first, "Modules to keep in fp32 first",
            "#: in the order of running; kept: error of the output with this module alone in fp32, a "
            "forward pass each; own: on exact inputs, against itself in fp32",
        ),
    ),
    conclusions=conclusions,
)  # fmt: skip
