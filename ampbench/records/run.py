"""The lines of a run file, and what a run was asked to do."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from ampbench.records.bounds import Count, Magnitude, RoundCount, Seconds, one_of
from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.kinds import KINDS
from ampbench.records.measured import Divergence, Failure, MemoryPass, Reading, Round, Skip

SCHEMA = 8
"""The version of the run file's format: a file of another is refused.

The first field or kind of line that is added or removed since a release raises it; others until the next come with it.
"""

SUFFIX, COMPRESSED = ".jsonl", ".jsonl.gz"
"""How the names of run files end."""

LATEST = "latest"
"""What the newest run of a folder that measured is called; one that only explains is named by its id."""

DIRTY = "-dirty"
"""What a commit ends in where files differed from it, as git marks it."""
_SHORT = 7
"""As many digits of a commit as git itself shows."""


def is_path(name: str) -> bool:
    """Return whether who names a run by `name` gives a file's path, not an id."""
    return "/" in name or name.endswith((SUFFIX, ".gz"))


def short_commit(commit: str) -> str:
    """Return a commit as git shortens it, with its mark where files differed from it."""
    base = commit.removesuffix(DIRTY)
    return base[:_SHORT] + commit[len(base) :]


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a user selected, as typed and resolved against nothing; empty means the default.

    `recipes` are spelled as `find_recipe` reads them; each of `compile_modes` is measured where the path is "compiled",
    which is the default where there are any.
    """

    workloads: list[str] = []
    precisions: list[str] = []
    devices: list[str] = []
    phases: list[str] = []
    paths: list[str] = []
    memory_formats: list[str] = []
    keyword: str = ""
    preset: str = ""
    overrides: dict[str, ParameterValue] = {}
    sweeps: dict[str, list[ParameterValue]] = {}
    scaler: bool = True
    recipes: list[str] = []
    sdpa: list[str] = []
    compile_modes: list[str] = []


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a run measures: counts, times in seconds, sizes in bytes; `threads` 0 leaves torch's own choice.

    With `burst` a round on an accelerator is its fastest
    sample, as on a CPU, in place of windows of a second. With `keep_flags` torch's switches stay as the user's own
    code sets them, but for those that define a precision; the precision `default` has all of them.
    """

    rounds: RoundCount = 4
    builds: RoundCount = 3
    min_run_seconds: Seconds = 0.08
    timeout_seconds: Seconds = 300.0
    memory_limit_bytes: Count | None = None
    max_seconds: Seconds | None = None
    threads: Count = 0
    seed: int = 0
    schedule_seed: int = 0
    isolation: bool = True
    keep_flags: bool = False
    burst: bool = False


class ScalerSetting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How losses are scaled: `torch.amp.GradScaler`'s own parameters, by their names, or not at all."""

    name: str
    enabled: bool = True
    init_scale: Magnitude = 65536.0
    growth_factor: Magnitude = 2.0
    backoff_factor: Magnitude = 0.5
    growth_interval: Count = 2000


class Arm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Which arm of an interleaved comparison a run is; runs of one `session` were measured in the same blocks.

    The number of a round is that of its block, and the baseline's control rounds are the arm A′. `name` is "baseline"
    or "candidate", `given` what was typed for this arm, `settings` those of it that are NAME=VALUE.
    """

    session: str
    name: str
    given: list[str] = []
    settings: dict[str, str] = {}


class Shard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Which part of a plan a run measured: the cases at these `places`, from 0, of the `cases` that the plan has.

    It is the `number`th of `count` (from 1). `plan` is the digest of the ids of all cases: shards of one plan have the
    same.
    """

    number: Count
    count: Count
    plan: str
    cases: Count
    places: list[Count]


EACH, SPREAD = ON = ("each", "spread")
"""Whether every lane of a fleet measures every case, or lanes of one kind share the cases."""
NODE, DEVICE = LANES = ("node", "device")
"""Whether a lane of a fleet is a whole node or one of its accelerators."""


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Which `lane` of a fleet measured a run; runs of one fleet have the same `id`, which their own ends in.

    `on` is one of `ON`, `lanes` of `LANES`; `labels` say which nodes of the cluster were to take part.
    """

    id: str
    lane: str
    on: Annotated[str, one_of(*ON)] = EACH
    lanes: Annotated[str, one_of(*LANES)] = NODE
    labels: dict[str, str] = {}


class Imported(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Which `program` ("asv", "pytest-benchmark") measured a run, and the name of the `file` it was read from."""

    program: str
    file: str


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first line of a run file.

    `commit` is that of the repository measured, `committed_at` its time (ISO 8601). `arm` is set where the run is one
    arm of an interleaved comparison, `imported` where another program measured it. `explains` is what it explains
    or studies (a name of `records.kinds.KINDS`); "": the run measures. `asked` is what that was
    asked for, the fields of the record that its row names (None: it does not say). `follows` is the id
    of the run that was the latest by its name when this one was begun, where the clock makes this one look older (None:
    it does not). `precisions` are the user's own that its cases are in. `shard` is set where the run measured a part of
    its plan, `fleet` where a lane of a fleet measured it; `merged` are the ids of the runs that it was made of.
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
    follows: str | None = None
    precisions: list[OwnPrecision] = []
    shard: Shard | None = None
    fleet: Fleet | None = None
    merged: list[str] = []

    @property
    def goes_on(self) -> bool:
        """Whether the verb that made the run goes on with it once it broke off; `ab` measures both arms anew."""
        return self.arm is None and (not self.explains or KINDS[self.explains].resumed)


ENDINGS = ("complete", "interrupted", "out of time")
"""How a session can end."""


class Footer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The last line of a session; `ended` is one of `ENDINGS`. A resumed run has several."""

    ended: Annotated[str, one_of(*ENDINGS)]
    finished_at: str


Entry = msgspec.Struct
"""What may follow the header, a line each: a record of `CORE`, or of a row of `records.kinds`."""

CORE: Mapping[str, type] = MappingProxyType(
    {
        "header": Header,
        "case": Case,
        "round": Round,
        "memory": MemoryPass,
        "divergence": Divergence,
        "failure": Failure,
        "skip": Skip,
        "reading": Reading,
        "footer": Footer,
    }
)
"""The lines of every run file, by their names; `records.kinds` has those of runs that explain or study."""
