"""A search, for people and as a frame.

The sets that were weighed and the modules that are kept, as rows of plain values. Pure functions, without torch.

How a search ended, as blocks of text for a terminal, a Markdown page, anything. Numbers without a value are "–".
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ampbench.base.units import UNDEFINED, format_bytes, format_error, format_kept, format_seconds, format_share
from ampbench.instruments.cases import document_of_cases
from ampbench.instruments.keep_fp32.findings import Point, code, kept_said, points, said, so_far
from ampbench.instruments.keep_fp32.trials import WHOLE, units_of
from ampbench.present.document import Block, Code, Document, Section, as_sentence, first_rows
from ampbench.records.beside import Ratio, short_ratio
from ampbench.records.case import Case
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial
from ampbench.records.labels import case_title, few
from ampbench.records.magnitudes import ROOT
from ampbench.records.ranges import ModuleError
from ampbench.store import StoredRun

COLUMNS = (
    "kept", "modules", "found", "output_rel_l2", "grad_rel_l2", "update_kept", "update_nonfinite", "meets_budget",
    "seconds", "ratio", "ratio_low", "ratio_high", "peak_memory_bytes", "on_front",
)  # fmt: skip
"""The columns of `point_rows`: the islands kept, space between them; how many modules that keeps; what it comes to.

`update_kept` and `update_nonfinite` are as in `Trial`, undefined where the search bounds nothing of updates.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """A unit that is kept: its `modules`, and what is known of it.

    `error` is its own error in low precision on exact inputs (None: not measured), the rest as in `Unit`.
    """

    modules: list[str]
    kind: str
    error: ModuleError | None
    seconds: float
    weight_bytes: int
    output_bytes: int


def point_rows(points: Iterable[Point]) -> list[list[Any]]:
    """Return a row of `COLUMNS` for each set."""
    return [
        [
            "(all)" if point.kept == WHOLE else " ".join(point.kept),
            point.units,
            point.found,
            point.output_rel_l2,
            point.grad_rel_l2,
            point.update_kept,
            point.update_nonfinite,
            point.meets,
            point.seconds,
            *(_ends(point)),
            point.peak_bytes,
            point.on_front,
        ]
        for point in points
    ]


def kept_rows(space: SearchSpace, kept: Sequence[str]) -> list[KeptRow]:
    """Return a row for each unit that the set `kept` keeps, in the order of running."""
    errors = {error.module: error for error in space.errors if error.elements}
    rows = []
    for index in sorted(units_of(space, kept)):
        unit = space.units[index]
        known = [errors[module] for module in unit.modules if module in errors]
        rows.append(
            KeptRow(
                modules=unit.modules,
                kind=unit.kind,
                error=max(known, key=lambda error: (error.overflowed, error.own_rel_l2 or 0.0), default=None),
                seconds=unit.seconds,
                weight_bytes=unit.weight_bytes,
                output_bytes=unit.output_bytes,
            )
        )
    return rows


def _ends(point: Point) -> list[float | None]:
    ratio = point.against_low
    return [None, None, None] if ratio is None else [ratio.value, ratio.low, ratio.high]


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return how the search of each of the cases `case_ids` ended, and the code to paste.

    A flat row is a set that was weighed; nested data have the space and every trial, too. With `everything`, long
    tables are whole.
    """
    found = [stored.of(KeepSearch)[case_id] for case_id in case_ids if case_id in stored.of(KeepSearch)]
    pasted = []
    for one in found:
        case = stored.cases[one.case_id]
        title = "To paste" if len(found) == 1 else f"To paste for {case_title(case)}"
        pasted += [Code(title, text)] if (text := code(one, case)) else []
    return document_of_cases(
        stored, case_ids, stored.of(KeepSearch),
        section=lambda case, one: section(case, one, *_weighed(stored, one), everything=everything),
        data=lambda case, one: _data(stored, case, one),
        columns=COLUMNS,
        rows=lambda one: _rows(points(one, *_weighed(stored, one))),
        begun={name: _begun(stored, name) for name in case_ids if name in stored.of(SearchSpace)},
        code=pasted,
    )  # fmt: skip


def _rows(points: Iterable[Point]) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for row in point_rows(points)]


def _weighed(stored: StoredRun, search: KeepSearch) -> tuple[SearchSpace, Sequence[Trial]]:
    return stored.of(SearchSpace)[search.case_id], stored.several_of(Trial).get(search.case_id, [])


def _begun(stored: StoredRun, case_id: str) -> str:
    """Return how far the search of a case got that did not end."""
    told = so_far(stored.of(SearchSpace)[case_id], stored.several_of(Trial).get(case_id, []))
    return f"{told}; ampbench explain keep-fp32 --resume {stored.header.run} goes on"


def _data(stored: StoredRun, case: Case, search: KeepSearch) -> dict[str, Any]:
    space, trials = _weighed(stored, search)
    return {
        "sentences": said(search, space, trials),
        "points": [asdict(point) for point in points(search, space, trials)],
        "code": code(search, case) or None,
        "search": asdict(search),
        "space": asdict(space),
        "trials": [asdict(trial) for trial in trials],
    }


SHOWN = 12
"""So many of the kept modules are shown unless all are asked for."""
NAMED = 2
"""So many modules of a set are named in a table."""


def section(
    case: Case, search: KeepSearch, space: SearchSpace, trials: Sequence[Trial], *, everything: bool = False
) -> Section:
    """Return what was found for `case`, what it keeps, and what the sets that were weighed come to.

    Without `everything`, the table of kept modules ends after the first ones.
    """
    lines = [Block(as_sentence(line)) for line in said(search, space, trials)]
    return Section(case_title(case), [*lines, *kept(search, space, everything), *weighed(search, space, trials)])


def kept(search: KeepSearch, space: SearchSpace, everything: bool = False) -> list[Block]:
    """Return the modules that are kept, and what the space knows of each."""
    if not search.found:
        return []
    rows = kept_rows(space, search.found)
    whole = [island for island in search.found if island not in {name for row in rows for name in row.modules}]
    headers = ["module", "kind", "own error", "forward in fp32", "weights", "outputs"]
    note = f"whole, with what they do between their modules: {few(whole)}" if whole and whole != WHOLE else ""
    block = Block("Kept in fp32", headers, [_kept_cells(row) for row in rows], note, numbers=headers[2:])
    return [block if everything else first_rows(block, SHOWN)]


def weighed(search: KeepSearch, space: SearchSpace, trials: Sequence[Trial]) -> list[Block]:
    """Return what each set that was weighed errs, takes and needs."""
    picture = points(search, space, trials)
    if not picture:
        return []
    training = any(point.grad_rel_l2 is not None for point in picture)
    updates = search.min_update_kept is not None
    headers = ["kept", "modules", "error", *(["gradients"] if training else []), *(["arrives"] if updates else [])]
    headers += ["budget", "step"]
    headers += ["time ratio", "peak", "front"]
    note = (
        "time ratio: to none kept, of builds that stood side by side; front: no other set is as good in "
        f"{'error, update, time' if updates else 'error, time'} and memory, and better in one"
    )
    note += "; arrives: the share of the intended update" if updates else ""
    cells = [_cells(point, training, updates) for point in picture]
    return [Block("Error, time and memory", headers, cells, note, numbers=headers[1:])]


def _kept_cells(row: KeptRow) -> list[str]:
    return [
        few([name or ROOT for name in row.modules]),
        row.kind,
        _own(row.error),
        format_seconds(row.seconds),
        format_bytes(row.weight_bytes),
        format_bytes(row.output_bytes),
    ]


def _own(error: ModuleError | None) -> str:
    if error is None:
        return UNDEFINED
    return (
        f"{format_share(error.overflowed / error.elements)} overflow"
        if error.overflowed
        else format_error(error.own_rel_l2)
    )


def _cells(point: Point, training: bool, updates: bool) -> list[str]:
    return [
        f"{kept_said(point.kept, NAMED)}{' ←' if point.found else ''}",
        f"{point.units:,}",
        format_error(point.output_rel_l2),
        *([format_error(point.grad_rel_l2)] if training else []),
        *([_arriving(point)] if updates else []),
        "met" if point.meets else "missed elsewhere" if point.refuted else "missed",
        format_seconds(point.seconds),
        _against_none(point),
        format_bytes(point.peak_bytes),
        "yes" if point.on_front else "",
    ]


def _arriving(point: Point) -> str:
    """Return the share of an update that arrives, "nan" where it leaves parameters that are not finite."""
    return "nan" if point.update_kept is None and point.update_nonfinite else format_kept(point.update_kept)


def _against_none(point: Point) -> str:
    """Return "1.04x 1.02–1.06", the ratio to the step with no module kept and its 95% interval."""
    ratio = point.against_low
    if ratio is None:
        return UNDEFINED
    return short_ratio(ratio if point.kept else Ratio(value=ratio.value))
