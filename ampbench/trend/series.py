"""A trend as data: series of one metric of one case over an axis, and the changes found in them.

Tables, JSON and reports are made from it. The metrics that trends follow are here, by the names that people type.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from ampbench.core.metrics import GATED, METRICS, Column, Gate
from ampbench.errors import UnknownNameError
from ampbench.records.case import Case
from ampbench.records.changes import Difference

TIME = "seconds_median"


@dataclass(frozen=True, slots=True)
class Tracked:
    """A metric that is followed: its short `name`, its `column`, and the column `gated` that comparisons judge.

    `scale` is the smallest number that a change is related to: a tenth of an error below the cost of rounding to the
    dtype is no change.
    """

    name: str
    column: Column
    gated: str
    scale: float = 0.0

    @property
    def gate(self) -> Gate:
        """How comparisons judge it."""
        return GATED[self.gated]

    @property
    def noisy(self) -> bool:
        """Whether its values are noisy: times vary, bytes and errors of one environment do not."""
        return self.column.name == TIME


TRACKED: Mapping[str, Tracked] = MappingProxyType(
    {
        "time": Tracked("time", METRICS[TIME], TIME),
        "memory": Tracked("memory", METRICS["peak_memory_bytes"], "peak_memory_bytes"),
        # the table's ×floor: the error of rounding alone is 1 here, and every program keeps it
        "floor": Tracked("floor", METRICS["output_floor_ratio"], "output_rel_l2", 1.0),
        "gradients": Tracked("gradients", METRICS["grad_rel_l2"], "grad_rel_l2"),
    }
)
"""The metrics that `ampbench trend` follows."""


def tracked(names: Iterable[str] = ()) -> list[Tracked]:
    """Return the metrics called `names`, all without any; raises `UnknownNameError` for any other name."""
    chosen = dict.fromkeys(names or TRACKED)
    for name in chosen:
        if name not in TRACKED:
            raise UnknownNameError("metric", name, TRACKED)
    return [TRACKED[name] for name in chosen]


class Lack(StrEnum):
    """Why a point has no number."""

    FAILED = "failed"
    SKIPPED = "skipped"
    UNDEFINED = "undefined"
    """The error was measured and is no number, because something is not finite."""
    NOT_MEASURED = "not measured"
    OTHER_NUMBERS = "other numbers"
    """Measured with other weights, inputs, or by another counter of memory."""


class Gap(NamedTuple):
    """Why a point has no number, with the reason of a failure, a skip or an undefined error."""

    lack: Lack
    why: str = ""


class Rule(StrEnum):
    """How changes were looked for in a series (docs/trends.md), or why they were not."""

    STEPS = "steps"
    """asv's step detection: a time, eight points and more."""
    NEIGHBOURS = "neighbours"
    """Each point against the one before it, as `ampbench compare` decides on their runs: a time, fewer points."""
    EXACT = "exact"
    """The metric has no noise: every difference beyond the gate's tolerance."""
    NONE = "none"
    """A series of one point."""
    NO_ASV = "no-asv"
    """Not judged: the series is long, and asv's step detection is not installed."""
    NO_NOISE = "no-noise"
    """Not judged: neither rounds nor intervals show how noisy its points are."""


JUDGED = (Rule.STEPS, Rule.NEIGHBOURS, Rule.EXACT)


class LeftOut(StrEnum):
    """Why a run has no place on an axis."""

    NO_VERSION = "no-readable-torch-version"
    NO_COMMIT = "no-commit"
    OTHER_COMMIT = "another-commit"
    """Over versions of torch the commit is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class X:
    """One place on the axis: its whole `value` and a short `label`."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The machine and program of a series, equal for all its points.

    `program` is "ampbench" or the program of an imported run. `cpu` and `device_name` are models. `torch_version` is
    empty where it is the axis, `commit` where it is not. `settings` are an A/B session's arm (NAME=VALUE).
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
    """The `value` of one `run` at a point, with the interval from the run's own rounds or samples (95%, asv's 99%).

    `disturbed` names the disturbance of the machine during the measurement, "" without any.
    """

    run: str
    value: float
    low: float | None = None
    high: float | None = None
    disturbed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The value of a series at one x: the median over `runs` runs, in the unit of the metric.

    Disturbed runs are left out of a time unless all are; then the point is not judged. `low` and `high` are the 95%
    interval of the values of three or more runs, or of the single run, else None. `each` has the values of the runs. A
    point without a `value` has a `gap`; its `runs` may have measured a number that is not finite.
    """

    x: X
    value: float | None
    low: float | None = None
    high: float | None = None
    runs: int = 0
    run_ids: tuple[str, ...] = ()
    each: tuple[Measured, ...] = ()
    gap: Gap | None = None

    @property
    def disturbed(self) -> str:
        """The disturbance of all its runs, so that it is not judged; "" where one of them was quiet."""
        return self.each[-1].disturbed if self.each and all(run.disturbed for run in self.each) else ""

    @property
    def undefined(self) -> bool:
        """Whether the error was measured and is undefined, because a value is not finite."""
        return self.gap is not None and self.gap.lack is Lack.UNDEFINED


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point: `x` is the first point after it, `last` the last point of the level before it.

    `before` and `after` are the levels on both sides, in the unit of the metric, None where undefined. `ratio` is
    after / before, None where before is 0 or either is undefined; `low` and `high` are its 95% interval where
    comparisons of runs have one. `moved` are the facts of an fp64 result that moved: errors on both sides belong to
    different functions. The runs on both sides differ in `differences`.
    """

    x: X
    last: X
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    direction: Literal["improved", "regressed"]
    moved: Mapping[str, float | str] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one case at one place, a point per x of that place, gaps among them.

    `numbers` tells apart series of one case, metric and place: for errors the digests of weights and inputs, for memory
    the counter.
    """

    case: Case
    metric: Tracked
    place: Place
    numbers: str = ""
    points: Sequence[Point]
    changes: Sequence[Change] = ()
    rule: Rule = Rule.NONE

    @property
    def key(self) -> tuple[Place, str, int, str, str]:
        """Place, case id, the workload's version, metric and `numbers`: no two series of a trend share them."""
        return self.place, self.case.case_id, self.case.version, self.metric.name, self.numbers

    @property
    def measured(self) -> list[Point]:
        """The points that have a value."""
        return [point for point in self.points if point.value is not None]

    @property
    def values(self) -> list[float | None]:
        """The values of the points, gaps among them."""
        return [point.value for point in self.points]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """The common change of all times at a place from `last` to `x`: the median `ratio` of `cases` cases.

    `alike` of them moved in its direction. Each series is judged without it.
    """

    place: Place
    x: X
    last: X
    ratio: float
    cases: int
    alike: int


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Series over the `axis` and the common changes of their times (`shifts`).

    `runs` counts the runs used by place, `left_out` those without an x by the reason.
    """

    axis: str
    series: Sequence[Series]
    runs: Mapping[Place, int]
    shifts: Sequence[Shift] = ()
    left_out: Mapping[LeftOut, int] = field(default_factory=dict)

    @cached_property
    def places(self) -> dict[Place, list[Series]]:
        """The series by place, in their order."""
        groups: dict[Place, list[Series]] = {}
        for series in self.series:
            groups.setdefault(series.place, []).append(series)
        return groups
