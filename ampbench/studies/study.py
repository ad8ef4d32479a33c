"""A study: data and a few functions, from which all output is made.

A study is one module of this package, NAME.py, which never imports torch; where it measures much, NAME_measure.py does
that. It holds:

* the record that a run stores, a `msgspec.Struct` (its line is named by the row in `records.kinds.KINDS`);
* the record of what is asked for: its fields, with `asks`, make the options of the verb, the header and the request;
* `tables`: each a key, columns and the rows of a record; the first is the CSV, all are in the JSON, and people read
  those with a title;
* `conclusions`: what follows, most important first, as `Statement`s of codes and facts, never sentences: the words of
  a code are one line in `show/study_words.py`;
* at most two `charts`, made of the same records;
* `STUDY = Study(...)`, which is found by the row in `KINDS` that has the name.

Terminal, Markdown, JSON, CSV and the part of the page are made of that by `show.studies`; no study renders anything.
The module may import records, core, `show.document` and `show.charts`, but `drive` only within functions: every worker
reads it.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import structs

from ampbench.core.statement import Statement
from ampbench.core.units import parse_seconds
from ampbench.errors import UnknownNameError, UsageError
from ampbench.records.case import Case, Environment
from ampbench.records.kinds import KINDS, named, verb_of
from ampbench.records.measured import Failure
from ampbench.records.run import Entry, Header, Selection, Settings
from ampbench.records.wire import Task
from ampbench.show.document import Column

if TYPE_CHECKING:
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.servers import Channel
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
ALL_PRECISIONS_HELP = "See ampbench list precisions. Default: all."
ONE_PHASE_HELP = "inference or training. Default: training, where there is a loss and an optimizer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a verb: `--` and its `name`, its `default`, which also tells its type, and its `help`.

    `least` and `most` bound a number. One of `seconds` is typed as a duration, "90" or "2m"; one of `names` is typed
    once for each, or with commas, and is a list; with `argument` without any option before it.
    """

    name: str
    default: Any
    help: str
    metavar: str = ""
    least: float | None = None
    most: float | None = None
    seconds: bool = False
    names: bool = False
    argument: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selects:
    """Which cases a study is for; texts are the help of options, those with "" its verb does not have.

    Where no workload is named, `workloads` are taken; where no phase is, `phases` or, with `one_phase`, training where
    there is a loss and an optimizer, else inference. Precisions must be `among` these (none: all). Cases are `eager`,
    or of a path selected; a user's own precisions are allowed with `own_precisions`. With `recipes` its verb has
    `--optimizer`.
    """

    precision: str = ""
    phase: str = ""
    path: str = ""
    workloads: Sequence[str] = ()
    phases: Sequence[str] = ()
    one_phase: bool = False
    among: Sequence[str] = ()
    recipes: bool = False
    eager: bool = True
    own_precisions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of a verb: the values of its options by name, the `typed` ones, and the selection."""

    values: Mapping[str, Any]
    typed: Container[str]
    selection: Selection


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

    Of each its task is asked what `request` gives, by default in so many `threads`; None leaves it as it is. Where no
    worker lived to answer it is `unanswered`. The modules that servers `preload` are those that many requests need.
    """

    request: Callable[[A, R], Any]
    unanswered: Callable[[R, Failure], R] = lambda blank, failure: structs.replace(blank, error=failure.said)  # type: ignore[type-var]
    threads: int = 0
    preload: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[T]):
    """The part of a table for people: its `title`, the `keys` of its columns, separated by blanks (none: all).

    `only` selects rows. A `folded` table is shown by -v alone; a reader unfolds it on a page.
    """

    title: str
    keys: str = ""
    note: str = ""
    only: Callable[[T], bool] = lambda _: True
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[R, T]):
    """Rows of a record: `key` is its name for machines ("": people only), `views` are the parts for people."""

    key: str
    columns: Sequence[Column[T]]
    rows: Callable[[R], Sequence[T]]
    views: Sequence[View[T]] = ()


def shown(
    key: str, columns: Sequence[Column[T]], rows: Callable[[R], Sequence[T]], title: str, note: str = "", **view: Any
) -> Table[R, T]:
    """Return a table with one view; the arguments are fields of both."""
    return Table(key=key, columns=columns, rows=rows, views=[View(title=title, note=note, **view)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(Generic[A, R]):
    """A study: `kind` is its name in `KINDS`, `doing` what progress calls its work ("tracing").

    Of its verb, `help` is the text; its `options` are the fields of `asked`, the record of what is asked for, unless
    they are given, and what they give is `made` into that. A piece of its work may take `timeout`.

    `plan` finds the cases of a selection (None: those in autocast to the devices' default dtypes) after `refined` has
    looked at it. One `on_devices` has no cases. Its `parts`, by default the cases, are done one after another; of those
    of a case each has its `case_id`. What tells them apart are the fields of the names `apart`, which the records that
    a run stores have, too; it raises `NothingToRunError` where there are none. `work` makes what has a piece of work
    done; without it, each is asked for by the `task`. A stored record may say that it `failed`, and a piece at work how
    far it is, by its `progress`, told of what it saw.

    All that is shown is made of `tables`, `conclusions` and `charts`; `record` is what a run stores, which is `told` by
    case or device as it is or as that function makes it of a run. `heading` says what stands behind the name of a case,
    else the record's own name; `remarks` what the measuring noted, in sentences; `code` is Python to paste. `title`
    heads its part of a page, `key` is what its records are called in the JSON (none: as their lines are). One whose
    `subject` is no case has `subjects`, which finds in runs each of them, with a `name`, of certain cases (None: all):
    that is what tables, conclusions (of None) and charts are made of.
    """

    kind: str
    doing: str
    help: str
    task: Task[Any, Any] | None = None
    work: "Callable[[Session[A]], Work] | None" = None
    timeout: str = f"{Settings().timeout_seconds:g}"
    options: Sequence[Option] = ()
    made: Callable[[Given], A] | None = None
    selects: Selects | None = None
    refined: Callable[[Selection, A], Selection] = lambda selection, _: selection
    plan: "Callable[[Selection, A, Environment, Channel, Settings], list[PlannedCase]] | None" = None
    on_devices: OnDevices[A, Any] | None = None
    parts: "Callable[[Prepared | Header, Sequence[Case], A], Sequence[Any]]" = lambda _, cases, __: cases
    apart: Sequence[str] = ("case_id",)
    failed: Callable[[Any], bool] = lambda _: False
    progress: Callable[[Entry], str] = lambda _: ""
    asked: type[A]
    record: type[Any]
    told: "Callable[[StoredRun], Mapping[str, R]] | None" = None
    tables: Sequence[Table[R, Any]]
    conclusions: Callable[[Any, R], Iterable[Statement]]
    heading: Callable[[R], str] = lambda record: str(getattr(record, "name", ""))
    remarks: Callable[[R], Sequence[str]] = lambda record: getattr(record, "notes", [])
    code: Callable[[Any, R], str] = lambda *_: ""
    subject: str = "case"
    title: str
    subjects: "Callable[[Iterable[StoredRun], Collection[str] | None], Sequence[R]] | None" = None
    key: str = ""
    charts: "Sequence[Drawing[Subject[R]]]" = ()


def asks(help: str, *, least: int | None = None, most: int | None = None, **option: Any) -> msgspec.Meta:
    """Return the annotation that makes a field of a request an option: its help, bounds and fields of `Option`."""
    return msgspec.Meta(description=help, ge=least, le=most, extra=option)


def options_of(study: Study[Any, Any]) -> Sequence[Option]:
    """Return the options of a study's own."""
    if study.options:
        return study.options
    from msgspec import inspect

    options = []
    for field in inspect.type_info(study.asked).fields:  # type: ignore[attr-defined]
        kind = field.type
        extra = kind.extra or {}
        default = f"{field.default:g}" if extra.get("seconds") else None if extra.get("names") else field.default
        text = kind.extra_json_schema["description"]
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


def given_by(study: Study[Any, Any], options: Mapping[str, Any], selection: Selection) -> Given:
    """Return a program's arguments as a verb's arguments; `UsageError` for invalid ones."""
    known = {option.name: option for option in options_of(study)}
    for name in options:
        if name not in known:
            raise UnknownNameError(f"option of {verb_of(study.kind)}", name, [*known, *GIVEN])
    values = {name: _value(option, options.get(name, option.default)) for name, option in known.items()}
    return Given(values=values, typed=options, selection=selection)


def _value(option: Option, value: Any) -> Any:
    """Return the value of an option as its verb gives it."""
    if option.names:
        return [value] if isinstance(value, str) else [*(value or ())]
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


def asked_for(study: Study[A, Any], arguments: Given) -> A:
    """Return the request of a study from a verb's arguments; `UsageError` for invalid ones."""
    if study.made is not None:
        return study.made(arguments)
    return study.asked(**{option.name: arguments.values[option.name] for option in options_of(study)})


def grouped(rows: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return the rows of each key, both in the order of the rows."""
    groups: dict[Any, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
