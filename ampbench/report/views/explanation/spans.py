"""The ops of a traced step laid along its time; where there are too many, short neighbours as one span."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from ampbench.records.casts import Cast, CastTrace, Operation
from ampbench.units import UNDEFINED, format_bytes, format_seconds

CAST, OTHER = "cast", "no floats"
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "fp64": "--dtype-fp64",
        "fp32": "--fp32",
        "bf16": "--bf16_autocast",
        "fp16": "--fp16_autocast",
        OTHER: "--faint",
        CAST: "--cast",
    }
)
"""What an op computes in, with the CSS variable of its colour: that of the precision that is named after the dtype."""

PHASES = ("forward", "backward", "optimizer")
NAMED = 3
"""So many names of what a span holds are told."""
GROWTH = 1.5
"""The longest span grows by so much until there are few enough of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An op and its place in the step: in seconds from its beginning or, untimed, in ops."""

    op: Operation
    cast: Cast | None
    start: float
    end: float

    @property
    def lane(self) -> str:
        """The line that it is drawn on: that of its phase, or below it that of the phase's casts."""
        phase = self.op.phase if self.op.phase in PHASES else "other"
        return f"{phase} casts" if self.cast else phase

    @property
    def kind(self) -> str:
        """Whether it is a cast, else what it computes in: the dtype of its first floating input, or else output."""
        if self.cast:
            return CAST
        return next((dtype for dtype in (*self.op.inputs, *self.op.outputs) if dtype in DTYPES), OTHER)


LANES = tuple(f"{phase}{which}" for phase in (*PHASES, "other") for which in ("", " casts"))
"""The lines of the drawing from top to bottom, those that occur."""


def steps_of(trace: CastTrace) -> list[Step]:
    """Return the ops of a trace in order, one after the other."""
    casts = {cast.index: cast for cast in trace.casts}
    found, at = [], 0.0
    for op in trace.ops:
        end = at + ((op.seconds or 0.0) if trace.timed else 1.0)
        found.append(Step(op=op, cast=casts.get(op.index), start=at, end=end))
        at = end
    return found


def spans_of(steps: Sequence[Step], most: int) -> list[list[Step]]:
    """Return what is drawn as one: each op or, of more than `most`, neighbours of one kind that end soon after another.

    How soon is the least that makes them few enough.
    """
    spans = [[step] for step in steps]
    longest = steps[-1].end / most if steps else 0.0
    while len(spans) > most:
        spans = _merged(steps, longest)
        if longest >= steps[-1].end:
            break  # as few as there are lines and kinds
        longest *= GROWTH
    return spans


def row_of(span: Sequence[Step], timed: bool, wide: float) -> dict[str, Any]:
    """Return a span as a row of the chart; one that is longer than `wide` is marked as wide."""
    first, ops = span[0], [step.op for step in span]
    casts = [step.cast for step in span if step.cast]
    seconds = sum(op.seconds or 0.0 for op in ops)
    return {
        "lane": first.lane,
        "place": LANES.index(first.lane),
        "kind": first.kind,
        "start": first.start,
        "end": span[-1].end,
        "wide": span[-1].end - first.start > wide,
        "op": _named(op.name for op in ops) if len(ops) == 1 else f"{len(ops):,} ops: {_named(op.name for op in ops)}",
        "function": _named(op.function for op in ops),
        "module": _named(op.module for op in ops),
        "dtypes": _named(dtypes_of(op) for op in ops),
        "time": format_seconds(seconds) if timed else UNDEFINED,
        "cast": _named((cast_said(cast) for cast in casts), "; "),
    }


def dtypes_of(op: Operation) -> str:
    """Return what went in and came out, "bf16, fp32 → bf16"; what repeats is counted."""
    return f"{_counted(op.inputs)} → {_counted(op.outputs)}"


def cast_said(cast: Cast) -> str:
    """Return what a cast was of, and what it moved: "weight fc.weight, fp32 → bf16, 1.20 MiB, by autocast"."""
    what = f"{cast.what} {cast.name}".strip()
    moved = format_bytes(cast.bytes_moved)
    kept = ", kept in its cache" if cast.cached else ""
    return f"{what}, {cast.from_dtype} → {cast.to_dtype}, {moved}, {cast.origin}{kept}"


def _merged(steps: Iterable[Step], longest: float) -> list[list[Step]]:
    """Return spans of one line and kind in the order of their beginnings; none but single ops is over `longest`."""
    spans: list[list[Step]] = []
    latest: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        key = step.lane, step.kind
        known = latest.get(key)
        if known is not None and step.end - known[0].start <= longest:
            known.append(step)
        else:
            latest[key] = [step]
            spans.append(latest[key])
    return spans


def _counted(dtypes: Sequence[str]) -> str:
    parts = [(name, len(list(group))) for name, group in groupby(dtypes)]
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in parts) or UNDEFINED


def _named(names: Iterable[str | None], between: str = ", ") -> str:
    """Return the first of different names, and how many more there are."""
    known = [name for name in dict.fromkeys(names) if name]
    more = f"{between}and {len(known) - NAMED:,} more" if len(known) > NAMED else ""
    return between.join(known[:NAMED]) + more or UNDEFINED
