"""Encode a record as a line of a run file, and decode a line strictly.

A line is `{"round": {...}}`: one key, its kind, as in `records.run.CORE` and `records.kinds`. Decoding demands all
required fields, the right types and no unknown field; a `LineError` has the problem. A value outside the bounds of its
field (`records.bounds`) is damage, refused both when a file is read and when it is written.
"""

import functools
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ampbench.errors import escaped
from ampbench.records import kinds
from ampbench.records.kinds import KINDS, LINES, named
from ampbench.records.run import CORE, SCHEMA, Entry, Header


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes a third of the time to read a hundred thousand records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LineError(ValueError):
    """An invalid line; the message continues "FILE, line N: "."""


_CORE = {record: line for line, record in CORE.items()}
_ENCODER = msgspec.json.Encoder(enc_hook=dict)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for a line: a wrong type, invalid UTF-8, or nested too deep."""
DAMAGED_OR_NEWER = "damaged, or written by a newer ampbench (upgrade this one)"
_KIND = re.compile(rb'\{"(\w{1,40})"')


def line_of(record: type) -> str:
    """Return the kind of line of a type of record; `KeyError` without one."""
    return _CORE.get(record) or kinds.line_of(record)


@functools.cache
def record_of(line: str) -> type:
    """Return the type of record of a kind of line, importing its module."""
    record: type = CORE[line] if line in CORE else named(LINES[line].record)
    return record


@functools.cache
def _decoder(line: str) -> Callable[[bytes], Any]:
    strict = msgspec.defstruct(line, [(line, record_of(line))], gc=False, forbid_unknown_fields=True)
    return msgspec.json.Decoder(strict).decode


def encode(record: Header | Entry) -> bytes:
    """Return `record` as one line, newline included.

    Numbers that are not finite become null. Characters outside UTF-8 (undecodable bytes of a path or a command line)
    become backslash escapes.
    """
    line = {line_of(type(record)): record}
    try:
        return _ENCODER.encode(line) + b"\n"
    except UnicodeEncodeError:
        return _ENCODER.encode(escaped(msgspec.to_builtins(line, enc_hook=dict))) + b"\n"


def decode(line: bytes) -> tuple[str, Any]:
    """Return the kind and the record of one `line`; `LineError` if it is damaged."""
    begins = _KIND.match(line)
    kind = begins[1].decode() if begins else ""
    if kind not in CORE and kind not in LINES:
        why = f"no line is called {kind}" if kind else "it begins as no line does"
        raise LineError(f"{DAMAGED_OR_NEWER}: {why}")
    try:
        return kind, getattr(_decoder(kind)(line), kind)
    except _UNREADABLE as error:
        raise LineError(f"{DAMAGED_OR_NEWER if 'unknown field' in str(error) else 'damaged'}: {error}") from None


def decode_header(data: bytes) -> Header:
    """Return the header in a file's first line; `LineError` without one, or with another schema."""
    try:
        schema = int(msgspec.json.decode(data)["header"]["schema"])
    except (*_UNREADABLE, LookupError, TypeError, ValueError):
        try:
            kind, _ = decode(data)
        except LineError:
            raise LineError("no header of an ampbench run: this is another program's file or a damaged one") from None
        raise LineError(f"no header: the file begins with a {kind}, so its beginning is lost") from None
    if schema != SCHEMA:
        age = "a newer" if schema > SCHEMA else "an earlier"
        advice = "upgrade ampbench" if schema > SCHEMA else "read it with that one, or measure anew"
        raise LineError(f"written by {age} ampbench (schema {schema}; this one reads {SCHEMA}): {advice}")
    header: Header = decode(data)[1]
    if header.explains and header.explains not in KINDS:
        raise LineError(f"{DAMAGED_OR_NEWER}: unknown kind of run: {header.explains!r}")
    try:
        asked_in(header)
    except msgspec.MsgspecError as error:
        raise LineError(f"damaged: asked: {error}") from None
    return header


def asked_in(header: Header) -> Any:
    """Return the options of a run, as its study's record of options; None without any.

    Raises `msgspec.MsgspecError` for an invalid record.
    """
    if header.asked is None or not header.explains:
        return None
    return msgspec.convert(header.asked, named(KINDS[header.explains].study).asked)
