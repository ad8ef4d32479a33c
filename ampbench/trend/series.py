"""A trend as data: series of one metric of one case over an axis, and the changes found in them.

Tables, JSON and reports are made from these. What of a case is followed stands here by the names that people type, with
how a change of it is told from none; and what git knows of the commits of an axis: when they were made, what they are
called, what lies between two of them.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from ampbench.core.metrics import COMPARED, DRIFT, GATED, METRICS, Column, Gate
from ampbench.errors import UnknownNameError
from ampbench.records.case import Case
from ampbench.records.changes import Difference

TIME = "seconds_median"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """A metric that is followed: its short `name`, its `column`, and the column `gated` that comparisons judge.

    `scale` is the smallest number that a change is related to: a tenth of an error below what rounding to the dtype
    costs is none. `noisy` metrics are times, whose values are luck too; all others are the same in every run of one
    environment.
    """

    name: str
    column: Column
    gated: str
    scale: float = 0.0
    noisy: bool = False

    @property
    def gate(self) -> Gate:
        """How comparisons tell a change of it from none."""
        return GATED[self.gated]


def _tracked(name: str, column: str, gated: str = "", scale: float = 0.0, noisy: bool = False) -> Tracked:
    found = METRICS.get(column) or COMPARED[column]
    return Tracked(name=name, column=found, gated=gated or column, scale=scale, noisy=noisy)


_FOLLOWED = (
    _tracked("time", TIME, noisy=True),
    _tracked("throughput", "items_per_second", TIME, noisy=True),
    _tracked("memory", "peak_memory_bytes"),
    # the table's ×floor: the error of rounding alone is 1 here, and all programs tell this one
    _tracked("floor", "output_floor_ratio", "output_rel_l2", 1.0),
    _tracked("gradients", "grad_rel_l2"),
    _tracked("parameters", "param_rel_l2"),
    _tracked("updates", "update_rel_l2"),
    _tracked("nonfinite", "output_nonfinite", scale=1.0),
    _tracked("flushed", "grad_flushed_share", scale=GATED["grad_flushed_share"].floor),
    # from the first x that has one: two runs have it together, and neither alone
    _tracked("reference", DRIFT),
)
TRACKED: Mapping[str, Tracked] = MappingProxyType({metric.name: metric for metric in _FOLLOWED})
"""The metrics that `ampbench trend` follows."""

DEFAULT = ("time", "memory", "floor", "gradients")


def tracked(names: Iterable[str] = ()) -> list[Tracked]:
    """Return the metrics called `names`, short or as their columns are; without any, the usual four.

    Raises `UnknownNameError` with the nearest names for any other.
    """
    by_name = {**TRACKED, **{one.column.name: one for one in TRACKED.values()}}
    chosen = list(dict.fromkeys(names)) or list(DEFAULT)
    for name in chosen:
        if name not in by_name:
            raise UnknownNameError("metric", name, TRACKED)
    return list(dict.fromkeys(by_name[name] for name in chosen))


_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the repository: its time in seconds since 1970 and the first line of its message."""

    time: int
    subject: str


class History:
    """The repository of the current folder, or of `folder`; outside one, nothing is known."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def commits(self, names: Iterable[str]) -> dict[str, Commit]:
        """Return those of the commits called `names` (whole hashes) that the repository has."""
        asked = _hashes(names)
        wanted = ("--no-show-signature", "--no-walk=unsorted", "--ignore-missing", "--format=%H %ct %s", "--stdin")
        answer = self._git("log", *wanted, given="\n".join(asked)) if asked else None
        lines = [line.split(" ", 2) for line in (answer or b"").decode(errors="replace").split("\n") if line]
        return {name: Commit(int(time), subject) for name, time, subject in lines if name in asked}

    def ranks(self, names: Iterable[str]) -> Mapping[str, int]:
        """Return the places of known commits in their order of descent, the oldest first."""
        asked = _hashes(names)
        answer = self._git("rev-list", "--topo-order", "--reverse", *asked) if asked else None
        order = {name: place for place, name in enumerate((answer or b"").decode().split())}
        return {name: order[name] for name in asked if name in order}

    def between(self, before: str, after: str) -> int | None:
        """Return how many commits lead from `before` to `after`, that one counted; None where that is not known."""
        if len(_hashes([before, after])) < 2:
            return None
        answer = self._git("rev-list", "--count", f"{before}..{after}", "--")
        return int(answer) if answer else None

    def _git(self, *arguments: str, given: str = "") -> bytes | None:
        try:
            done = subprocess.run(
                ["git", *arguments],
                input=given.encode(),
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                check=True,
                cwd=self._folder,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout


def _hashes(names: Iterable[str]) -> list[str]:
    """Return those names, each once, that are hashes: what else a file calls a commit might be an option to git."""
    return [name for name in dict.fromkeys(names) if re.fullmatch("[0-9a-f]{7,64}", name)]


class Lack(StrEnum):
    """Why a point has no number."""

    FAILED = "failed"
    SKIPPED = "skipped"
    UNDEFINED = "undefined"
    """The error was measured and is no number, because something is not finite."""
    NOT_MEASURED = "not measured"
    OTHER_NUMBERS = "other numbers"
    """Measured with other weights, inputs, or by another count."""
    OTHER_VERSION = "other version"
    """Measured in another version of the workload."""


class Gap(NamedTuple):
    """Why a point has no number; `why` is the reason of a failure, a skip or an undefined error, or another version.

    `moved` are the facts of a reference of another shape, or that lies from zero.
    """

    lack: Lack
    why: str = ""
    moved: Mapping[str, float | str] = MappingProxyType({})


class Rule(StrEnum):
    """How changes were looked for in a series (docs/trends.md)."""

    STEPS = "steps"
    """asv's step detection: a time, eight points and more."""
    NEIGHBOURS = "neighbours"
    """Each point against the one before it, as `ampbench compare` decides on their runs: a time, fewer points."""
    EXACT = "exact"
    """Luck has no part in the metric: every difference beyond the gate's tolerance."""
    NONE = "none"
    """Changes were not looked for; `Series.unjudged` says why."""


class Unjudged(StrEnum):
    """Why changes were not looked for in a series of two points and more."""

    NO_ASV = "no-asv"
    """It is long, and asv's step detection is not installed."""
    NO_NOISE = "no-noise"
    """Neither rounds nor intervals tell how noisy its points are."""


class LeftOut(StrEnum):
    """Why a run is at no place of an axis."""

    NO_VERSION = "no-torch-version"
    UNREADABLE = "an-unreadable-torch-version"
    NO_COMMIT = "no-commit"
    OTHER_COMMIT = "another-commit"
    """Over versions of torch the commit is held fixed."""


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
    there is none. `each` is what the runs say, one by one. A point that has no `value` has a `gap`; it may be one
    that was measured (`runs`) and is not finite.
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
        """What disturbed all of its runs, so that it is not judged; "" where one of them was not."""
        return self.each[-1].disturbed if self.each and all(one.disturbed for one in self.each) else ""

    @property
    def undefined(self) -> bool:
        """Whether the error was measured and is no number, because something is not finite."""
        return self.gap is not None and self.gap.lack is Lack.UNDEFINED


class Commits(NamedTuple):
    """What leads from commit `before` to `after`: the number of commits, the subject of `after`; None: not known."""

    before: str | None
    after: str | None
    subject: str | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point: `x` is that of the first point after it, `last` that of the last point of the level before it.

    `before` and `after` are the levels on both sides, in the unit of the metric, None where it is undefined. `ratio` is
    after / before, None where before is 0 or either is undefined; `low` and `high` are its 95% interval where a
    comparison of two runs has one. `moved` are the facts of an fp64 result that moved: errors on both sides are of
    different functions, whatever their sizes. The runs on both sides differ in `differences` and in their `commits`.
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
    commits: Commits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One metric of one case at one place, a point per x of that place, gaps among them.

    `numbers` tells apart series of one case, metric and place: for errors the digests of weights and inputs, for memory
    who counted. `rule` says how changes were looked for, `unjudged` why they were not.
    """

    case: Case
    metric: Tracked
    place: Place
    numbers: str = ""
    points: Sequence[Point]
    changes: Sequence[Change] = ()
    rule: Rule = Rule.NONE
    unjudged: Unjudged | None = None

    @property
    def key(self) -> tuple[Place, str, int, str, str]:
        """What no two series of a trend share: place, case id, the workload's version, metric and `numbers`."""
        return self.place, self.case.case_id, self.case.version, self.metric.name, self.numbers

    @property
    def measured(self) -> list[Point]:
        """The points that have a value; there is at least one."""
        return [point for point in self.points if point.value is not None]

    @property
    def values(self) -> list[float | None]:
        """The values of the points, gaps among them."""
        return [point.value for point in self.points]

    @property
    def known(self) -> list[float]:
        """The values that there are, at least one."""
        return [value for value in self.values if value is not None]

    @property
    def disturbed(self) -> dict[int, str]:
        """What disturbed the points that are not judged for it, by their places."""
        return {place: point.disturbed for place, point in enumerate(self.points) if point.disturbed}

    @property
    def total(self) -> float | None:
        """The last value over the first, 1 where both are 0; None where there is one alone, or only the first is 0."""
        values = self.known
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

    `runs` counts the runs used by place, `left_out` those without an x by why.
    """

    axis: str
    series: Sequence[Series]
    runs: Mapping[Place, int]
    shifts: Sequence[Shift] = ()
    left_out: Mapping[LeftOut, int] = field(default_factory=dict)
    lost: Sequence[Lost] = ()

    @cached_property
    def places(self) -> dict[Place, list[Series]]:
        """The series by place, in their order."""
        found: dict[Place, list[Series]] = {}
        for one in self.series:
            found.setdefault(one.place, []).append(one)
        return found
