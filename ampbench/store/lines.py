"""One line of a run file: a record as JSON, and JSON as a record, strictly; and what its numbers and words may be.

What is written is `{"round": {...}}`: one key, the kind of line, as in `records.run.CORE` and `records.kinds`. What is
read must have all required fields, no field that is not known, and the right types; a `LineError` says what is wrong.

What lies outside of the bounds of a field (`records.bounds`) is damage, no measurement: it is refused as a line is
decoded, when a file is read and when it is written.
"""

import functools
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec

from ampbench.core.metrics import METRICS
from ampbench.errors import escaped
from ampbench.records import kinds
from ampbench.records.bounds import Cosine, Decibels, KeptShare, Magnitude, Seconds, Share
from ampbench.records.kinds import KINDS, LINES, named
from ampbench.records.run import CORE, SCHEMA, Entry, Header


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

_FIRST_YEAR, _LAST_YEAR = "1970", "2261"
"""Between which a time can be told in every time zone, in nanoseconds, and by every program that reads ours."""


def wrong_time(text: str) -> str:
    """Return what is wrong with `text` as a time in ISO 8601; "": nothing."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return f"is no time: {text!r}"
    return "" if _FIRST_YEAR <= text[:4] <= _LAST_YEAR else f"is no time that a clock shows: {text!r}"


def wrong_reading(metric: str, value: float) -> str:
    """Return what is wrong with another program's number; "": nothing."""
    if metric not in METRICS:
        return f"a reading of an unknown metric, {metric}"
    bounds = Magnitude if metric in _OVER_ONE else _OF_UNITS.get(METRICS[metric].unit, Magnitude)
    try:
        msgspec.convert(value, bounds)
    except msgspec.ValidationError:
        return f"its {metric} is {value:g}"
    return ""


class LineError(ValueError):
    """A line that is not what it should be; the message continues "FILE, line N: "."""


_CORE = {record: line for line, record in CORE.items()}
_ENCODER = msgspec.json.Encoder(enc_hook=dict)


def line_of(record: type) -> str:
    """Return what the lines of a type of record are called; `KeyError` where it has none."""
    return _CORE.get(record) or kinds.line_of(record)


@functools.cache
def record_of(line: str) -> type:
    """Return the type of record of the lines called `line`, whose module is imported for it."""
    found: type = CORE[line] if line in CORE else named(LINES[line].record)
    return found


def _decoder(line: str) -> Callable[[bytes], Any]:
    strict = msgspec.defstruct(line, [(line, record_of(line))], gc=False, forbid_unknown_fields=True)
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
        return _ENCODER.encode(escaped(msgspec.to_builtins(line, enc_hook=dict))) + b"\n"


def decode(line: bytes) -> tuple[str, Any]:
    """Return the kind and the record of one `line`; `LineError` where it is damaged."""
    try:
        kind, decode = _DECODERS[line[2 : line.find(b'"', 2)]]
        return kind, getattr(decode(line), kind)
    except _UNREADABLE as error:
        raise _damaged(error) from None


def check_values(kind: str, record: Any) -> None:
    """Raise `LineError` for a time, or another program's number, that cannot be."""
    if kind in ("round", "footer") and (wrong := wrong_time(record.finished_at)):
        raise LineError(f"damaged: finished_at {wrong}")
    if kind == "reading" and (wrong := wrong_reading(record.metric, record.value)):
        raise LineError(f"damaged: {wrong}, of {record.case_id}")


def _damaged(error: Exception) -> LineError:
    return LineError(f"{DAMAGED_OR_NEWER if 'unknown field' in str(error) else 'damaged'}: {error}")


def decode_header(data: bytes) -> Header:
    """Return the header in a file's first line; `LineError` where it is none of a schema that this version reads."""
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
    header: Header = decode(data)[1]
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
    return header


def asked_in(header: Header) -> Any:
    """Return what a run was asked for, as the record that the row of its kind names; None where it does not say.

    Raises `msgspec.MsgspecError` for what cannot be.
    """
    if header.asked is None or not header.explains or not KINDS[header.explains].asked:
        return None
    return msgspec.convert(header.asked, named(KINDS[header.explains].asked))
