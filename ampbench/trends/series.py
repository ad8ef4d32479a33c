"""A trend as data: series of points, and the changes found in them. Tables, JSON and reports are made from these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal

from ampbench.records.cases import Case
from ampbench.trends.metrics import Tracked

UNDEFINED = "undefined"
"""How the reason begins for which an error that was measured is no number."""


class Rule(StrEnum):
    """How changes were looked for in a series (docs/trends.md)."""

    STEPS = "steps"
    """asv's step detection, confirmed: a time, eight points and more."""
    NEIGHBOURS = "neighbours"
    """Each point against the one before it, as `ampbench compare` decides on their runs: a time, fewer points."""
    EXACT = "exact"
    """Luck has no part in the metric: every difference beyond the gate's tolerance."""
    NONE = "none"
    """Changes were not looked for; `Series.note` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class X:
    """One place on the axis: its whole `value`, a short `label` and, of a commit, its subject as `title`."""

    value: str
    label: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and by what a series was measured: what must be equal for its points to be comparable.

    `program` is "ampbench" or the one that an imported run is of. `cpu` and `device_name` are models. `torch_version`
    is that of the whole series where the axis is another, `commit` that where the axis is the version of torch ("":
    none is recorded). `settings` are those that the arm of an A/B session was given (NAME=VALUE).
    """

    program: str
    host: str
    cpu: str
    device: str
    device_name: str
    threads: int | None
    torch_version: str = ""
    commit: str = ""
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one `run` says of a point: its `value`, and the interval that it has of it from its own rounds or samples.

    The interval, None where there is none, is of 95% (asv's: of 99%). `disturbed` says what disturbed the machine while
    it was measured, "" where nothing did.
    """

    run: str
    value: float
    low: float | None = None
    high: float | None = None
    disturbed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The value of a series at one x: the median over `runs` runs, in the unit of the metric.

    Runs that were disturbed are left out of a time where others were not, and else it is not judged. `low` and `high`
    are the 95% interval of the runs' values where there are three or more, that of the run where there is one; None:
    there is none. `each` is what the runs say, one by one. A gap has the `value` None and says why in `missing`; so has
    a point that was measured (`runs`) and is not finite.
    """

    x: X
    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    run_ids: tuple[str, ...] = ()
    each: tuple[Measured, ...] = ()
    missing: str = ""

    @property
    def disturbed(self) -> str:
        """What disturbed all of its runs, so that it is not judged; "" where one of them was not."""
        return self.each[-1].disturbed if self.each and all(one.disturbed for one in self.each) else ""

    @property
    def undefined(self) -> bool:
        """Whether the error was measured and is no number, because something is not finite."""
        return self.missing.startswith(UNDEFINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point: `x` is that of the first point after it, `last` that of the last point of the level before it.

    `before` and `after` are the levels on both sides, in the unit of the metric, None where it is undefined. `ratio` is
    after / before, None where before is 0 or either is undefined; `low` and `high` are its 95% interval, None for a
    metric without luck. `other_function`: the errors on both sides are of different functions, whatever their sizes.
    `what` says in one line in what the runs on both sides differ, "" where they are the same in all that is recorded.
    """

    x: X
    last: X
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    direction: Literal["improved", "regressed"]
    other_function: bool = False
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one case at one place, a point per x of that place, gaps among them.

    `numbers` tells apart series of one case, metric and place: for errors the digests of weights and inputs, for memory
    who counted. `rule` says how changes were looked for, `note` what a reader of them should know.
    """

    case: Case
    metric: Tracked
    place: Place
    numbers: str = ""
    points: Sequence[Point]
    changes: Sequence[Change] = ()
    rule: Rule = Rule.NONE
    note: str = ""

    @property
    def key(self) -> tuple[Place, str, int, str, str]:
        """What no two series of a trend share: place, case id, the workload's version, metric and `numbers`."""
        return self.place, self.case.case_id, self.case.version, self.metric.name, self.numbers

    @property
    def measured(self) -> list[Point]:
        """The points that have a value; there is at least one."""
        return [point for point in self.points if point.value is not None]

    @property
    def total(self) -> float | None:
        """The last value over the first, 1 where both are 0; None where there is one alone, or only the first is 0."""
        values = [point.value for point in self.measured if point.value is not None]
        if len(values) < 2:
            return None
        if values[-1] == values[0]:
            return 1.0
        return values[-1] / values[0] if values[0] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A case without any number at its place, so that it has no series: the last `x` at which it broke, and how."""

    case: Case
    place: Place
    x: X
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What all times of a place did together from `last` to `x`: their median `ratio` over `cases` cases.

    `alike` of them moved that way. What is judged of each series is the rest.
    """

    place: Place
    x: X
    last: X
    ratio: float
    cases: int
    alike: int


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Series over the `axis`, what their times did together (`shifts`), and the cases that have none because they
    failed (`lost`).

    `runs` counts the runs used by place, `left_out` those without an x by the reason.
    """

    axis: str
    series: Sequence[Series]
    runs: Mapping[Place, int]
    shifts: Sequence[Shift] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    lost: Sequence[Lost] = ()
    notes: Sequence[str] = ()

    @cached_property
    def places(self) -> dict[Place, list[Series]]:
        """The series by place, in their order."""
        found: dict[Place, list[Series]] = {}
        for one in self.series:
            found.setdefault(one.place, []).append(one)
        return found
