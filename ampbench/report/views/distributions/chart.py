"""The rounds of cases as a chart: every round's value, and so many samples that the page stays small."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from ampbench.comparing.runs import Role
from ampbench.report.material import ShownCase
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

TIME = "replace(replace(format({}, '{}'), 'µ', 'u'), /([a-zA-Z]?)$/, ' $1s')"
"""A time in Vega's expressions as `format_seconds` writes it: "1.25 ms", "12 us"."""


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


class Drawing:
    """The rows of the chart: one per case and run with median and interval, and one per round with its samples."""

    def __init__(self, cases: int):
        self._budget = min(SAMPLES_OF_A_CASE, SAMPLES_OF_THE_PAGE // cases)
        self.rows: list[Mapping[str, Any]] = []
        self.arms: dict[str, None] = {}
        self.longest = self.samples = self.drawn = self.beyond = self.unfit = self.fresh = 0

    def add(self, case: ShownCase, sides: Sequence[Side]) -> None:
        """Add a case."""
        lines = _lines(case, sides)
        seconds = [line.one.seconds for line in lines]
        limit = BEYOND * max(seconds)
        most = max(self._budget // len(lines), SAMPLES_OF_A_ROUND)
        number = str(case.number)
        self.longest = self.longest or max(len(line.label) for line in lines)
        for side in sides:
            if (found := side.summary) is not None:
                row = {"case": number, "arm": side.arm, "seconds": _rounded(found.median)}
                if found.low is not None and found.high is not None:
                    # a band of three rounds can be many times as wide as all else that is drawn: there it is cut
                    row |= {"low": _rounded(found.low), "left": _rounded(max(found.low, min(seconds) / BEYOND))}
                    row |= {"high": _rounded(found.high), "right": _rounded(min(found.high, limit))}
                self.rows.append({**BLANK, **row})
        for place, line in enumerate(lines):
            one = line.one
            samples, slowest, beyond = _drawn(one, limit, most)
            row = {"case": number, "arm": line.arm, "seconds": _rounded(one.seconds), "line": line.label}
            row |= {"place": place, "samples": samples, "unfit": one.unfit}
            row |= {"beyond": beyond, "slowest": float(f"{slowest:.2e}")} if beyond else {}
            self.rows.append({**BLANK, **row})
            self.arms[line.arm] = None
            self.samples += sum(map(len, one.samples))
            self.drawn += len(samples) + 1
            self.beyond += beyond
            self.unfit += one.unfit is not None
            self.fresh += one.role is Role.CONFIRMATION


def specification_of(arms: Collection[str], longest: int) -> dict[str, Any]:
    """Return the chart: bands and medians behind, then samples, then rounds.

    The longest label of what is drawn first has so many letters: room is kept for them, as a reader's font may be wider
    than the SVG's.
    """
    domain = [arm for arm in ARMS if arm in arms]
    field = {"field": "arm", "type": "nominal"}
    legend = {"symbolOpacity": 1} if len(domain) > 1 else None
    colours = [f"var(--arm-{arm})" for arm in domain]
    colour = {"color": {**field, "legend": legend, "scale": {"domain": domain, "range": colours}}}
    shape = {"shape": {**field, "legend": legend, "scale": {"domain": domain, "range": [ARMS[arm] for arm in domain]}}}
    axis = {"labelExpr": TIME.format("datum.value", "~s"), "tickCount": 5}
    x = {
        "type": "quantitative",
        "title": "time per step",
        "axis": axis,
        "scale": {"zero": False, "nice": False, "padding": 22},
    }
    lines = {
        "field": "line",
        "type": "nominal",
        "title": None,
        "sort": {"field": "place", "op": "min"},
        "scale": {"type": "point", "padding": 0.6},
        "axis": {"domain": False, "ticks": False, "grid": True, "minExtent": 7 * longest},
    }
    said = {"calculate": TIME.format("datum.seconds", ".4s"), "as": "time"}
    middles, rounds = {"filter": "!isValid(datum.line)"}, {"filter": "isValid(datum.line)"}

    def told(**fields: str) -> list[dict[str, str]]:
        return [{"field": name, "type": "nominal", "title": title} for name, title in fields.items()]

    ends = [{"calculate": TIME.format(f"datum.{end}", ".4s"), "as": f"{end}_time"} for end in ("low", "high")]
    return {
        "layer": [
            {
                "transform": [middles, {"filter": "isValid(datum.left)"}, *ends],
                "mark": {"type": "rect", "opacity": 0.16},
                "encoding": {
                    "x": {"field": "left", **x},
                    "x2": {"field": "right"},
                    **colour,
                    "tooltip": told(arm="median of", low_time="95 % from", high_time="to"),
                },
            },
            {
                "transform": [middles, said],
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": {"field": "seconds", **x}, **colour, "tooltip": told(arm="median of", time="is")},
            },
            {
                "transform": [
                    rounds,
                    {"flatten": ["samples"], "as": ["sample"]},
                    {"calculate": f"datum.seconds * (1 + datum.sample / {STEPS})", "as": "seconds"},
                    said,
                ],
                "mark": {"type": "tick", "size": 9, "thickness": 1, "opacity": 0.6},
                "encoding": {
                    "x": {"field": "seconds", **x},
                    "y": lines,
                    **colour,
                    "tooltip": told(line="round", time="sample"),
                },
            },
            {
                "transform": [
                    rounds,
                    said,
                    {"calculate": "isValid(datum.unfit) ? 'not fit: ' + datum.unfit : 'fit'", "as": "machine"},
                ],
                "mark": {"type": "point", "size": 55, "opacity": 1},
                "encoding": {
                    "x": {"field": "seconds", **x},
                    "y": lines,
                    **colour,
                    **shape,
                    "stroke": colour["color"],
                    "fillOpacity": {"condition": {"test": "isValid(datum.unfit)", "value": 0}, "value": 1},
                    "tooltip": told(line="round", time="value", machine="machine"),
                },
            },
            {
                "transform": [
                    {"filter": "isValid(datum.beyond)"},
                    {"calculate": "'+' + datum.beyond", "as": "count"},
                    {"calculate": TIME.format("datum.slowest", ".3s"), "as": "slowest_time"},
                ],
                "mark": {"type": "text", "align": "right", "fontSize": 11},
                "encoding": {
                    "x": {"value": "width"},
                    "y": lines,
                    "text": {"field": "count", "type": "nominal"},
                    "tooltip": told(line="round", beyond="samples not drawn", slowest_time="the slowest"),
                },
            },
        ],
    }


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


def _rounded(seconds: float) -> float:
    """Return a time with as many digits as a screen can show."""
    return float(f"{seconds:.4e}")
