"""The lines of a run file, and what a run was asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ampbench.records.case import Case, Environment, OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.casts import CastPass
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial
from ampbench.records.measured import Divergence, Failure, MemoryPass, Reading, Round, Skip
from ampbench.records.ranges import OriginPass, RangePass
from ampbench.records.rules import RuleProbe
from ampbench.records.studies import Ceiling, ScalerRun, ScalerSetting, ScopePass, StoragePass, Training

SCHEMA = 7
"""The version of the run file's format; a file of a later one is refused.

2 added the arm of an interleaved comparison (`Header.arm`, `Round.confirmation`), `Fitness.other_share` and
`Divergence.repeatable`. 3 added imported runs (`Header.imported`, `Reading`), `Header.committed_at`, and None for what
an imported environment does not tell. 4 added explanations: `CastPass`, `RuleProbe` and `Header.explains`. 5 added
`RangePass`, `OriginPass`, and what a search for modules to keep in fp32 sees. 6 added studies and `MemoryPass.flops`.
7 added what a divergence pass tells of its reference, what a round tells of changes in place, of its CPU time and of
how fp32 products are rounded, `Header.precisions`, `Settings.keep_flags`, `WorkloadSource.switches` and `elsewhere`,
which heap times were measured in and what page faults the plain one costs.
Files of an earlier schema lack these and are read as they are.
"""

SUFFIX, COMPRESSED = ".jsonl", ".jsonl.gz"
"""How the names of run files end."""

LATEST = "latest"
"""What the newest run of a folder that measured is called; one that only explains is named by its id."""

CASTS, RULES, HEADROOM, ORIGIN, KEEP_FP32 = "casts", "rules", "headroom", "origin", "keep-fp32"
"""What a run can explain (`Header.explains`): each is a verb of `ampbench explain`."""

CONVERGENCE, SCALER, SCOPE, INPUT_STORAGE, CEILINGS = STUDIES = (
    "convergence",
    "scaler",
    "scope",
    "input-storage",
    "ceilings",
)
"""What a run can study (`Header.explains`): each is a verb of `ampbench study`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What runs that explain or study hold: lines called `line`, which a `StoredRun` has as its `field`.

    They are of cases, of which the last of each counts or, with `several`, all; or of device types. `contents` says
    what they are before a number of cases or the devices.
    """

    line: str
    field: str
    contents: str
    several: bool = False
    of_cases: bool = True


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        CASTS: Kind("casts", "casts", "the casts of"),
        HEADROOM: Kind("ranges", "ranges", "the headroom of"),
        ORIGIN: Kind("origin", "origins", "the origin of errors in"),
        KEEP_FP32: Kind("search", "searches", "what to keep in fp32 in"),
        CONVERGENCE: Kind("training", "convergence", "the convergence of", several=True),
        SCALER: Kind("scaling", "scaler", "the loss scaling of", several=True),
        SCOPE: Kind("scopes", "scope", "the scope of autocast in"),
        INPUT_STORAGE: Kind("storage", "input_storage", "the storage of the inputs of"),
        RULES: Kind("rules", "rules", "autocast's rules on", of_cases=False),
        CEILINGS: Kind("ceiling", "ceilings", "the ceilings of", of_cases=False),
    }
)
"""Every kind of run (`Header.explains`) that explains or studies."""

RESUMED = frozenset({KEEP_FP32, *STUDIES})
"""Kinds of runs that their own verbs go on with."""

DIRTY = "-dirty"
"""What a commit ends in where files differed from it, as git marks it."""
_SHORT = 7
"""As many digits of a commit as git itself shows."""


def is_path(name: str) -> bool:
    """Return whether who names a run by `name` gives a file's path, not an id."""
    return "/" in name or name.endswith((SUFFIX, ".gz"))


def verb_of(explains: str) -> str:
    """Return the command that makes runs of a kind (`Header.explains`): "explain casts", "study scope", "run"."""
    return f"{'study' if explains in STUDIES else 'explain'} {explains}" if explains else "run"


def deed_of(explains: str) -> str:
    """Return what a run of a kind does, as a verb to put after its name: "explains casts", "studies scope"."""
    return f"{'studies' if explains in STUDIES else 'explains'} {explains}" if explains else "measures"


def short_commit(commit: str) -> str:
    """Return a commit as git shortens it, with its mark where files differed from it."""
    base = commit.removesuffix(DIRTY)
    return base[:_SHORT] + commit[len(base) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a user selected, as typed and resolved against nothing; empty means the default."""

    workloads: list[str] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    memory_formats: list[str] = field(default_factory=list)
    keyword: str = ""
    preset: str = ""
    overrides: dict[str, ParameterValue] = field(default_factory=dict)
    sweeps: dict[str, list[ParameterValue]] = field(default_factory=dict)
    scaler: bool = True


KEPT, PLAIN = HEAPS = ("kept", "plain")
"""What becomes of memory that a step frees on a CPU: it stays in the process, or glibc does as it would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a run measures: counts, times in seconds, sizes in bytes; `threads` 0 leaves torch's own choice.

    `heap` is one of `HEAPS`: which one times are measured in. With `keep_flags` torch's switches stay as the user's own
    code sets them, but for those that define a precision; the precision `default` has all of them.
    """

    rounds: int = 4
    builds: int = 3
    min_run_seconds: float = 0.08
    timeout_seconds: float = 300.0
    memory_limit_bytes: int | None = None
    max_seconds: float | None = None
    threads: int = 0
    seed: int = 0
    schedule_seed: int = 0
    isolation: bool = True
    heap: str = KEPT
    keep_flags: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a study was asked for beyond selection and settings; 0 and empty where it does not apply.

    `steps` of each training, from each of `seeds` seeds or with each of the scaler's `settings`; the `schedule` of the
    learning rate ("": the workload's own); `seconds` for each measurement; the `operations` and `dtypes` of which
    ceilings are measured.
    """

    steps: int = 0
    seeds: int = 0
    schedule: str = ""
    seconds: float = 0.0
    operations: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    settings: list[ScalerSetting] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Which arm of an interleaved comparison a run is; runs of one `session` were measured in the same blocks.

    The number of a round is that of its block, and the baseline's control rounds are the arm A′. `name` is "baseline"
    or "candidate", `given` what was typed for this arm, `settings` those of it that are NAME=VALUE.
    """

    session: str
    name: str
    given: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Which `program` ("asv", "pytest-benchmark") measured a run, and the name of the `file` it was read from."""

    program: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line of a run file.

    `commit` is that of the repository measured, `committed_at` its time (ISO 8601). `arm` is set where the run is one
    arm of an interleaved comparison, `imported` where another program measured it. `explains` is what it explains
    or studies (`CASTS` and the others); "": the run measures. `asked` is set in studies. `follows` is the id of the run
    that was the latest by its name when this one was begun, where the clock makes this one look older (None: it does
    not). `precisions` are the user's own that its cases are in.
    """

    schema: int
    run: str
    ampbench_version: str
    started_at: str
    label: str = ""
    commit: str | None = None
    command: list[str] = field(default_factory=list)
    selection: Selection
    settings: Settings
    sources: list[WorkloadSource] = field(default_factory=list)
    environment: Environment
    arm: Arm | None = None
    committed_at: str | None = None
    imported: Imported | None = None
    explains: str = ""
    asked: Asked | None = None
    follows: str | None = None
    precisions: list[OwnPrecision] = field(default_factory=list)


ENDINGS = ("complete", "interrupted", "out of time")
"""How a session can end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The last line of a session; `ended` is one of `ENDINGS`. A resumed run has several."""

    ended: str
    finished_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a run file: exactly one field is set, and names the line's kind."""

    header: Header | None = None
    case: Case | None = None
    round: Round | None = None
    memory: MemoryPass | None = None
    divergence: Divergence | None = None
    failure: Failure | None = None
    skip: Skip | None = None
    reading: Reading | None = None
    casts: CastPass | None = None
    rules: RuleProbe | None = None
    ranges: RangePass | None = None
    origin: OriginPass | None = None
    space: SearchSpace | None = None
    trial: Trial | None = None
    search: KeepSearch | None = None
    training: Training | None = None
    scaling: ScalerRun | None = None
    scopes: ScopePass | None = None
    storage: StoragePass | None = None
    ceiling: Ceiling | None = None
    footer: Footer | None = None


Explanation = CastPass | RuleProbe | RangePass | OriginPass | SearchSpace | Trial | KeepSearch
Study = Training | ScalerRun | ScopePass | StoragePass | Ceiling
Entry = Case | Round | MemoryPass | Divergence | Failure | Skip | Reading | Explanation | Study | Footer
"""What may follow the header."""
