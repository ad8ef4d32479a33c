"""One line of a run file: a record as JSON, and JSON as a record, strictly; and what its numbers and words may be.

What is written is `{"round": {...}}`: one key, the kind of line, as in `records.run.CORE` and `records.kinds`. What is
read must have all required fields, no field that is not known, and the right types; a `LineError` says what is wrong.

What lies outside of the bounds of a field (`records.bounds`), or is none of its `WORDS`, is damage, no measurement.
Both are checked as a line is decoded, what must hold between the fields of a record by `wrong_parts`, when a file is
read and when it is written. The long lines, traces, are decoded and checked when first asked for.
"""

import functools
import gc
import operator
import re
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ampbench.base.metrics import METRICS
from ampbench.errors import escaped
from ampbench.records import kinds
from ampbench.records.bounds import Cosine, Decibels, KeptShare, Magnitude, Seconds, Share
from ampbench.records.case import PATHS, PHASES, SDPA
from ampbench.records.kinds import KINDS, LINES, Before, named
from ampbench.records.measured import ALONE, CAUSES, ENDS, MEMORY_SOURCES, STAGES
from ampbench.records.run import CORE, ENDINGS, LANES, ON, SCHEMA, Entry, Header


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector out: looking for cycles among a hundred thousand records costs a third of reading them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


WORDS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Footer", "ended"): ENDINGS,
    ("Fleet", "on"): ON,
    ("Fleet", "lanes"): LANES,
    ("Round", "alone"): ("", *ALONE),
    ("Failure", "cause"): CAUSES,
    ("Failure", "stage"): STAGES,
    ("MemoryPass", "source"): MEMORY_SOURCES,
    ("FurtherDecisions", "ended"): ENDS,
    ("Case", "phase"): PHASES,
    ("Case", "path"): PATHS,
    ("Case", "sdpa"): ("", *SDPA),
}
"""The words that a field of a record may be."""

_OF_UNITS: Mapping[str, Any] = {
    "s": Seconds,
    "cosine": Cosine,
    "dB": Decibels,
    "share": Share,
    "kept": KeptShare,
}
"""What readings may be, by the unit of their metric."""
_OVER_ONE = frozenset({"ceiling_share"})
"""Shares of what something else attained once."""

_PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Divergence": (
        ("argmax_agreeing", "argmax_decisions"),
        ("grad_flushed", "grad_elements"),
        ("grad_nonfinite", "grad_elements"),
        ("output_nonfinite", "output_elements"),
        ("output_nan", "output_nonfinite"),
        ("output_reference_nan", "output_reference_nonfinite"),
        ("output_reference_nonfinite", "output_elements"),
        ("output_fp32_nonfinite", "output_elements"),
        ("grad_nan", "grad_nonfinite"),
        ("grad_reference_nan", "grad_reference_nonfinite"),
        ("grad_reference_nonfinite", "grad_elements"),
    ),
    "MemoryPass": (
        *((f"{name}_bytes", "peak_bytes") for name in ("parameter", "buffer", "input", "gradient", "optimizer")),
        ("master_bytes", "parameter_bytes"),
    ),
    "FurtherDecisions": (("agreeing", "decisions"),),
    "Score": (("correct", "decisions"),),
    "GradientLook": (("nonzero", "elements"), ("flushed", "nonzero"), ("nonfinite", "elements")),
    "Swallowed": (("swallowed", "moved"),),
    "Update": (("swallowed", "moving"),),
    "SeenGradient": (("flushed", "elements"), ("nonfinite", "elements")),
}
"""Fields of a record that are part of another one, which is no smaller."""

_FIRST_YEAR, _LAST_YEAR = "1970", "2261"
"""Between which a time can be told in every time zone, in nanoseconds, and by every program that reads ours."""


def wrong_time(text: str) -> str:
    """Return what is wrong with `text` as a time in ISO 8601; "": nothing."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return f"is no time: {text!r}"
    return "" if _FIRST_YEAR <= text[:4] <= _LAST_YEAR else f"is no time that a clock shows: {text!r}"


def wrong_parts(record: Any) -> str:
    """Return which number of `record`, or of one in it, is more than what it is a part of; "": none."""
    kind: Any = type(record)
    for part, whole in _PARTS.get(kind.__name__, ()):
        of, all_of = getattr(record, part), getattr(record, whole)
        if of is not None and all_of is not None and of > all_of:
            return f"{part}, {of:,}, are more than {whole}, {all_of:,}"
    for name in _holders(kind):
        held = getattr(record, name)
        for one in held if isinstance(held, list) else () if held is None else (held,):
            if said := wrong_parts(one):
                return said
    return ""


def wrong_reading(metric: str, value: float) -> str:
    """Return what is wrong with another program's number; "": nothing."""
    bounds = Magnitude if metric in _OVER_ONE else _OF_UNITS.get(METRICS[metric].unit, Magnitude)
    try:
        msgspec.convert(value, bounds)
    except msgspec.ValidationError:
        return f"its {metric} is {value:g}"
    return ""


@functools.cache
def _holders(kind: Any) -> tuple[str, ...]:
    """Return the fields of a record whose records, or lists of them, there is something to check in."""
    if not is_dataclass(kind):
        return ()
    hints = get_type_hints(kind)
    return tuple(one.name for one in fields(kind) if any(map(_is_checked, _records_in(hints[one.name]))))


def _is_checked(kind: Any) -> bool:
    return kind.__name__ in _PARTS or bool(_holders(kind))


def _records_in(hint: Any) -> list[type]:
    """Return the records that a field with this annotation may hold, alone or in a list."""
    if isinstance(hint, type) and is_dataclass(hint):
        return [hint]
    return [record for argument in get_args(hint) for record in _records_in(argument)]


_LONG = b"|".join(each.line.encode() for each in LINES.values() if each.long)
_BEGINNING = re.compile(rb'\{"(' + _LONG + rb')":\{"case_id":("(?:[^"\\]|\\.)*"),')
_END = b"}}\n"


class LongLines(Mapping[str, Any]):
    """The last long line of each case, by case id, in the order of the file; it is decoded at its first access.

    Which cases there are costs nothing. A damaged line raises `StoreError`, with the file and the line's number, when
    its record is asked for.
    """

    __slots__ = ("_decode", "_lines", "_records")

    def __init__(self, decode: Callable[[bytes, int], Any]):
        self._decode = decode
        self._lines: dict[str, tuple[bytes, int]] = {}
        self._records: dict[str, Any] = {}

    def keep(self, case_id: str, line: bytes, number: int) -> None:
        """Keep `line`, of the case, with its `number` in the file, in place of an earlier one."""
        self._lines[case_id] = line, number
        self._records[case_id] = None

    def __getitem__(self, case_id: str) -> Any:
        found = self._records[case_id]
        if found is None:
            with no_garbage_collection():
                found = self._records[case_id] = self._decode(*self._lines[case_id])
            del self._lines[case_id]
        return found

    def __contains__(self, case_id: object) -> bool:
        return case_id in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<lines of {', '.join(self._records) or 'no case'}>"


def long_line(line: bytes) -> tuple[str, str] | None:
    """Return the kind and the case of a long `line` as it begins and ends; None: only decoding it can tell."""
    begins = _BEGINNING.match(line)
    if begins is None or not line.endswith(_END):
        return None
    try:
        return begins[1].decode(), msgspec.json.decode(begins[2], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


Rounds = dict[str, int]
"""Which rounds a file has, by case id: a bit for each number, own, of the control or confirming."""


class LineError(ValueError):
    """A line that is not what it should be; the message continues "FILE, line N: "."""


def _mirror(annotation: Any) -> Any:
    """Return `annotation` with every dataclass in it replaced by its strict struct."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        record: Any = annotation
        return strict_struct(record)
    origin = get_origin(annotation)
    if origin is None or origin is Annotated:
        return annotation
    arguments = tuple(map(_mirror, get_args(annotation)))
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, arguments)
    return origin[arguments]


@functools.cache
def strict_struct(record: Any) -> Any:
    """Return a struct with the fields of the dataclass `record` which refuses unknown ones, and implausible values.

    msgspec ignores unknown keys when it decodes dataclasses, so a damaged key of an optional field would go unnoticed.
    Structs are also decoded faster, and are not tracked by the garbage collector.
    """
    hints = get_type_hints(record, include_extras=True)
    definitions: list[Any] = []
    for field in fields(record):
        words = WORDS.get((record.__name__, field.name))
        kind = Literal[words] if words else _mirror(hints[field.name])
        definition: tuple[Any, ...] = (field.name, kind)
        if field.default is not MISSING:
            definition += (field.default,)
        elif field.default_factory is not MISSING:
            definition += (msgspec.field(default_factory=_mirror(field.default_factory)),)
        definitions.append(definition)
    return msgspec.defstruct(record.__name__, definitions, kw_only=True, gc=False, forbid_unknown_fields=True)


def _plain(value: Any) -> Any:
    """Return what msgspec can encode instead of `value`: a dict for any other mapping."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError


_CORE = {record: line for line, record in CORE.items()}
_OF_NO_CASE = {"header", "case", "footer", *(each.line for each in LINES.values() if each.of != "case_id")}
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def line_of(record: type) -> str:
    """Return what the lines of a type of record are called; `KeyError` where it has none."""
    return _CORE.get(record) or kinds.line_of(record)


@functools.cache
def record_of(line: str) -> type:
    """Return the type of record of the lines called `line`, whose module is imported for it."""
    found: type = CORE[line] if line in CORE else named(LINES[line].record)
    return found


def _decoder(line: str) -> Callable[[bytes], Any]:
    strict = msgspec.defstruct(line, [(line, strict_struct(record_of(line)))], gc=False, forbid_unknown_fields=True)
    return msgspec.json.Decoder(strict).decode


class _Decoders(dict[bytes, tuple[str, Callable[[bytes], Any]]]):
    """What decodes each kind of line, made when the first is read."""

    def __missing__(self, name: bytes) -> tuple[str, Callable[[bytes], Any]]:
        line = name.decode(errors="replace")
        if line not in CORE and line not in LINES:
            return "", _unknown
        found = self[name] = line, _decoder(line)
        return found


_DECODERS = _Decoders()
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for a line: another than it should be, no UTF-8, or nested too deep to be read."""
DAMAGED_OR_NEWER = "damaged, or written by a newer ampbench (upgrade this one)"
_KIND = re.compile(rb'\{"(\w{1,40})"')


def _unknown(line: bytes) -> Any:
    kind = _KIND.match(line)
    said = f"no line is called {kind[1].decode()}" if kind else "it begins as no line does"
    raise LineError(f"{DAMAGED_OR_NEWER}: {said}")


class _AnySchema(msgspec.Struct):
    schema: int


class _AnyHeader(msgspec.Struct):
    header: _AnySchema


def encode(record: Header | Entry) -> bytes:
    """Return `record` as one line, newline included.

    Numbers that are not finite become null. Characters that UTF-8 does not have (undecodable bytes of a path or a
    command line) are written as backslash escapes.
    """
    line = {line_of(type(record)): record}
    try:
        return _ENCODER.encode(line) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(escaped(msgspec.to_builtins(line, enc_hook=_plain))) + b"\n"


def decode(line: bytes) -> tuple[str, Any]:
    """Return the kind and the record of one `line`; `LineError` where it is damaged.

    The record has the attributes of its dataclass without being one: `to_record` makes it so.
    """
    try:
        kind, decode = _DECODERS[line[2 : line.find(b'"', 2)]]
        return kind, getattr(decode(line), kind)
    except _UNREADABLE as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> LineError:
    return LineError(f"{DAMAGED_OR_NEWER if 'unknown field' in str(error) else 'damaged'}: {error}")


def check_header(data: bytes) -> None:
    """Raise `LineError` unless `data`, a file's first line, is a header of a schema that this version reads."""
    try:
        schema = msgspec.json.decode(data, type=_AnyHeader).header.schema
    except _UNREADABLE:
        try:
            kind, _ = decode(data)
        except LineError:
            raise LineError("no header of an ampbench run: this is another program's file or a damaged one") from None
        raise LineError(f"no header: the file begins with a {kind}, so its beginning is lost") from None
    if schema > SCHEMA:
        raise LineError(f"written by a newer ampbench (schema {schema}; this one reads {SCHEMA}): upgrade ampbench")
    if schema < SCHEMA:
        raise LineError(
            f"written by an earlier ampbench (schema {schema}; this one reads {SCHEMA}): read it with that one, or "
            "measure anew"
        )


def check_said(header: Header) -> None:
    """Raise `LineError` unless `header` explains what there is and its times, the order of trends, are ISO 8601."""
    if header.explains and header.explains not in KINDS:
        raise LineError(f"{DAMAGED_OR_NEWER}: explains what there is not: {header.explains!r}")
    for name, text in (("started_at", header.started_at), ("committed_at", header.committed_at)):
        if text is not None and (wrong := wrong_time(text)):
            raise LineError(f"damaged: {name} {wrong}")
    if header.asked is not None:
        try:
            asked_in(header)
        except msgspec.MsgspecError as error:
            raise LineError(f"damaged: asked: {error}") from None


def asked_in(header: Header) -> Any:
    """Return what a run was asked for, as the record that the row of its kind names; None where it does not say.

    Raises `msgspec.MsgspecError` for what cannot be.
    """
    if header.asked is None or not header.explains or not KINDS[header.explains].asked:
        return None
    record = named(KINDS[header.explains].asked)
    return msgspec.convert(msgspec.to_builtins(msgspec.convert(header.asked, strict_struct(record))), record)


def check_entry(
    kind: str,
    case_id: str,
    record: Any,
    case_ids: Container[str],
    before: Before = MappingProxyType({}),
    rounds: Rounds | None = None,
) -> None:
    """Raise `LineError` unless `record`, of the case `case_id` if of any, may follow the cases with `case_ids`.

    `before` is what else is there already; `rounds` are the rounds that are, to which a round is added.
    """
    if kind == "round":
        check_round(record, case_ids, {} if rounds is None else rounds)
        return
    if kind not in _OF_NO_CASE and case_id not in case_ids:
        raise LineError(_NOT_LISTED.format(kind, case_id))
    if kind == "reading":
        if record.metric not in METRICS:
            raise LineError(f"a reading of an unknown metric, {record.metric}, of {case_id}")
        if wrong := wrong_reading(record.metric, record.value):
            raise LineError(f"damaged: {wrong}, of {case_id}")
    if kind == "case" and case_id in case_ids:
        raise LineError(f"a case listed twice: {case_id}")
    if kind in LINES and record is not None:
        check_row(kind, record, before)
    if kind == "header":
        raise LineError("a second header: two files were put together")
    if kind == "footer" and (wrong := wrong_time(record.finished_at)):
        raise LineError(f"damaged: finished_at {wrong}")
    if record is not None and (wrong := wrong_parts(record)):
        raise LineError(f"damaged: {wrong}")


_NOT_LISTED = "a {} of a case that is not listed before it: {}"


def check_round(record: Any, case_ids: Container[str], rounds: Rounds) -> None:
    """Raise `LineError` unless a round may follow the cases with `case_ids` and `rounds`, to which it is added."""
    case_id = record.case_id
    if case_id not in case_ids:
        raise LineError(_NOT_LISTED.format("round", case_id))
    if not (record.samples and all(record.samples)):
        raise LineError(f"a round without samples of {case_id}")
    if record.windows is not None and not (record.windows and all(record.windows)):
        raise LineError(f"a round whose windows are empty, of {case_id}")
    if record.cpu_samples is not None and list(map(len, record.cpu_samples)) != list(map(len, record.samples)):
        raise LineError(f"CPU times that are not those of the samples, in a round of {case_id}")
    if wrong := wrong_time(record.finished_at):
        raise LineError(f"damaged: finished_at {wrong}")
    add_round(record, rounds)


def add_round(record: Any, rounds: Rounds) -> None:
    """Add a round to those that a file has; `LineError` where it has it."""
    bit = 1 << (4 * record.round + 2 * record.confirmation + record.control)
    known = rounds.get(record.case_id, 0)
    if known & bit:
        which = f"{'control ' if record.control else ''}round {record.round}"
        raise LineError(f"a second {which} of {record.case_id}: lines were appended twice")
    rounds[record.case_id] = known | bit


def own_rounds(numbers: Iterable[int]) -> int:
    """Return own rounds of these numbers as `Rounds` has them."""
    return sum(1 << (4 * number) for number in numbers)


def has_own(known: int, number: int) -> bool:
    """Return whether a case has its own round of this number, no confirmation nor the control's, as `Rounds` has it."""
    return bool(known >> (4 * number) & 1)


def check_row(kind: str, record: Any, before: Before) -> None:
    """Raise `LineError` where the row of a kind of line finds something wrong with a record."""
    place = LINES[kind].wrong
    if place and (wrong := named(place)(record, before)):
        raise LineError(wrong)


def to_record(kind: str, record: Any) -> Any:
    """Return a decoded `record` of `kind` as the dataclass it stands for."""
    return msgspec.convert(record, record_of(kind), from_attributes=True)


def to_records(kind: str, records: Sequence[Any]) -> list[Any]:
    """Return decoded `records` of `kind` as the dataclasses that they stand for."""
    record: Any = record_of(kind)
    return msgspec.convert(records, list[record], from_attributes=True)
