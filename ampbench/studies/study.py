"""A study: data and a few functions, from which all output is made, and how steps timed side by side compare.

A study is one module of this package, NAME.py, which never imports torch; a module on torch's side measures. It holds:

* the record that a run stores, a `msgspec.Struct` (its line is named by the row in `records.kinds.KINDS`);
* the record of a request: its fields, with `asks`, make the options of the verb, the header and the request;
* `tables`: each a key, columns and the rows of a record; the first is the CSV, all are in the JSON, and people read
  those with a title;
* `conclusions`: most important first, as `Statement`s of codes and facts, never sentences: the words of a code are one
  line in `show/studies.py`;
* at most two `charts`, made of the same records;
* `STUDY = Study(...)`, which is found by the row in `KINDS` that has the name.

Terminal, Markdown, JSON, CSV and the part of the page are made of that by `show.studies`; no study renders anything.
The module may import records, core, `show.document` and `show.charts`, but `drive` only within functions: every worker
reads it.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import structs

from ampbench.core.precisions import AUTOCAST
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import one_of, parse_seconds
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import DEVICES, Case
from ampbench.records.kinds import KINDS, named, verb_of
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, Failure, Fitness
from ampbench.records.rules import DEVICE
from ampbench.records.run import Entry, Header, Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.document import Column

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.session import Prepared
    from ampbench.show.charts import Drawing
    from ampbench.show.studies import Subject
    from ampbench.store import StoredRun
    from ampbench.studies.work import Piece, Work

A = TypeVar("A")
"""The request of a study beyond selection and settings: a record that the header of a run keeps."""
R = TypeVar("R")
"""The stored record of a case, or a list of records where a run has several of a case."""
T = TypeVar("T")
"""A row of a table."""
AUTOCAST_HELP = "See ampbench list precisions. Default: autocast to the device's default dtype."
PHASE_HELP = {
    True: "inference or training. Default: training, where there is a loss and an optimizer.",
    False: "inference or training. Default: both, where there is a loss.",
}
ANY_DEVICE = f"{one_of(DEVICES)}, here or not. Default: all."


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb: `--` and its `name`, its `default`, which also gives its type, and its `help`.

    `least` and `most` bound a number. One of `seconds` is typed as a duration, "90" or "2m"; one of `names` is typed
    once for each, or with commas, and is a list, `among` these names of a `kind` (none: any); with `argument` without
    any option before it.
    """

    name: str
    default: Any
    help: str
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    seconds: bool = False
    names: bool = False
    among: Sequence[str] = ()
    kind: str = ""
    argument: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selects:
    """Which cases a study is for.

    Where no workload is named, `workloads` are taken; where no phase is, `phases` or, with `one_phase`, training where
    there is a loss and an optimizer, else inference. Precisions must be `among` these (none: all); a user's own are
    allowed with `own_precisions`. `tried` gives the precisions of the cases from those selected (`AUTOCAST`: that to
    each device's default dtype), without times also `emulated` ones. `precision` is the help of its option. Graphs of
    `paths` are read as well as eager mode; without these its verb has no `--path`, and with `phases` no `--phase`.
    `absent` devices skip no case.
    """

    precision: str = AUTOCAST_HELP
    paths: Sequence[str] = ()
    workloads: Sequence[str] = ()
    phases: Sequence[str] = ()
    one_phase: bool = True
    among: Sequence[str] = ()
    own_precisions: bool = False
    tried: Callable[[Sequence[str]], Sequence[str]] = lambda selected: selected or AUTOCAST
    emulated: bool = False
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[A]):
    """A running study: its plan and request, and the run `begun` before that it continues.

    `keep` stores an entry of a piece of work before that piece is done.
    """

    prepared: "Prepared"
    asked: A
    begun: "StoredRun | None" = None
    keep: "Callable[[Piece, Entry], None]" = lambda *_: None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevices(Generic[A, R]):
    """How a study of devices, not of cases, fills the records that are its parts.

    `request` gives what the task of each is asked, by default in that many `threads`; None leaves it as it is. Where no
    worker lived to answer it is `unanswered`. Servers `preload` the modules that many requests need. `help` replaces
    the usual text of `--device`.
    """

    request: Callable[[A, R], Any]
    unanswered: Callable[[R, Failure], R] = lambda blank, failure: structs.replace(blank, error=failure.said)  # type: ignore[type-var]
    threads: int = 0
    preload: Sequence[str] = ()
    help: str = ""


@dataclass(frozen=True, slots=True)
class Table(Generic[R, T]):
    """Rows of a record: `key` is the table's name for machines ("": people only), `title` for people ("": machines).

    `note` explains the title. People read the columns of the `keys`, separated by blanks (none: all), of the rows that
    `only` selects. A `folded` table is shown by -v alone; a reader unfolds it on a page.
    """

    key: str
    columns: Sequence[Column[T]]
    rows: Callable[[R], Sequence[T]]
    title: str = ""
    note: str = ""
    keys: str = ""
    only: Callable[[T], bool] = lambda _: True
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[A, R]):
    """A study: `kind` is its name in `KINDS`, `doing` what progress calls its work ("tracing").

    Of its verb, `help` is the text; the fields of `asked`, the record of a request, are its options. A piece of its
    work may take `timeout`.

    The cases of a selection are planned after `refined` has looked at it; a study `on_devices` has none. Its `parts`,
    by default the cases, are done one after another; the fields `apart` tell them apart, which the stored records have,
    too. It raises `NothingToRunError` where there are none. Each part is a `request` of the `task`, or done by the
    function that `work` makes. A stored record may say that it `failed`, and an entry of a piece at work the
    `progress`.

    Output is made of `tables`, `conclusions` and `charts` of the stored `record`s, or of the records that `told`
    returns by case or device. `heading` stands behind the name of a case, else the record's own name;
    `remarks` are notes of the measuring; `code` is Python to paste by the tool it is for, the most usual first. `title`
    heads its part of a page, `key` names its records in the JSON (none: as their lines). One whose `subject` is no case
    has `subjects`, which finds them in runs, each with a `name`, of certain cases (None:
    all): tables, conclusions (of None) and charts are made of these.
    """

    kind: str
    doing: str
    help: str
    task: Task[Any, Any] | None = None
    request: "Callable[[Session[A], PlannedCase], Any]" = lambda session, _: session.asked
    work: "Callable[[Session[A]], Work] | None" = None
    timeout: str = f"{Settings().timeout_seconds:g}"
    selects: Selects | None = None
    refined: Callable[[Selection, A], Selection] = lambda selection, _: selection
    on_devices: OnDevices[A, Any] | None = None
    parts: "Callable[[Prepared | Header, Sequence[Case], A], Sequence[Any]]" = lambda _, cases, __: cases
    apart: Sequence[str] = ("case_id",)
    failed: Callable[[Any], bool] = lambda _: False
    progress: Callable[[Entry], str] = lambda _: ""
    asked: type[A]
    told: "Callable[[StoredRun], Mapping[str, R]] | None" = None
    tables: Sequence[Table[R, Any]]
    conclusions: Callable[[Any, R], Iterable[Statement]]
    heading: Callable[[R], str] = lambda record: str(getattr(record, "name", ""))
    remarks: Callable[[R], Sequence[str]] = lambda record: getattr(record, "notes", [])
    code: Callable[[Any, R], Mapping[str, str]] = lambda *_: {}
    subject: str = "case"
    title: str
    subjects: "Callable[[Iterable[StoredRun], Collection[str] | None], Sequence[R]] | None" = None
    key: str = ""
    charts: "Sequence[Drawing[Subject[R]]]" = ()

    @property
    def record(self) -> type[Any]:
        """The type of the stored results."""
        kind: type[Any] = named(KINDS[self.kind].found.record)
        return kind


def asks(help: str, *, least: float | None = None, most: float | None = None, **option: Any) -> msgspec.Meta:
    """Return the annotation that makes a field of a request an option: its help, bounds and fields of `Option`."""
    return msgspec.Meta(description=help, ge=least, le=most, extra=option)


def options_of(study: Study[Any, Any]) -> Sequence[Option]:
    """Return the options of a study's own: the fields of its request with `asks`."""
    from msgspec import inspect

    options = []
    for field in inspect.type_info(study.asked).fields:  # type: ignore[attr-defined]
        kind = field.type
        if not isinstance(kind, inspect.Metadata):
            continue
        extra = kind.extra or {}
        default = f"{field.default:g}" if extra.get("seconds") else None if extra.get("names") else field.default
        text = (kind.extra_json_schema or {})["description"]
        least, most = (getattr(kind.type, end, None) for end in ("ge", "le"))
        options.append(Option(name=field.name, default=default, help=text, least=least, most=most, **extra))
    return options


def study_of(kind: str) -> Study[Any, Any]:
    """Return the study of a kind of run."""
    study: Study[Any, Any] = named(KINDS[kind].study)
    return study


SELECTING = ("targets", "optimizer", "precisions", "device", "phase")
GIVEN = ("inputs", "loss", *SELECTING)
"""Arguments that programs give every study in addition to its own options."""


def asked_for(study: Study[A, Any], given: Mapping[str, Any]) -> A:
    """Return the request of a study from options by name, others by default; `UsageError` for invalid ones."""
    known = {option.name: option for option in options_of(study)}
    for name in given:
        if name not in known:
            raise UnknownNameError(f"option of {verb_of(study.kind)}", name, [*known, *GIVEN])
    return study.asked(**{name: _value(option, given.get(name, option.default)) for name, option in known.items()})


def _value(option: Option, value: Any) -> Any:
    """Return the value of an option as its request holds it."""
    if option.names:
        names = [value] if isinstance(value, str) else [*(value or ())]
        return chosen(option.kind or option.name, names, option.among) if option.among else names
    kind = float if option.seconds else type(option.default)
    bounds = msgspec.Meta(gt=0) if option.seconds else msgspec.Meta(ge=option.least, le=option.most)
    meant = Annotated[kind, bounds] if bounds != msgspec.Meta() else kind
    try:
        seconds = parse_seconds(value) if option.seconds and isinstance(value, str) else value
        return msgspec.convert(seconds, meant)
    except (UsageError, msgspec.ValidationError) as error:
        raise UsageError(f"{option.name}={value!r}: {error}") from None


def chosen(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the names given, each once; `UnknownNameError` for one that is not known."""
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, known)
    return list(dict.fromkeys(names))


def info(code: StrEnum, subject: str = "", /, **facts: float | str | None) -> Statement:
    """Return a statement of severity info with the facts that are not None."""
    return state(code, subject, Severity.INFO, **facts)


def advise(code: StrEnum, subject: str = "", /, **facts: float | str | None) -> Statement:
    """Return a statement of advice with the facts that are not None."""
    return state(code, subject, Severity.ADVICE, **facts)


@dataclass(frozen=True, slots=True)
class Torch(Generic[R]):
    """The last results with a torch by device: accelerators that are here, the CPU, then absent devices."""

    name: str
    results: Sequence[R]


def torches(runs: "Iterable[StoredRun]", results_of: "Callable[[StoredRun], Mapping[Any, R]]") -> list[Torch[R]]:
    """Return the results of runs by torch; a later result replaces an earlier one with its key."""
    by_torch: dict[str, dict[Any, R]] = {}
    for run in runs:
        if results := results_of(run):
            by_torch.setdefault(run.header.environment.torch_version, {}).update(results)
    return [Torch(f"torch {version}", here_first(results.values())) for version, results in by_torch.items()]


def here_first(results: Iterable[Any]) -> list[Any]:
    """Return results by device: accelerators of this machine, the CPU, then absent devices."""
    results = list(results)
    here = {result.device for result in results if result.how == DEVICE}
    return sorted(results, key=lambda result: (result.device not in here, result.device == "cpu"))


def average(values: Iterable[float | None], how: Callable[[list[float]], float] = statistics.fmean) -> float | None:
    """Return the mean, or another average by `how`, of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return how(known) if known else None


WIDEST = 3.0
"""Above this factor between builds of one step, its time is unknown: the median may be off by as much as precisions
differ."""

ALPHA = 0.025
"""The one-sided level of each end of a 95% interval."""


class Ratio(NamedTuple):
    """How many times as long one step takes as another; `low` to `high` is the 95% interval.

    They are None where there are not builds enough, or noisy ones.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def facts(self) -> dict[str, float | None]:
        """The ratio and its interval as facts of a statement."""
        return {"ratio": self.value, "low": self.low, "high": self.high}


def step_seconds(builds: Sequence[Sequence[float]]) -> float | None:
    """Return the seconds of a step, the median over the values of its builds.

    None where it was not timed, or its builds differ so much that this says nothing.
    """
    from ampbench.core import stats

    if not builds or not all(builds):
        return None
    worth = [min(build) for build in builds]
    return None if max(worth) > WIDEST * min(worth) else stats.median(worth)


def ratio_of(after: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> Ratio:
    """Return how many times as long `after` takes as `before`, each the samples of builds that stood in pairs."""
    import numpy as np

    from ampbench.core import stats

    logs = [math.log(min(new) / min(old)) for new, old in zip(after, before, strict=False)]
    ranks = stats.signed_ranks(np.array([logs]), (ALPHA,))
    value, low, high = (math.exp(bound[0]) for bound in (ranks.estimates, ranks.lows[0], ranks.highs[0]))
    certain = 0 < low <= high < math.inf and step_seconds(after) is not None and step_seconds(before) is not None
    return Ratio(value, low, high) if certain else Ratio(value)


def short_ratio(ratio: Ratio) -> str:
    """Return "1.04x 1.02–1.06", the 95% interval behind the ratio, where it is known."""
    between = "" if ratio.low is None or ratio.high is None else f" {ratio.low:.2f}–{ratio.high:.2f}"
    return f"{ratio.value:.2f}x{between}"


class Timing(StrEnum):
    """What a change does to the time of a step."""

    FASTER = "timing-faster"
    SLOWER = "timing-slower"
    SAME = "timing-same"
    """No certain difference."""
    NOISY = "timing-noisy"
    BUSY = "timing-busy"
    """The machine was busy: times are not judged."""


def unfit(fitness: Fitness) -> float | None:
    """Return the share of CPU time that others took while something was timed, if it is enough to spoil its times."""
    others, steal = fitness.other_share or 0.0, fitness.steal_share or 0.0
    return max(others, steal) if others > OTHER_SHARE or steal > STEAL_SHARE else None


def busy(fitness: Fitness) -> Statement | None:
    """Return the statement that the machine was too busy for reliable times; None where it was not."""
    share = unfit(fitness)
    return None if share is None else advise(Timing.BUSY, share=share)


def compared_steps(
    unchanged: Sequence[Sequence[float]], changed: Sequence[Sequence[float]], fitness: Fitness
) -> list[Statement]:
    """Return the effect of a change on the time of a step, from builds in pairs; nothing where none was timed."""
    spoilt = busy(fitness)
    if spoilt is not None or not unchanged or not changed:
        return [spoilt] if spoilt is not None else []
    before, after = step_seconds(unchanged), step_seconds(changed)
    if before is None or after is None:
        return [info(Timing.NOISY, widest=WIDEST)]
    ratio = ratio_of(changed, unchanged)
    faster, slower = (ratio.high or math.inf) < 1, (ratio.low or 0.0) > 1
    code = Timing.FASTER if faster else Timing.SLOWER if slower else Timing.SAME
    return [info(code, before=before, after=after, **ratio.facts)]
