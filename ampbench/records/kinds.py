"""The table of kinds of runs that explain or study; its rows are strings, so reading it imports no study.

A kind's name is in the headers of its runs (`Header.explains`) and on the command line, after "explain" or "study". Its
row lists the lines of its runs; its study module has the rest. Code that stores, lists or shows runs uses the rows and
names no kind: a new kind needs only a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

HEADROOM, ORIGIN, KEEP_FP32, CASTS, RULES = "headroom", "origin", "keep-fp32", "casts", "rules"
NONFINITE = "nonfinite"
"""Kinds of runs that explain (`Header.explains`): verbs of `ampbench explain`."""

TRAINING, SCOPE, INPUT_STORAGE, CEILINGS = "training", "scope", "input-storage", "ceilings"
"""Kinds of runs that study (`Header.explains`): verbs of `ampbench study`."""

CHECK = "check"
"""Runs of `ampbench check`, which is in no group."""
WATCH = "watch"
"""Trainings that `ampbench.watch` saw in a program: they have no verb."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a run file called `line`: records of the type `record`, as "module:Type".

    The field `of` names their case or device; the last line of each counts or, with `several`, all lines. A `beginning`
    is no result by itself.
    """

    line: str
    record: str
    several: bool = False
    of: str = "case_id"
    beginning: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run: `name` is its `Header.explains` and, after `group` ("explain", "study"), its verb.

    `lines` are the lines of such a run, results first; `contents` describes them, before a number of cases or the
    devices. `summary` is a line on its verb. With `resumed`, the verb can resume a run. `asks` are the records sent to
    its workers if it has several tasks (`records.wire.Task.asked`), as "module:name". `tasks` are the names of its
    workers' tasks (`records.wire.Task.name`), the stages of failures (empty: one task named like the kind).
    """

    name: str
    group: str
    contents: str
    lines: tuple[Lines, ...]
    summary: str
    asks: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    resumed: bool = False

    @property
    def study(self) -> str:
        """The place of the `Study` that defines the verb and shows its runs."""
        return f"ampbench.studies.{self.name.replace('-', '_')}:STUDY"

    @property
    def task_names(self) -> tuple[str, ...]:
        """The names of its workers' tasks."""
        return self.tasks or (self.name,)

    @property
    def found(self) -> Lines:
        """The lines of its results."""
        return self.lines[0]

    @property
    def of_cases(self) -> bool:
        """Whether its results are of cases, not of devices."""
        return self.found.of == "case_id"

    @property
    def together(self) -> bool:
        """Whether the results of a workload's cases on a device are judged together."""
        return self.of_cases and self.found.several


_ROWS = (
    Kind(
        HEADROOM, "explain", "the headroom of",
        (Lines("ranges", "ampbench.records.ranges:RangePass"),),
        summary="How large the values are: what would overflow, flush to zero or be swallowed in fp16 and bf16.",
        tasks=("ranges",),
    ),
    Kind(
        ORIGIN, "explain", "the origin of errors in", (Lines("origin", "ampbench.records.ranges:OriginPass"),),
        summary="Where the error of a precision begins: which module matters most, what each adds, what it inherits.",
    ),
    Kind(
        NONFINITE, "explain", "the first NaN or infinity in",
        (Lines("replay", "ampbench.studies.nonfinite:Replay"),),
        summary="Which op makes the first NaN or infinity of a step, from a checkpoint too: its module, and your line.",
    ),
    Kind(
        KEEP_FP32, "explain", "what to keep in fp32 in",
        (
            Lines("search", "ampbench.studies.keep_fp32:KeepSearch"),
            Lines("space", "ampbench.studies.keep_fp32:SearchSpace", beginning=True),
            Lines("trial", "ampbench.studies.keep_fp32:Trial", several=True),
        ),
        summary="A smallest set of modules to keep in fp32 so that an error budget is met, and what it costs.",
        asks=("ampbench.studies.keep_fp32:Limits", "ampbench.studies.keep_fp32:TrialAsked",
              "ampbench.studies.keep_fp32:Timing"),
        tasks=("space", "trial", "timing"),
        resumed=True,
    ),
    Kind(
        CASTS, "explain", "the casts of", (Lines("casts", "ampbench.records.casts:CastPass"),),
        summary="Every cast of a step: of what, for which op, what it costs, what could be saved.",
    ),
    Kind(
        TRAINING, "study", "trainings of",
        (Lines("training", "ampbench.studies.training:Training", several=True),),
        summary="Whether each precision, or setting of GradScaler, trains as fp32 does: real steps, several seeds.",
        resumed=True,
    ),
    Kind(
        SCOPE, "study", "the scope of autocast in",
        (Lines("scopes", "ampbench.studies.scope:ScopePass"),),
        summary="What entering autocast around more than forward and loss costs in time, memory and accuracy.",
        resumed=True,
    ),
    Kind(
        INPUT_STORAGE, "study", "the storage of the inputs of",
        (Lines("storage", "ampbench.studies.input_storage:StoragePass"),),
        summary="What storing inputs in half saves, and whether it loses anything.",
        resumed=True,
    ),
    Kind(
        RULES, "explain", "autocast's rules on",
        (Lines("rules", "ampbench.records.rules:RuleProbe", of="device"),),
        summary="What autocast does to each op, against what documents say of it.",
        resumed=True,
    ),
    Kind(
        CEILINGS, "study", "the ceilings of",
        (Lines("ceiling", "ampbench.studies.ceilings:Ceiling", several=True, of="device"),),
        summary="What this device attains at best: FLOP/s of products, convolutions and attention, bandwidth.",
        resumed=True,
    ),
    Kind(
        CHECK, "", "known defects on",
        (Lines("checked", "ampbench.studies.check:Checked", several=True, of="device"),),
        summary="Which known defects of mixed precision this torch has here, each shown by a small program.",
        resumed=True,
    ),
    Kind(
        WATCH, "", "watched trainings on", (Lines("watched", "ampbench.studies.watch:Watched", of="device"),),
        summary="",
    ),
)  # fmt: skip
KINDS: Mapping[str, Kind] = MappingProxyType({row.name: row for row in _ROWS})
"""All kinds of runs that explain or study by name, in the order of a report's page and of verbs in the help."""
LINES: Mapping[str, Lines] = MappingProxyType({lines.line: lines for row in _ROWS for lines in row.lines})
"""All lines of such runs, by name."""


def stage_of(line: str) -> str:
    """Return the task that a failure to write such a line names: the task with its name, else the kind's last."""
    row = next(row for row in KINDS.values() if any(lines.line == line for lines in row.lines))
    return line if line in row.task_names else row.task_names[-1]


def named(place: str) -> Any:
    """Return the object at "module:name", importing its module."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def verb_of(explains: str) -> str:
    """Return the command that makes runs of a kind (`Header.explains`): "explain casts", "study scope", "run"."""
    return f"{KINDS[explains].group} {explains}".strip() if explains else "run"


def deed_of(explains: str) -> str:
    """Return the verb for a run of a kind, to follow its name: "explains casts", "studies scope"."""
    if not explains:
        return "measures"
    if explains == WATCH:
        return "watched a training"
    deed = {"explain": "explains", "study": "studies"}.get(KINDS[explains].group, "is one of ampbench")
    return f"{deed} {explains}"
