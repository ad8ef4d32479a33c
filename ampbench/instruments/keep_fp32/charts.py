"""Which modules searches found to keep in fp32, what that costs, and the code to paste, on the page.

Its charts are of what sets of modules kept in fp32 err and cost: error against time, memory, and how many they are.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.base.units import UNDEFINED, counted, format_bytes, format_error, format_seconds
from ampbench.errors import UnknownNameError
from ampbench.instruments.keep_fp32 import show
from ampbench.instruments.keep_fp32.findings import Point, code, kept_said, meets, points
from ampbench.instruments.keep_fp32.records import KeepSearch, SearchSpace, Trial
from ampbench.instruments.keep_fp32.trials import units_of
from ampbench.present.charts import CHOICES, DASHED, ROWS_OF_THE_PAGE, Chart, Choice, Rows, label_expression, tooltip
from ampbench.present.document import Section
from ampbench.present.page import Held, Overview, Part, Told, Untold, detail_of, sentences_of, told_part
from ampbench.records.case import Case
from ampbench.records.paired import ratio_said

WIDTH, HEIGHT = 580.0, 270.0
"""Pixels of the drawing that is in the page, within its axes and paddings; a wider one has more room."""
_CHARACTER, _LINE = 7.5, 13.0
"""Pixels of a character and of a line."""
_POINT = 7.0
"""Pixels from the middle of a point to where a text begins."""
_AWAY = 10.0
"""So many pixels may a text reach beyond the drawing."""

SIDES = ("above right", "above left", "below right", "below left", "above", "below")
"""Where a text may stand, the first that is free is taken."""


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    @property
    def is_inside(self) -> bool:
        return (
            self.left >= -_AWAY and self.top >= -_AWAY and self.right <= WIDTH + _AWAY and self.bottom <= HEIGHT + _AWAY
        )


def sides(
    places: Sequence[tuple[float, float]],
    texts: Sequence[str],
    across: tuple[float, float],
    up: tuple[float, float],
) -> list[str | None]:
    """Return on which of `SIDES` the text of each point stands; None where all are taken. The first choose first.

    `places` are x and y of the points in a drawing that reaches over the x of `across` and the y of `up`, on any scales
    that are linear.
    """
    middles = [(_share(x, *across) * WIDTH, (1.0 - _share(y, *up)) * HEIGHT) for x, y in places]
    points = [_Box(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in middles]
    taken: list[_Box] = []
    found: list[str | None] = []
    for place, text in enumerate(texts):
        others = [*taken, *(box for other, box in enumerate(points) if other != place)]
        free = [
            (side, box)
            for side in SIDES
            if (box := _box(side, middles[place], text)).is_inside and not any(box.meets(other) for other in others)
        ]
        found.append(free[0][0] if free else None)
        taken += [box for _, box in free[:1]]
    return found


def standing(field: str) -> dict[str, Any]:
    """Return the properties of a text mark that stands on the side that `field` of its row names."""
    across = f"indexof(datum.{field}, 'left') >= 0 ? {{}} : indexof(datum.{field}, 'right') >= 0 ? {{}} : {{}}"
    up = f"indexof(datum.{field}, 'above') == 0"
    return {
        "align": {"expr": across.format("'right'", "'left'", "'center'")},
        "dx": {"expr": across.format(-_POINT, _POINT, 0)},
        "baseline": {"expr": f"{up} ? 'bottom' : 'top'"},
        "dy": {"expr": f"(indexof(datum.{field}, ' ') >= 0 ? 4 : 9) * ({up} ? -1 : 1)"},
    }


def _share(value: float, low: float, high: float) -> float:
    """Return how far from `low` to `high` a value is: 0 to 1, in the middle where both are one."""
    return (value - low) / (high - low) if high > low else 0.5


def _box(side: str, middle: tuple[float, float], text: str) -> _Box:
    """Return the room that a text takes on one side of a point."""
    x, y = middle
    width = _CHARACTER * len(text)
    left = x - width / 2
    if "left" in side:
        left = x - _POINT - width
    elif "right" in side:
        left = x + _POINT
    away = 4.0 if " " in side else 9.0
    top = y - away - _LINE if side.startswith("above") else y + away
    return _Box(left, top, left + width, top + _LINE)


FOUND, FRONT, BEATEN = "found", "on the front", "not on the front"
MEETS, MISSES = "meets the budget", "misses the budget"
_MARKS = {
    FOUND: ("diamond", "--improved"),
    FRONT: ("circle", "--ink"),
    BEATEN: ("square", "--faint"),
    MEETS: ("circle", "--ink"),
    MISSES: ("triangle-up", "--regressed"),
}
"""Shape and colour of each point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search on the page: what it saw and what came of it. `number` counts from 0, `name` is that of its case."""

    number: int
    name: str
    case: Case
    search: KeepSearch
    space: SearchSpace
    trials: Sequence[Trial]
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    """Which error is drawn, with the budget of a search for it."""

    name: str
    field: str
    budget: Callable[[KeepSearch], float | None]


LABELLED_SAID = (
    "Numbers beside points are how many modules are kept in fp32; where points crowd, some stand in the table alone."
)

_ERRORS = (
    _Error(name="output error", field="output_rel_l2", budget=lambda search: search.max_error),
    _Error(name="gradient error", field="grad_rel_l2", budget=lambda search: search.max_gradient_error),
)


def weighed_charts(searched: Sequence[Searched]) -> tuple[list[Chart], dict[str, Rows], list[str]]:
    """Return the charts of searches, their data, and what is to be said of how they are drawn."""
    weighed: list[dict[str, Any]] = []
    tried: list[dict[str, Any]] = []
    times: list[Choice] = []
    memories: list[Choice] = []
    counts: list[Choice] = []
    for one in searched[:CHOICES]:
        if len(weighed) + len(tried) > ROWS_OF_THE_PAGE:
            break
        several = sum(any(getattr(trial, error.field) for trial in one.trials) for error in _ERRORS) > 1
        for place, error in enumerate(_ERRORS):
            value = f"{one.number}-{place}"
            points = [_point_row(value, point, error) for point in one.points]
            attempts = [_trial_row(value, trial, one, error) for trial in one.trials]
            label = f"{one.name}: {error.name}" if several else one.name
            limit = error.budget(one.search)
            limit = limit if limit is not None and 0 < limit < math.inf else None
            for field, choices in (("ratio", times), ("peak", memories)):
                own = [row for row in points if row["error"] and row[field]]
                if own:
                    alt = _alt(one, error, own, points, field)
                    choices.append(Choice(value=value, label=label, alt=alt, marks=_kinds(own)))
                    _place_labels(own, field, limit)
            own = [row for row in attempts if row["error"]]
            if own:
                alt = _trials_alt(one, error, attempts)
                counts.append(Choice(value=value, label=label, alt=alt, marks=_kinds(own)))
            if limit is not None:
                text = f"budget {limit:g}"
                for own in (points, attempts):
                    own.extend({**dict.fromkeys(row), "case": value, "limit": limit, "text": text} for row in own[:1])
            weighed += points
            tried += attempts
    charts = []
    if times:
        charts.append(_chart("times", "Error against time", times, weighed, _TIME))
    if memories:
        charts.append(_chart("memory", "Error against memory", memories, weighed, _MEMORY))
    if counts:
        charts.append(_chart("trials", "Trials of the search", counts, tried, _COUNT))
    datasets: dict[str, Rows] = {chart.dataset: weighed for chart in charts if chart.dataset != _TRIED}
    datasets |= {_TRIED: tried} if counts else {}
    said = [LABELLED_SAID] if times or memories else []
    return charts, datasets, said


_WEIGHED, _TRIED = "explanation-weighed", "explanation-trials"
_SIDES = {"ratio": "ratio_side", "peak": "peak_side"}
"""Where a row says on which side of its point the label stands, by the field that is drawn across."""


def _point_row(value: str, point: Point, error: _Error) -> dict[str, Any]:
    """Return a weighed set as a row; an error of 0 has no place on a log axis."""
    ratio, kept = point.against_low, kept_said(point.kept)
    return {
        "case": value,
        "kind": FOUND if point.found else FRONT if point.on_front else BEATEN,
        "units": f"{point.units:,}",
        "label": {"none": "none", "all": f"all {point.units:,}"}.get(kept, f"{point.units:,}"),
        "error": _positive(getattr(point, error.field)),
        "ratio": ratio.value if ratio else None,
        "low": ratio.low if ratio else None,
        "high": ratio.high if ratio else None,
        "peak": point.peak_bytes,
        "kept": kept,
        "error_text": format_error(getattr(point, error.field)),
        "time": format_seconds(point.seconds),
        "ratio_text": ratio_said(ratio) if ratio else UNDEFINED,
        "memory": format_bytes(point.peak_bytes),
        "limit": None,
        "text": None,
        **dict.fromkeys(_SIDES.values()),
    }


def _kinds(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which marks are drawn of rows."""
    return [kind for kind in _MARKS if any(row["kind"] == kind for row in rows)]


def _place_labels(rows: Sequence[dict[str, Any]], field: str, limit: float | None) -> None:
    """Say in rows on which side of their points the labels stand in the chart with `field` across."""
    ordered = sorted(rows, key=lambda row: (row["kind"] != FOUND, row["kept"] not in ("none", "all")))
    heights = [math.log(error) for row in rows if (error := row["error"])] + ([math.log(limit)] if limit else [])
    ends = [
        end for row in rows for end in (row[field], *((row["low"], row["high"]) if field == "ratio" else ())) if end
    ]
    places = [(row[field], math.log(row["error"])) for row in ordered]
    stand = sides(places, [row["label"] for row in ordered], (min(ends), max(ends)), (min(heights), max(heights)))
    for row, side in zip(ordered, stand, strict=True):
        row[_SIDES[field]] = side


def _trial_row(value: str, trial: Trial, one: Searched, error: _Error) -> dict[str, Any]:
    found = one.search.found is not None and list(trial.kept) == list(one.search.found)
    return {
        "case": value,
        "kind": FOUND if found else MEETS if meets(one.search, trial) else MISSES,
        "count": len(units_of(one.space, trial.kept)),
        "error": _positive(getattr(trial, error.field)),
        "number": f"{trial.number + 1:,}",
        "kept": kept_said(trial.kept),
        "error_text": format_error(getattr(trial, error.field)),
        "limit": None,
        "text": None,
    }


def _positive(error: float | None) -> float | None:
    return error if error is not None and 0 < error < math.inf else None


def _alt(
    one: Searched, error: _Error, drawn: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], field: str
) -> str:
    """Return what a chart shows of a search: the ends, the set found, what has no place."""
    by_kept = {row["kept"]: row for row in drawn}
    parts = [f"{one.name}: the {error.name} of {counted(len(drawn), 'set')}"]
    named = [("with no module kept", by_kept.get("none"))]
    found = next((row for row in drawn if row["kind"] == FOUND), None)
    if found is not None and found["kept"] not in ("none", "all"):
        named.append((f"with {found['units']} kept, the set found,", found))
    named.append(("with all kept", by_kept.get("all")))
    for which, row in named:
        if row is not None:
            cost = f"{row['ratio']:.2f} times the time" if field == "ratio" else row["memory"]
            parts.append(f"{which} {row['error_text']} at {cost}")
    parts += [f"{_who(row)}: not drawn, {_lack(row, field)}" for row in rows if row not in drawn]
    return f"{'; '.join(parts)}."


def _who(row: Mapping[str, Any]) -> str:
    kept = row["kept"]
    return f"{kept} kept" if kept in ("none", "all") else f"{row['units']} kept ({kept})"


def _lack(row: Mapping[str, Any], field: str) -> str:
    """Return for want of what a set has no point in the chart with `field` across."""
    if not row["error"]:
        return f"its error is {'undefined' if row['error_text'] == UNDEFINED else row['error_text']}"
    return "its time was not measured" if field == "ratio" else "its peak memory is unavailable"


def _trials_alt(one: Searched, error: _Error, rows: Sequence[dict[str, Any]]) -> str:
    known = [row for row in rows if row["error"]]
    own = [row for row, trial in zip(rows, one.trials, strict=True) if trial.number < one.search.trials]
    met = sum(row["kind"] != MISSES for row in own)
    best = min(known, key=lambda row: row["error"])
    parts = [
        f"{one.name}: {counted(len(own), 'trial')}, {met:,} of which {'meets' if met == 1 else 'meet'} the budget",
        f"the smallest {error.name} is {best['error_text']} with {best['count']:,} kept",
    ]
    if more := len(rows) - len(own):
        parts.append(f"{counted(more, 'more set')} {'was' if more == 1 else 'were'} tried only to be weighed")
    if lost := len(rows) - len(known):
        which = (
            "undefined" if all(row["error_text"] == UNDEFINED for row in rows if not row["error"]) else "undefined or 0"
        )
        parts.append(f"{lost:,} {'is' if lost == 1 else 'are'} not drawn, the error is {which}")
    return f"{'; '.join(parts)}."


_SCALE = {"zero": False, "padding": 24}
_TIME = {
    "field": "ratio",
    "title": "time of a step, times that with no module kept (← faster)",
    "axis": {"labelExpr": label_expression("ratio"), "tickCount": 6},
    "scale": _SCALE,
}
_MEMORY = {
    "field": "peak",
    "title": "peak memory (← less)",
    "axis": {"labelExpr": label_expression("B", digits=".3~r"), "tickCount": 5},
    "scale": _SCALE,
}
_COUNT = {
    "field": "count",
    "title": "modules kept in fp32",
    "axis": {"tickMinStep": 1, "format": "d"},
    "scale": {"padding": 12, "nice": False},
}


def _chart(name: str, title: str, choices: Sequence[Choice], rows: Rows, axis: dict[str, Any]) -> Chart:
    x = {"type": "quantitative", **axis}
    y = {
        "field": "error",
        "type": "quantitative",
        "title": "relative L2 error against the reference (log scale)",
        "scale": {"type": "log", "padding": 16, "nice": False},
        "axis": {"format": ".1e", "tickCount": 5, "minExtent": 50},
    }
    counting = axis is _COUNT
    drawn = [{"filter": f"isValid(datum.error) && isValid(datum.{axis['field']})"}]
    told = {"kept": "kept in fp32", "error_text": "error"}
    told |= {"number": "trial"} if counting else {"time": "step", "ratio_text": "against none kept", "memory": "peak"}
    points = {
        "transform": drawn,
        "mark": {"type": "point", "size": 60 if counting else 110, "opacity": 1},
        "encoding": {"x": x, "y": y, **_marked(rows), "tooltip": tooltip(**told)},
    }
    layers: list[Mapping[str, Any]] = [points, *_budget(y)]  # the first is the one that zooms
    if not counting:
        side = _SIDES[axis["field"]]
        own = [*drawn, {"filter": f"isValid(datum.{side})"}]
        text = {"x": x, "y": y, "text": {"field": "label", "type": "nominal"}}
        layers.append({"transform": own, "mark": {"type": "text", **standing(side)}, "encoding": text})
    if axis is _TIME:
        layers.append(
            {
                "transform": [*drawn, {"filter": "isValid(datum.low) && isValid(datum.high)"}],
                "mark": {"type": "rule", "color": "var(--faint)", "strokeWidth": 1.5},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y},
            }
        )
    return Chart(
        id=f"explanation-kept-{name}",
        title=title,
        alt="",
        spec={"layer": layers},
        dataset=_TRIED if counting else _WEIGHED,
        height=260 if counting else 300,
        choose="case",
        choices=choices,
    )


def _marked(rows: Rows) -> dict[str, Any]:
    present = _kinds(rows)
    channel = {"field": "kind", "type": "nominal", "legend": {"title": None, "columns": 3, "columnPadding": 32}}
    return {
        "color": {**channel, "scale": {"domain": present, "range": [f"var({_MARKS[kind][1]})" for kind in present]}},
        "shape": {**channel, "scale": {"domain": present, "range": [_MARKS[kind][0] for kind in present]}},
    }


def _budget(y: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Return the layers of the budget's line, which is another one for each case."""
    limits = [{"filter": "isValid(datum.limit)"}]
    place = {"y": {**y, "field": "limit"}}
    label = {"type": "text", "align": "left", "baseline": "top", "dx": 3, "dy": 4}
    words = {**place, "x": {"value": 0}, "text": {"field": "text", "type": "nominal"}}
    return [
        {"transform": limits, "mark": dict(DASHED), "encoding": place},
        {"transform": limits, "mark": label, "encoding": words},
    ]


def part(held: Held[KeepSearch]) -> Part | None:
    """Return the searches for modules to keep in fp32, those first that found modules, those last that need none."""
    if not (held.told or held.untold):
        return None
    found: list[Searched] = []
    untold = [_begun(one) for one in held.untold]
    for one in sorted(held.told, key=_telling):
        try:
            found.append(_searched(one))
        except UnknownNameError as error:  # a file put together by other means than a search
            reason = f"its modules are not those that it chose from: {error}"
            untold.append(Untold(name=one.name, reason=reason, case_id=one.case.case_id, run=one.run))
    charts, datasets, drawn = weighed_charts(found)
    return told_part(
        found,
        id="keep-fp32",
        title="What to keep in fp32",
        said=[*_said(found), *held.strangers_said("Searched"), *drawn],
        detail=lambda one: detail_of(one.name, _section(one), code=code(one.search, one.case)),
        sentences=lambda one: sentences_of(_section(one)),
        overview=_overview(found),
        drawn=(charts, datasets),
        untold=untold,
        what="searches",
    )


def _section(one: Searched) -> Section:
    return show.section(one.case, one.search, one.space, one.trials, everything=True)


def _begun(one: Untold) -> Untold:
    """Return a case without a result with how far its search got that did not end."""
    trials = len(one.run.several_of(Trial).get(one.case_id, []))
    ended = one.case_id in one.run.failures or one.case_id in one.run.skips
    if ended or not (trials or one.case_id in one.run.of(SearchSpace)):
        return one
    kept = f"{counted(trials, 'trial')} {'is' if trials == 1 else 'are'}" if trials else "no trial is"
    return replace(one, reason=f"the search did not end; {kept} stored")


def _telling(one: Told[KeepSearch]) -> tuple[bool, bool, int]:
    found = one.found.found
    return not found, found is not None, -one.found.units


def _searched(one: Told[KeepSearch]) -> Searched:
    """Return a search with what it saw; raises `UnknownNameError` where these do not fit together."""
    space, trials = _space(one), one.run.several_of(Trial).get(one.case.case_id, [])
    return Searched(
        number=one.number,
        name=one.name,
        case=one.case,
        search=one.found,
        space=space,
        trials=trials,
        points=points(one.found, space, trials),
    )


def _space(one: Told[KeepSearch]) -> SearchSpace:
    case_id = one.case.case_id
    return one.run.of(SearchSpace).get(case_id) or SearchSpace(case_id=case_id, units=[])


def _said(found: Sequence[Searched]) -> list[str]:
    """Return how many of several searches found something; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    met = sum(one.search.found is not None for one in found)
    return [f"Of {counted(len(found), 'search', 'searches')}, {met or 'none'} found modules that meet the budget."]


def _overview(found: Sequence[Searched]) -> Overview:
    rows = []
    for one in found:
        search = one.search
        point = next((point for point in one.points if point.found), None)
        trial = next((trial for trial in one.trials if search.found is not None and trial.kept == search.found), None)
        cells = [
            "no set meets the budget" if search.found is None else kept_said(search.found),
            UNDEFINED if search.found is None else f"{search.units:,} of {len(one.space.units):,}",
            format_error(search.max_error),
            format_error(trial.output_rel_l2 if trial else None),
            f"{search.trials:,}",
            ratio_said(point.against_low) if point is not None and point.against_low is not None else UNDEFINED,
        ]
        rows.append((one.name, cells))
    headers = ["kept in fp32", "modules", "budget", "error", "trials", "cost"]
    return Overview(
        caption="What searches found to keep in fp32, those first that found modules. Cost: the time of a step, times "
        "that with no module kept.",
        headers=headers,
        rows=rows,
        numbers=headers[1:5],
        wide=headers[:1],
    )
