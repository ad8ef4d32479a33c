"""A stored probe of autocast's rules: one JSON object in a file of its own, compressed where the name ends in .gz."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec

from ampbench.errors import StoreError
from ampbench.records.rules import CATEGORIES, DEVICE, FAKE, NOT_OBSERVED, SCHEMA, StoredRules
from ampbench.store.lines import strict_struct

_GZIP = b"\x1f\x8b"


class _Schema(msgspec.Struct):
    schema: int


class _AnyFile(msgspec.Struct):
    autocast_rules: _Schema


_File: Any = msgspec.defstruct(
    "File", [("autocast_rules", strict_struct(StoredRules))], gc=False, forbid_unknown_fields=True
)


def encode_rules(rules: StoredRules, path: Path) -> bytes:
    """Return what a file of this name holds; the same bytes for the same rules."""
    data = msgspec.json.encode({"autocast_rules": rules}) + b"\n"
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def read_rules(path: Path) -> StoredRules:
    """Return the probes stored in `path`; `StoreError`, with its name, where it is none, a newer one or damaged."""
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StoreError(f"{path}: damaged: {error}") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        schema = msgspec.json.decode(data, type=_AnyFile).autocast_rules.schema
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise StoreError(
            f"{path}: no stored probe of autocast's rules: another program's file, or cut; "
            "ampbench explain rules -o FILE makes one"
        ) from None
    if schema != SCHEMA:
        hint = "; upgrade ampbench" if schema > SCHEMA else ""
        raise StoreError(f"{path}: schema {schema}, and this ampbench reads {SCHEMA}{hint}")
    try:
        rules = msgspec.convert(msgspec.json.decode(data, type=_File).autocast_rules, StoredRules, from_attributes=True)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: damaged: {error}") from None
    problem = _problem(rules)
    if problem:
        raise StoreError(f"{path}: damaged: {problem}")
    return rules


def _problem(rules: StoredRules) -> str:
    """Return what cannot be true of `rules`, or nothing."""
    devices = [probe.device for probe in rules.probes]
    if len(set(devices)) < len(devices):
        return "two probes of one device"
    for one in (one for probe in rules.probes for one in probe.observations):
        if one.observed not in (*CATEGORIES, None):
            return f"{one.name} has a rule that there is not: {one.observed!r}"
        if one.how not in (DEVICE, FAKE, NOT_OBSERVED):
            return f"{one.name} was observed in a way that there is not: {one.how!r}"
    return ""
