"""The lines of a run file, and the options of a run."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from ampbench.records import Count, RoundCount, Seconds, check_time, one_of
from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.kinds import KINDS
from ampbench.records.measured import Divergence, Failure, Late, MemoryPass, Reading, Round, Skip

SCHEMA = 8
"""The version of the run file's format; files of another version are refused.

The first change of fields or kinds of lines since a release raises it."""

SUFFIX, COMPRESSED = ".jsonl", ".jsonl.gz"
"""The suffixes of run files."""

LATEST = "latest"
"""The name of the newest run of a folder that measured."""

DIRTY = "-dirty"
"""git's suffix of a commit with uncommitted changes."""
_SHORT = 7
"""The number of digits of a commit that git shows."""


def is_path(name: str) -> bool:
    """Return whether the name of a run is the path of a file, not an id."""
    return "/" in name or name.endswith((SUFFIX, ".gz"))


def short_commit(commit: str) -> str:
    """Return a commit as git shortens it, with its mark."""
    base = commit.removesuffix(DIRTY)
    return base[:_SHORT] + commit[len(base) :]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A user's selection as typed; empty means the default. `recipes` are spelled as `find_recipe` reads them.

    `overrides` and `sweeps` are of parameters of networks, and of `records.case.OF_CASES`.
    """

    workloads: list[str] = []
    precisions: list[str] = []
    devices: list[str] = []
    phases: list[str] = []
    paths: list[str] = []
    preset: str = ""
    overrides: dict[str, ParameterValue] = {}
    sweeps: dict[str, list[ParameterValue]] = {}
    recipes: list[str] = []


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a run measures: counts, times in seconds, sizes in bytes; `threads` 0 is torch's own choice.

    A network gets as many of the `rounds` as fit into `budget_seconds`, at least one; None: all of them; 0, never in a
    header: the budget of `drive.rounds.budgeted`.
    """

    rounds: RoundCount = 4
    builds: RoundCount = 3
    min_run_seconds: Seconds = 0.08
    timeout_seconds: Seconds = 300.0
    memory_limit_bytes: Count | None = None
    budget_seconds: Seconds | None = None
    threads: Count = 0
    seed: int = 0
    schedule_seed: int = 0
    isolation: bool = True


class Arm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The arm of a run in an interleaved comparison; runs of one `session` were measured in the same blocks.

    A round has the number of its block, and the baseline's control rounds are the arm A′. `name` is "baseline" or
    "candidate", `given` is the text typed for this arm, `settings` its NAME=VALUE parts.
    """

    session: str
    name: str
    given: list[str] = []
    settings: dict[str, str] = {}


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The part of a plan that a run measured: the cases at these `places`, from 0, of the plan's `cases`.

    It is number `number` of `count`, from 1. `plan` is the digest of the ids of all cases.
    """

    number: Count
    count: Count
    plan: str
    cases: Count
    places: list[Count]


EACH, SPREAD = ON = ("each", "spread")
"""Whether every lane of a fleet measures every case, or lanes of one kind share the cases."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The `lane` of a fleet that measured a run; the ids of a fleet's runs end in its `id`."""

    id: str
    lane: str
    on: Annotated[str, one_of(*ON)] = EACH


class Imported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The `program` ("asv", "pytest-benchmark") that measured a run, and the name of its `file`."""

    program: str
    file: str


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first line of a run file.

    `commit` is the commit of the measured repository, `committed_at` its time (ISO 8601). `explains` is a name of
    `records.kinds.KINDS`, with its options in `asked`; "": the run measures. `precisions` are the user's own. `arm`,
    `imported`, `shard` and `fleet` are set for such runs; `merged` are the ids of the runs it was merged from.
    """

    schema: Count
    run: str
    ampbench_version: str
    started_at: str
    label: str = ""
    commit: str | None = None
    command: list[str] = []
    selection: Selection
    settings: Settings
    sources: list[WorkloadSource] = []
    environment: Environment
    arm: Arm | None = None
    committed_at: str | None = None
    imported: Imported | None = None
    explains: str = ""
    asked: dict[str, Any] | None = None
    precisions: list[OwnPrecision] = []
    shard: Shard | None = None
    fleet: Fleet | None = None
    merged: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid time."""
        check_time("started_at", self.started_at)
        if self.committed_at is not None:
            check_time("committed_at", self.committed_at)

    @property
    def goes_on(self) -> bool:
        """Whether its verb can resume the run; `ab` measures both arms anew."""
        return self.arm is None and (not self.explains or KINDS[self.explains].resumed)

    @property
    def in_program(self) -> bool:
        """Whether a Python program measured, by `ampbench.measure`."""
        return self.command[:1] == [MEASURE]

    @property
    def longer(self) -> str:
        """The setting for more rounds: `--rounds` if it was given, else the budget."""
        budget = "budget=" if self.in_program else "--budget"
        return "--rounds" if self.settings.budget_seconds is None else budget


MEASURE = "ampbench.measure"
"""The command of a run that a Python program measured."""

ENDINGS = ("complete", "interrupted", "out of time")
"""How a session can end."""


class Footer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The last line of a session; a resumed run has several."""

    ended: Annotated[str, one_of(*ENDINGS)]
    finished_at: str

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid time."""
        check_time("finished_at", self.finished_at)


Entry = msgspec.Struct
"""A line after the header: a record of `CORE`, or of a row of `records.kinds`."""

CORE: Mapping[str, type] = MappingProxyType(
    {
        "header": Header,
        "case": Case,
        "round": Round,
        "memory": MemoryPass,
        "divergence": Divergence,
        "late": Late,
        "failure": Failure,
        "skip": Skip,
        "reading": Reading,
        "footer": Footer,
    }
)
"""The lines of all run files by name; `records.kinds` has further ones of runs that explain or study."""
