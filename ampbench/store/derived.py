"""What was derived from a run file, kept in `.derived/` beside `runs/`: a copy in columns, which anyone may delete.

To read a large run strictly takes seconds, most of them for samples that a table needs no more once it is made. So who
derives something from a whole run may keep it under a name, as arrays and records, and finds it again for as long as
the run file is the one that it came from, and the code that derived it is the same. The run file stays the truth: what
is kept is only ever made of a file that was read to its end and refused nothing, and anything that is amiss with a kept
file, or with writing one, means that it is not there. Nothing here raises.

**The same run file** has the same name, size, times of change of contents and of inode, and the same digest of
`_BLOCKS` blocks that are spread over it, both ends among them. To digest all of a large one would take longer than all
else. An edit, a copy over it, a line appended, a time set back: each sets the inode's time of change, which no program
can choose. The blocks are for file systems without such times; and as clocks may be coarse, nothing is kept of a file
that changed within the last `_SETTLED` seconds. A folder that was copied elsewhere is read anew.

**Nothing is believed that was not written here**: the first line of a kept file, JSON, says what it was made of and the
length and CRC-32 of what follows. It is written under another name, and renamed when it is whole.
"""

import contextlib
import functools
import hashlib
import os
import secrets
import stat
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

import ampbench
from ampbench.records.kinds import LINES
from ampbench.records.run import COMPRESSED, SCHEMA, SUFFIX
from ampbench.store.lines import no_garbage_collection, record_of

if TYPE_CHECKING:
    import numpy as np

FOLDER = ".derived"
FOUND = object()
"""The type of what a run found (`StoredRun.found`): each of its lines says which of its records is."""
Array: TypeAlias = "np.ndarray[Any, Any]"

_FORMAT = 1
_RUNS = "runs"
_LEAST_BYTES = 1 << 18
"""Smaller run files are read in some milliseconds, about as fast as what would be kept of them."""
_SETTLED = 2.0
"""The coarsest clocks of file systems tell times two seconds apart."""
_BLOCKS, _BLOCK_BYTES = 16, 1 << 12
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# What ampbench derived from the runs beside this folder, so as to read them faster (docs/results-format.md).\n"
    "# It may be deleted at any time, and needs no backup.\n"
)
"""By its first line, backups know what need not be kept (https://bford.info/cachedir)."""
_BESIDE = {"CACHEDIR.TAG": _TAG, ".gitignore": "*\n"}
_CODE = ("base", "records", "store", "judge", "trend", "instruments/ceilings")
"""Packages that decide what is derived; what they hold is part of what makes a kept file the same."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What something was made of: a run file as it was, and the code that made it."""

    run: str
    size: int
    modified_ns: int
    changed_ns: int
    digest: str
    ampbench: str
    schema: int
    format: int = 0


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a kept file."""

    made_of: Source
    bytes: int
    crc32: int


class _Column(msgspec.Struct, array_like=True):
    """An array of one dimension: of a constant one a single element; of objects, each once, and their places."""

    length: int
    dtype: str
    data: memoryview
    objects: list[str | int | None] | None = None


class _Body(msgspec.Struct):
    columns: dict[str, _Column]
    records: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept under a name: arrays of numbers, or of texts, integers and None, and records of any type."""

    columns: dict[str, Array]
    records: dict[str, Any]


class Derived:
    """What is kept, and may be, of the run file at `path` as it is now: ask before the file is read.

    Of files outside a folder called `runs`, and of small ones, nothing is.
    """

    def __init__(self, path: Path | str):
        self._path = Path(path)
        self._source = _source_of(self._path)

    def get(self, name: str, types: Mapping[str, Any] = MappingProxyType({})) -> Kept | None:
        """Return what was kept under this name of the file as it is; None where nothing is, or nothing to believe.

        `types` are those of its records.
        """
        if self._source is None:
            return None
        try:
            data = self._file(name).read_bytes()
            end = data.index(b"\n") + 1
            head = msgspec.json.decode(data[:end], type=_Head)
            content = memoryview(data)[end:]
            if head.made_of != self._source or head.bytes != len(content) or head.crc32 != zlib.crc32(content):
                return None
            with no_garbage_collection():
                body = msgspec.msgpack.decode(content, type=_Body)
                return Kept(
                    {name: _unpacked(column) for name, column in body.columns.items()},
                    {name: _decoded(body.records[name], type) for name, type in types.items()},
                )
        except (OSError, ValueError, LookupError, MemoryError, msgspec.MsgspecError):
            return None

    def keep(self, name: str, columns: Mapping[str, Array], records: Mapping[str, Any] | None = None) -> None:
        """Keep what was derived of the whole file, unless it has changed meanwhile or there is no room to write."""
        settled = self._source and time.time() - max(self._source.changed_ns, self._source.modified_ns) / 1e9 > _SETTLED
        if self._source is None or not settled or _source_of(self._path) != self._source:
            return
        # no disk, quota or permission is a reason to fail where nothing that anyone asked for is lost
        with contextlib.suppress(OSError, MemoryError):
            packed = {name: msgspec.Raw(msgspec.msgpack.encode(one)) for name, one in (records or {}).items()}
            body = _Body({name: _packed(column) for name, column in columns.items()}, packed)
            content = msgspec.msgpack.encode(body)
            head = _Head(self._source, len(content), zlib.crc32(content))
            self._write(name, msgspec.json.encode(head) + b"\n", content)

    def _file(self, name: str) -> Path:
        return self._path.parent.parent / FOLDER / f"{self._path.name}.{name}"

    def _write(self, name: str, *parts: bytes) -> None:
        file = self._file(name)
        if not file.parent.is_dir():
            file.parent.mkdir()
            for beside, text in _BESIDE.items():
                (file.parent / beside).write_text(text)
        _forget_lost(file.parent, (file.parent.parent / _RUNS).stat().st_mtime_ns)
        temporary = file.with_name(f"{file.name}.{secrets.token_hex(4)}.part")
        try:
            with temporary.open("xb") as out:
                out.writelines(parts)
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _source_of(path: Path) -> Source | None:
    """Return what the run file at `path` is now; None where nothing is kept of it."""
    if path.parent.name != _RUNS or not path.name.endswith((SUFFIX, COMPRESSED)):
        return None
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size < _LEAST_BYTES:
            return None
        with path.open("rb", buffering=0) as file:  # a buffer would read twice as much
            digest = hashlib.blake2b(digest_size=16)
            for number in range(_BLOCKS):
                file.seek(max(found.st_size - _BLOCK_BYTES, 0) * number // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
        return Source(
            run=path.name,
            size=found.st_size,
            modified_ns=found.st_mtime_ns,
            changed_ns=found.st_ctime_ns,
            digest=digest.hexdigest(),
            ampbench=_code(),
            schema=SCHEMA,
            format=_FORMAT,
        )
    except OSError:
        return None


@functools.cache
def _code() -> str:
    """Return this ampbench's version with a digest of the times of what derives: an installed one changes at once."""
    root = Path(ampbench.__file__).parent
    entries = (entry for each in _CODE for entry in os.scandir(root / each) if entry.name.endswith(".py"))
    files = sorted((entry.path, entry.stat().st_mtime_ns) for entry in entries)
    return f"{ampbench.__version__} {hashlib.blake2b(repr(files).encode(), digest_size=8).hexdigest()}"


@functools.lru_cache(maxsize=1)
def _forget_lost(folder: Path, _changed_ns: int) -> None:
    """Delete what was kept of run files that are no longer there, once for each change of the folder that they are in.

    Who keeps what was read of a folder would else list it for every file of it.
    """
    runs = {entry.name for entry in os.scandir(folder.parent / _RUNS)}
    for entry in os.scandir(folder):
        run, ending, _ = entry.name.rpartition(SUFFIX)
        zipped = entry.name.startswith(f"{run}{COMPRESSED}")
        if ending and f"{run}{COMPRESSED if zipped else SUFFIX}" not in runs:
            Path(entry.path).unlink(missing_ok=True)


def _decoded(record: msgspec.Raw, type: Any) -> Any:
    if type is not FOUND:
        return msgspec.msgpack.decode(record, type=type)
    of_lines = msgspec.msgpack.decode(record, type=dict[str, msgspec.Raw])
    return {line: msgspec.msgpack.decode(one, type=_held_as(line)) for line, one in of_lines.items()}


def _held_as(line: str) -> Any:
    record: Any = record_of(line)
    return dict[str, list[record]] if LINES[line].several else dict[str, record]


def _packed(array: Array) -> _Column:
    import numpy as np  # not for who only lists runs

    length, objects = len(array), None
    if array.dtype == object:
        objects = list(dict.fromkeys(array.tolist()))
        places = {one: place for place, one in enumerate(objects)}
        array = np.fromiter(map(places.__getitem__, array.tolist()), np.int32, length)
    array = np.ascontiguousarray(array)
    bits = array.view(f"u{array.itemsize}")
    if length and (bits == bits[0]).all():
        array = array[:1]
    return _Column(length, array.dtype.str, array.data, objects)


def _unpacked(column: _Column) -> Array:
    import numpy as np

    found = np.frombuffer(column.data, column.dtype)
    array = np.repeat(found, column.length) if len(found) == 1 else found.copy()
    if len(array) != column.length:
        raise ValueError("an array of another length than it says")
    if column.objects is None:
        return array
    return cast("Array", np.array(column.objects, dtype=object)[array])
