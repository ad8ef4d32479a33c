"""The rounds of cases as a chart: every round's value, and so many samples that the page stays small."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from ampbench.comparing.runs import Role
from ampbench.report.material import ShownCase
from ampbench.report.vega import label_expression, tooltip
from ampbench.report.views.distributions.rounds import One, RunRounds, Summary

ARMS: Mapping[str, str] = MappingProxyType(
    {"baseline": "diamond", "candidate": "circle", "round": "circle", "control": "square"}
)
"""Each arm's shape; its colour is `--arm-NAME` of distributions.css."""

SAMPLES_OF_A_CASE = 600
"""So many samples of a case are drawn at most: what an eye tells apart, and 50 KB of the page as SVG."""

SAMPLES_OF_THE_PAGE = 60_000
"""So many are carried in all, spread evenly over the cases: they are most of the page's data, and it must stay small
enough to be sent around (500 cases: under 350 KB of it). A round always keeps `SAMPLES_OF_A_ROUND`."""

SAMPLES_OF_A_ROUND = 2
"""Beside its value, its median and its slowest sample: what tells a quiet round from a disturbed one."""

BEYOND = 1.25
"""A sample that took over so many times the slowest round of its case is counted instead of drawn: one that took thirty
times as long, which a busy machine gives, would leave a pixel to everything else."""

STEPS = 10_000
"""Samples are carried as whole numbers of ten-thousandths above their round's value, smaller when packed."""

BLANK: Mapping[str, Any] = dict.fromkeys(
    ("low", "left", "right", "high", "line", "place", "samples", "unfit", "beyond", "slowest")
)
"""What not every row of the chart has. A row without a `line` is a run's median, with the ends of its interval and
where the band is drawn; one with it is a round."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A round in the drawing: `arm` decides its colour, `label` its line."""

    arm: str
    label: str
    one: One


@dataclass(frozen=True, slots=True)
class Side:
    """One run's part in a case: `arm` is "baseline" or "candidate", or "round" where there is only one run."""

    arm: str
    run: RunRounds
    case_id: str
    summary: Summary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a legend says of the rows: `samples` there are, `drawn` of them, `beyond` what is drawn; and of the rounds
    `unfit` and `fresh` ones.

    `arms` are those that occur, `longest` is the number of letters of the longest label of the first case.
    """

    samples: int
    drawn: int
    beyond: int
    unfit: int
    fresh: int
    arms: frozenset[str]
    longest: int


def rows_of(cases: Sequence[tuple[ShownCase, Sequence[Side]]]) -> tuple[list[Mapping[str, Any]], Counts]:
    """Return the rows of the chart: for each case one a run with median and interval, and one a round with its samples.

    There is at least one case, and each has a round.
    """
    budget = min(SAMPLES_OF_A_CASE, SAMPLES_OF_THE_PAGE // len(cases))
    rows: list[Mapping[str, Any]] = []
    found: list[_Line] = []
    longest = 0
    for case, sides in cases:
        lines = _lines(case, sides)
        most = max(budget // len(lines), SAMPLES_OF_A_ROUND)
        limit = BEYOND * max(line.one.seconds for line in lines)
        edge = min(line.one.seconds for line in lines) / BEYOND
        own = [_middle(side.arm, side.summary, edge, limit) for side in sides if side.summary]
        own += [_round(line, limit, most) | {"place": place} for place, line in enumerate(lines)]
        rows += [{**BLANK, "case": str(case.number), **row} for row in own]
        found += lines
        longest = longest or max(len(line.label) for line in lines)
    beyond = sum(row["beyond"] or 0 for row in rows)
    return rows, Counts(
        samples=sum(len(build) for line in found for build in line.one.samples),
        drawn=sum(len(row["samples"]) + 1 for row in rows if row["samples"] is not None),
        beyond=beyond,
        unfit=sum(line.one.unfit is not None for line in found),
        fresh=sum(line.one.role is Role.CONFIRMATION for line in found),
        arms=frozenset(line.arm for line in found),
        longest=longest,
    )


def _middle(arm: str, found: Summary, edge: float, limit: float) -> dict[str, Any]:
    """Return the row of a run's median; a band of three rounds can be far wider than all else: there it is cut."""
    row: dict[str, Any] = {"arm": arm, "seconds": found.median}
    if found.low is not None and found.high is not None:
        row |= {"low": found.low, "left": max(found.low, edge), "high": found.high, "right": min(found.high, limit)}
    return row


def _round(line: _Line, limit: float, most: int) -> dict[str, Any]:
    one = line.one
    samples, slowest, beyond = _drawn(one, limit, most)
    row = {"arm": line.arm, "seconds": one.seconds, "line": line.label, "samples": samples, "unfit": one.unfit}
    return row | ({"beyond": beyond, "slowest": slowest} if beyond else {})


def specification_of(counts: Counts) -> dict[str, Any]:
    """Return the chart: bands and medians behind, then samples, then rounds."""
    domain = [arm for arm in ARMS if arm in counts.arms]
    field = {"field": "arm", "type": "nominal", "legend": {"symbolOpacity": 1} if len(domain) > 1 else None}
    colours = {"domain": domain, "range": [f"var(--arm-{arm})" for arm in domain]}
    colour = {"color": {**field, "scale": colours}}
    shape = {"shape": {**field, "scale": {"domain": domain, "range": [ARMS[arm] for arm in domain]}}}
    on_line = {"x": _at("seconds"), "y": _line_axis(counts.longest), **colour}
    middles, rounds = {"filter": "!isValid(datum.line)"}, {"filter": "isValid(datum.line)"}
    band: dict[str, Any] = {
        "transform": [middles, {"filter": "isValid(datum.left)"}, _said("low"), _said("high")],
        "mark": {"type": "rect", "opacity": 0.16},
        "encoding": {"x": _at("left"), "x2": {"field": "right"}, **colour},
    }
    band["encoding"]["tooltip"] = tooltip(arm="median of", low_time="95% from", high_time="to")
    told = tooltip(arm="median of", seconds_time="is")
    median = {
        "transform": [middles, _said("seconds")],
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {"x": _at("seconds"), **colour, "tooltip": told},
    }
    above = f"datum.seconds * (1 + datum.sample / {STEPS})"
    samples = {
        "transform": [
            rounds,
            {"flatten": ["samples"], "as": ["sample"]},
            {"calculate": above, "as": "seconds"},
            _said("seconds"),
        ],
        "mark": {"type": "tick", "size": 9, "thickness": 1, "opacity": 0.6},
        "encoding": {**on_line, "tooltip": tooltip(line="round", seconds_time="sample")},
    }
    fitness = {"calculate": "isValid(datum.unfit) ? 'not fit: ' + datum.unfit : 'fit'", "as": "machine"}
    hollow = {"condition": {"test": "isValid(datum.unfit)", "value": 0}, "value": 1}
    told = tooltip(line="round", seconds_time="value", machine="machine")
    values = {
        "transform": [rounds, _said("seconds"), fitness],
        "mark": {"type": "point", "size": 55, "opacity": 1},
        "encoding": {**on_line, **shape, "stroke": colour["color"], "fillOpacity": hollow, "tooltip": told},
    }
    return {"layer": [band, median, samples, values, _beyond_layer(on_line["y"])]}


def _beyond_layer(lines: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many samples of each round lie beyond the drawing, written at its edge."""
    count = {"calculate": "'+' + datum.beyond", "as": "count"}
    return {
        "transform": [{"filter": "isValid(datum.beyond)"}, count, _said("slowest", ".3~r")],
        "mark": {"type": "text", "align": "right", "fontSize": 11},
        "encoding": {
            "x": {"value": "width"},
            "y": lines,
            "text": {"field": "count", "type": "nominal"},
            "tooltip": tooltip(line="round", beyond="samples not drawn", slowest_time="the slowest"),
        },
    }


def _at(field: str) -> dict[str, Any]:
    """Return a field's place on the axis of times."""
    return {
        "field": field,
        "type": "quantitative",
        "title": "time per step",
        "axis": {"labelExpr": label_expression("s"), "tickCount": 5},
        "scale": {"zero": False, "nice": False, "padding": 22},
    }


def _line_axis(longest: int) -> dict[str, Any]:
    """Return the axis of rounds; the longest label of what is drawn first has so many letters.

    Room is kept for them, as a reader's font may be wider than the SVG's.
    """
    return {
        "field": "line",
        "type": "nominal",
        "title": None,
        "sort": {"field": "place", "op": "min"},
        "scale": {"type": "point", "padding": 0.6},
        "axis": {"domain": False, "ticks": False, "grid": True, "minExtent": 7 * longest},
    }


def _said(field: str, digits: str = ".4~r") -> dict[str, str]:
    """Return the calculation of a field's time in words, as `field`_time."""
    return {"calculate": label_expression("s", f"datum.{field}", digits), "as": f"{field}_time"}


def _lines(case: ShownCase, sides: Sequence[Side]) -> list[_Line]:
    """Return the rounds of a case from top to bottom: those of a block together where both runs share blocks."""
    found = []
    together = case.shown.comparison is not None and case.shown.comparison.interleaved
    for order, side in enumerate(sides):
        for one in side.run.of(side.case_id):
            name = "control" if one.role is Role.CONTROL else side.arm
            told = f"{side.arm} control" if name == "control" and len(sides) > 1 and not together else name
            fresh = one.role is Role.CONFIRMATION
            label = f"{told} {one.number}{', fresh' if fresh else ''}"
            found.append(((order, one.role, one.number), (fresh, one.number, order, one.role), _Line(name, label, one)))
    found.sort(key=lambda each: each[1] if together else each[0])
    return [line for *_, line in found]


def _drawn(one: One, limit: float, most: int) -> tuple[list[int], float, int]:
    """Return the samples of a round to be drawn beside its value, at most `most`; the slowest; how many are beyond."""
    ordered = sorted(chain.from_iterable(one.samples))
    within = bisect_right(ordered, limit)
    kept = ordered[1:within]
    if len(kept) > most:
        kept = [kept[rank] for rank in _ranks(len(kept), most)]
    return [round((sample / one.seconds - 1) * STEPS) for sample in kept], ordered[-1], len(ordered) - within


@lru_cache(maxsize=1024)
def _ranks(count: int, most: int) -> tuple[int, ...]:
    """Return `most` ranks among `count`, evenly, the last among them."""
    return tuple((number + 1) * count // most - 1 for number in range(most))
