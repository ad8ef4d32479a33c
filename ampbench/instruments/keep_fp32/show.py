"""What keeping modules in fp32 costs and buys: the document of a search.

Numbers without a value are "–".
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from ampbench.base.units import UNDEFINED, format_error, format_kept, format_share
from ampbench.instruments.cases import document_of_cases
from ampbench.instruments.keep_fp32.findings import Point, code, kept_said, points, said, so_far
from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial, Unit
from ampbench.instruments.keep_fp32.trials import WHOLE, units_of
from ampbench.present.document import Block, Code, Column, Document, Section, as_sentence, picked, table
from ampbench.records.case import Case
from ampbench.records.labels import case_title, few
from ampbench.records.magnitudes import ROOT
from ampbench.records.paired import Ratio, short_ratio
from ampbench.records.ranges import ModuleError
from ampbench.store import StoredRun

SHOWN = 12
"""So many of the kept modules are shown unless all are asked for."""
NAMED = 2
"""So many modules of a set are named in a table."""


def _end(name: str) -> Callable[[Point], float | None]:
    return lambda point: getattr(point.against_low, name, None)


def _arriving(point: Point) -> str:
    """Return the share of an update that arrives, "nan" where it leaves parameters that are not finite."""
    return "nan" if point.update_kept is None and point.update_nonfinite else format_kept(point.update_kept)


def _met(point: Point) -> str:
    return "met" if point.meets else "missed elsewhere" if point.refuted else "missed"


def _against_none(point: Point) -> str:
    """Return "1.04x 1.02–1.06", the ratio to the step with no module kept and its 95% interval."""
    ratio = point.against_low
    if ratio is None:
        return UNDEFINED
    return short_ratio(ratio if point.kept else Ratio(value=ratio.value))


def _set_said(point: Point, most: int = NAMED) -> str:
    return f"{kept_said(point.kept, most)}{' ←' if point.found else ''}"


COLUMNS: Sequence[Column[Point]] = (
    Column(
        "kept", lambda point: "(all)" if point.kept == WHOLE else " ".join(point.kept), "kept",
        said=_set_said,
    ),
    Column("modules", lambda point: point.units, "modules", "whole"),
    Column("found", lambda point: point.found),
    Column("output_rel_l2", lambda point: point.output_rel_l2, "error", "error"),
    Column("grad_rel_l2", lambda point: point.grad_rel_l2, "gradients", "error"),
    Column("update_kept", lambda point: point.update_kept, "arrives", "kept", _arriving),
    Column("update_nonfinite", lambda point: point.update_nonfinite),
    Column("meets_budget", lambda point: point.meets, "budget", "whole", _met),
    Column("seconds", lambda point: point.seconds, "step", "s"),
    Column("ratio", _end("value"), "time ratio", "ratio", _against_none),
    Column("ratio_low", _end("low")),
    Column("ratio_high", _end("high")),
    Column("peak_memory_bytes", lambda point: point.peak_bytes, "peak", "B"),
    Column("on_front", lambda point: point.on_front, "front", "whole", lambda point: "yes" if point.on_front else ""),
)  # fmt: skip
"""Of a set that was weighed: the islands kept, space between them; how many modules that keeps; what it comes to.

`update_kept` and `update_nonfinite` are as in `Trial`, undefined where the search bounds nothing of updates.
"""


class Kept(NamedTuple):
    """A unit that is kept, and its own error in low precision on exact inputs; None: not measured."""

    unit: Unit
    error: ModuleError | None


KEPT: Sequence[Column[Kept]] = (
    Column("", lambda row: few([name or ROOT for name in row.unit.modules]), "module"),
    Column("", lambda row: row.unit.kind, "kind"),
    Column("", lambda row: row.error, "own error", "error", lambda row: _own(row.error)),
    Column("", lambda row: row.unit.seconds, "forward in fp32", "s"),
    Column("", lambda row: row.unit.weight_bytes, "weights", "B"),
    Column("", lambda row: row.unit.output_bytes, "outputs", "B"),
)


def kept_rows(space: SearchSpace, kept: Sequence[str]) -> list[Kept]:
    """Return a row for each unit that the set `kept` keeps, in the order of running."""
    errors = {error.module: error for error in space.errors if error.elements}
    rows = []
    for index in sorted(units_of(space, kept)):
        known = [errors[module] for module in space.units[index].modules if module in errors]
        worst = max(known, key=lambda error: (error.overflowed, error.own_rel_l2 or 0.0), default=None)
        rows.append(Kept(space.units[index], worst))
    return rows


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
        rows=lambda one: points(one, *_weighed(stored, one)),
        begun={name: _begun(stored, name) for name in case_ids if name in stored.of(SearchSpace)},
        code=pasted,
    )  # fmt: skip


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


def section(
    case: Case, search: KeepSearch, space: SearchSpace, trials: Sequence[Trial], *, everything: bool = False
) -> Section:
    """Return what was found for `case`, what it keeps, and what the sets that were weighed come to.

    Without `everything`, the table of kept modules ends after the first ones, and so do the names of a set.
    """
    lines = [Block(as_sentence(line)) for line in said(search, space, trials)]
    tables = [*kept(search, space, everything), *weighed(search, space, trials, everything)]
    return Section(case_title(case), [*lines, *tables])


def kept(search: KeepSearch, space: SearchSpace, everything: bool = False) -> list[Block]:
    """Return the modules that are kept, and what the space knows of each."""
    if not search.found:
        return []
    rows = kept_rows(space, search.found)
    whole = [island for island in search.found if island not in {name for row in rows for name in row.unit.modules}]
    note = f"whole, with what they do between their modules: {few(whole)}" if whole and whole != WHOLE else ""
    return [table("Kept in fp32", KEPT, rows, note, shown=None if everything else SHOWN)]


def weighed(search: KeepSearch, space: SearchSpace, trials: Sequence[Trial], everything: bool = False) -> list[Block]:
    """Return what each set that was weighed errs, takes and needs; with `everything`, all modules of each are named."""
    picture = points(search, space, trials)
    if not picture:
        return []
    training = any(point.grad_rel_l2 is not None for point in picture)
    updates = search.min_update_kept is not None
    errors = ["output_rel_l2", *(["grad_rel_l2"] if training else []), *(["update_kept"] if updates else [])]
    keys = ("kept", "modules", *errors, "meets_budget", "seconds", "ratio", "peak_memory_bytes", "on_front")
    note = (
        "time ratio: to none kept, of builds that stood side by side; front: no other set is as good in "
        f"{'error, update, time' if updates else 'error, time'} and memory, and better in one"
    )
    note += "; arrives: the share of the intended update" if updates else ""
    columns = picked(COLUMNS, *keys)
    if everything:
        columns[0] = replace(columns[0], said=lambda point: _set_said(point, len(point.kept)))
    elif any(len(point.kept) > NAMED for point in picture):
        note += "; --all names all modules of a set"
    return [table("Error, time and memory", columns, picture, note)]


def _own(error: ModuleError | None) -> str:
    if error is None:
        return UNDEFINED
    return (
        f"{format_share(error.overflowed / error.elements)} overflow"
        if error.overflowed
        else format_error(error.own_rel_l2)
    )
