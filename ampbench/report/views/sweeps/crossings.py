"""Where one precision's throughput overtakes another's as a parameter grows, and what can be said of it for certain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_ORDERS = {1: "faster", -1: "slower", 0: "within the intervals"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A throughput (items per second) with its 95% interval; None under three rounds."""

    rate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Two precisions at one value of the parameter; `x` is the value as a number above 0, None where it is none."""

    value: str
    x: float | None
    own: Level
    other: Level

    @property
    def order(self) -> int:
        """1 where `own` is certainly the faster, -1 where `other` is; 0 where the intervals overlap or lack."""
        if self._above(self.own, self.other):
            return 1
        return -1 if self._above(self.other, self.own) else 0

    @property
    def advantage(self) -> float:
        """The logarithm of the ratio of both throughputs, above 0 where `own` is the faster by its median."""
        return math.log(self.own.rate) - math.log(self.other.rate)

    @staticmethod
    def _above(one: Level, other: Level) -> bool:
        return one.low is not None and other.high is not None and one.low > other.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The order is certain at the values `before` and `after`, and opposite; `upwards` where `own` gets the faster.

    `x` and `rate` are where the lines between the medians cross, both axes logarithmic; None where the parameter is no
    number, or they cross more than once in between.
    """

    before: str
    after: str
    upwards: bool
    x: float | None = None
    rate: float | None = None

    @property
    def about(self) -> str:
        """`x` as text, as a whole number between whole numbers; "" where there is none, or none in between."""
        if self.x is None:
            return ""
        if not (self.before.isdecimal() and self.after.isdecimal()):
            return f"{self.x:.3g}"
        return f"{round(self.x):,}" if int(self.before) < round(self.x) < int(self.after) else ""


def find_crossings(places: Sequence[Rivals]) -> list[Crossing]:
    """Return where the certain order of two precisions changes along `places`, which go by the parameter's value."""
    certain = [number for number, place in enumerate(places) if place.order]
    found = []
    for first, last in pairwise(certain):
        if places[first].order != places[last].order:
            x, rate = _meeting(places[first : last + 1])
            upwards = places[last].order > 0
            found.append(
                Crossing(before=places[first].value, after=places[last].value, upwards=upwards, x=x, rate=rate)
            )
    return found


def _meeting(places: Sequence[Rivals]) -> tuple[float | None, float | None]:
    """Return x and throughput where the medians of both are equal; None where that is not one place."""
    apart = [number for number, place in enumerate(places) if place.advantage]
    steps = [pair for pair in pairwise(apart) if places[pair[0]].advantage * places[pair[1]].advantage < 0]
    if len(steps) != 1:
        return None, None
    ((first, last),) = steps
    one, other, equal = places[first], places[last], places[first + 1 : last]
    if one.x is None or other.x is None or len(equal) > 1:
        return None, None
    if equal:
        return equal[0].x, equal[0].own.rate
    share = one.advantage / (one.advantage - other.advantage)
    return _between(one.x, other.x, share), _between(one.other.rate, other.other.rate, share)


def _between(start: float, end: float, share: float) -> float:
    """Return the number at a share of the way from `start` to `end` on a logarithmic scale."""
    return float(math.exp(math.log(start) + share * math.log(end / start)))


def in_words(places: Sequence[Rivals], parameter: str, other: str) -> str:
    """Say what is certain of the order of two precisions: where `own` is faster or slower than `other`, or overtakes.

    `parameter` is the parameter as a reader knows it ("batch size"). There is at least one place.
    """
    if all(None in (place.own.low, place.other.low) for place in places):
        return "no order is certain: under three rounds there is no interval"
    orders = {place.order for place in places}
    if len(orders) == 1:
        everywhere = f"at every {parameter} measured" if len(places) > 1 else f"at {parameter} {places[0].value}"
        return f"{_ORDERS[orders.pop()]} {everywhere}"
    crossings = find_crossings(places)
    said = []
    for one in crossings:
        about = f" (about {one.about})" if one.about else ""
        verb = "overtakes" if one.upwards else "falls behind"
        said.append(f"{verb} {other} between {parameter} {one.before} and {one.after}{about}")
    values = [place.value for place in places]
    inside = {at for one in crossings for at in range(values.index(one.before), values.index(one.after))}
    for order in (0,) if crossings else (1, -1, 0):
        where = [place.value for at, place in enumerate(places) if place.order == order and at not in inside]
        said += [f"{_ORDERS[order]} at {listed(where)}"] if where else []
    return "; ".join(said)


def listed(values: Sequence[str]) -> str:
    """Return "1", "1 and 4" or "1, 4 and 16"."""
    return " and ".join([part for part in (", ".join(values[:-1]), values[-1]) if part])
