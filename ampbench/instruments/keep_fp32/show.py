"""What keeping modules in fp32 costs and buys: the document of a search.

Numbers without a value are "–".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ampbench.core.units import (
    UNDEFINED,
    counted,
    format_bytes,
    format_error,
    format_kept,
    format_seconds,
    format_share,
)
from ampbench.errors import UnknownNameError
from ampbench.instruments.keep_fp32.findings import Point, code, kept_said, meets, points, said, so_far
from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial, Unit
from ampbench.instruments.keep_fp32.trials import WHOLE, units_of
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.records.ranges import ROOT, ModuleError
from ampbench.show.charts import (
    Drawing,
    Rows,
    label_expression,
    limit_layers,
    looks_encoded,
    tooltip,
)
from ampbench.show.data import record_data
from ampbench.show.document import Block, Code, Column, Document, Section, as_sentence, picked, table
from ampbench.show.page import Held, Part, Told, Untold, of_several, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun
from ampbench.studies.paired import Ratio, ratio_said, short_ratio

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
        "search": record_data(search),
        "space": record_data(space),
        "trials": [record_data(trial) for trial in trials],
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


FOUND, FRONT, BEATEN = "found", "on the front", "not on the front"
MEETS, MISSES = "meets the budget", "misses the budget"
_LOOKS = {
    FOUND: ("--improved", "diamond"),
    FRONT: ("--ink", "circle"),
    BEATEN: ("--faint", "square"),
    MEETS: ("--ink", "circle"),
    MISSES: ("--regressed", "triangle-up"),
}
"""Colour and shape of each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search on the page: what it saw and what came of it. `name` is that of its case."""

    name: str
    case: Case
    search: KeepSearch
    space: SearchSpace
    trials: Sequence[Trial]
    points: Sequence[Point]


def _by_error(one: Searched, rows: Callable[[str], list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a search with each kind of error that trials have, and with its budget."""
    budgets = {"output_rel_l2": one.search.max_error, "grad_rel_l2": one.search.max_gradient_error}
    known = {field: limit for field, limit in budgets.items() if any(getattr(trial, field) for trial in one.trials)}
    found = {}
    for field, limit in known.items():
        own = [row for row in rows(field) if row["error"] is not None]
        if own and limit is not None and 0 < limit < math.inf:
            own.append({**dict.fromkeys(own[0]), "limit": limit, "text": f"budget {limit:g}"})
        name = {"output_rel_l2": "output error", "grad_rel_l2": "gradient error"}[field]
        found[name if len(known) > 1 else ""] = own
    return found


def _weighed_rows(one: Searched) -> dict[str, list[dict[str, Any]]]:
    """Return the sets that were weighed whose time is known; an error of 0 has no place on a log axis."""

    def rows(field: str) -> list[dict[str, Any]]:
        return [
            {
                "kind": FOUND if point.found else FRONT if point.on_front else BEATEN,
                "units": f"{point.units:,}",
                "error": _positive(getattr(point, field)),
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "kept": kept_said(point.kept),
                "error_text": format_error(getattr(point, field)),
                "time": format_seconds(point.seconds),
                "ratio_text": ratio_said(ratio),
                "memory": format_bytes(point.peak_bytes),
                "limit": None,
                "text": None,
            }
            for point in one.points
            if (ratio := point.against_low) is not None
        ]

    return _by_error(one, rows)


def _trial_rows(one: Searched) -> dict[str, list[dict[str, Any]]]:
    found = list(one.search.found) if one.search.found is not None else None

    def rows(field: str) -> list[dict[str, Any]]:
        return [
            {
                "kind": FOUND if list(trial.kept) == found else MEETS if meets(one.search, trial) else MISSES,
                "count": len(units_of(one.space, trial.kept)),
                "error": _positive(getattr(trial, field)),
                "number": f"{trial.number + 1:,}",
                "kept": kept_said(trial.kept),
                "error_text": format_error(getattr(trial, field)),
                "limit": None,
                "text": None,
            }
            for trial in one.trials
        ]

    return _by_error(one, rows)


def _positive(error: float | None) -> float | None:
    return error if error is not None and 0 < error < math.inf else None


_ERROR_AXIS = {
    "field": "error",
    "type": "quantitative",
    "title": "relative L2 error against the reference (log scale)",
    "scale": {"type": "log", "padding": 16, "nice": False},
    "axis": {"format": ".1e", "tickCount": 5, "minExtent": 50},
}


def _points_spec(rows: Rows, x: Mapping[str, Any], told: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    drawn = {row["kind"] for row in rows}
    looks = looks_encoded("kind", [kind for kind in _LOOKS if kind in drawn], _LOOKS, columns=3, columnPadding=32)
    points = {
        "transform": [{"filter": "isValid(datum.error)"}],
        "mark": {"type": "point", "size": 80, "opacity": 1},
        "encoding": {"x": x, "y": _ERROR_AXIS, **looks, "tooltip": told},
    }
    return {"layer": [points, *limit_layers(_ERROR_AXIS)]}  # the first zooms, so it has both axes


def _weighed_spec(rows: Rows) -> dict[str, Any]:
    x = {
        "field": "ratio",
        "type": "quantitative",
        "title": "time of a step, times that with no module kept (← faster)",
        "axis": {"labelExpr": label_expression("ratio"), "tickCount": 6},
        "scale": {"zero": False, "padding": 24},
    }
    told = tooltip(
        kept="kept in fp32", units="modules", error_text="error", time="step", ratio_text="time ratio", memory="peak"
    )
    spec = _points_spec(rows, x, told)
    interval = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "color": "var(--faint)"},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": _ERROR_AXIS},
    }
    return {"layer": [interval, *spec["layer"]]}


def _trials_spec(rows: Rows) -> dict[str, Any]:
    x = {
        "field": "count",
        "type": "quantitative",
        "title": "modules kept in fp32",
        "axis": {"tickMinStep": 1, "format": "d"},
        "scale": {"padding": 12, "nice": False},
    }
    return _points_spec(rows, x, tooltip(number="trial", kept="kept in fp32", count="modules", error_text="error"))


_DRAWINGS = (
    Drawing(
        name="explanation-kept-times",
        title="Error against time",
        alt="Each point is a set of modules kept in fp32 that was weighed; lines are the intervals of its time ratio.",
        rows=_weighed_rows,
        spec=_weighed_spec,
        height=300,
        marked=("kind",),
    ),
    Drawing(
        name="explanation-kept-trials",
        title="Trials of the search",
        alt="Each point is a set that was tried; sets whose error is undefined or 0 have none.",
        rows=_trial_rows,
        spec=_trials_spec,
        marked=("kind",),
    ),
)


def part(held: Held[KeepSearch]) -> Part | None:
    """Return the searches for modules to keep in fp32, those first that found modules, those last that need none."""
    found: list[Searched] = []
    untold = [_as_far_as_it_got(one) for one in held.untold]
    for one in sorted(held.told, key=lambda one: (not one.found.found, one.found.found is not None, -one.found.units)):
        try:
            found.append(_searched(one))
        except UnknownNameError as error:  # a file put together by other means than a search
            reason = f"its modules are not those that it chose from: {error}"
            untold.append(Untold(name=one.name, reason=reason, case_id=one.case.case_id, run=one.run))
    return told_part(
        held,
        found,
        lambda one: section(one.case, one.search, one.space, one.trials, everything=True),
        id="keep-fp32",
        title="What to keep in fp32",
        caption="What searches found to keep in fp32, those first that found modules",
        verb="Searched",
        said=of_several(
            found,
            lambda one: one.search.found is not None,
            "found modules that meet the budget",
            "search",
            "searches",
        ),
        drawings=_DRAWINGS,
        code=lambda one: code(one.search, one.case),
        untold=untold,
        what="searches",
    )


def _as_far_as_it_got(one: Untold) -> Untold:
    """Return a case without a result with how far its search got that did not end."""
    trials = len(one.run.several_of(Trial).get(one.case_id, []))
    ended = one.case_id in one.run.failures or one.case_id in one.run.skips
    if ended or not (trials or one.case_id in one.run.of(SearchSpace)):
        return one
    kept = f"{counted(trials, 'trial')} {'is' if trials == 1 else 'are'}" if trials else "no trial is"
    return replace(one, reason=f"the search did not end; {kept} stored")


def _searched(one: Told[KeepSearch]) -> Searched:
    """Return a search with what it saw; raises `UnknownNameError` where these do not fit together."""
    case_id = one.case.case_id
    space = one.run.of(SearchSpace).get(case_id) or SearchSpace(case_id=case_id, units=[])
    trials = one.run.several_of(Trial).get(case_id, [])
    return Searched(
        name=one.name,
        case=one.case,
        search=one.found,
        space=space,
        trials=trials,
        points=points(one.found, space, trials),
    )
