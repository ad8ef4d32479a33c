"""Rewriting run files of earlier schemas in the current one: each replaced at once, or left as it is.

Later schemas only added kinds of lines and optional fields, so an earlier file differs from a current one by its header
alone: that line is written anew, the others are copied byte by byte.
"""

import contextlib
import gzip
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import IO, BinaryIO

from ampbench.errors import StoreError
from ampbench.records.kinds import verb_of
from ampbench.records.run import SCHEMA, Header
from ampbench.store import lines
from ampbench.store.folder import files_below, lock, sync_folder
from ampbench.store.reading import StoredRun, is_compressed, opened, read_header, read_run

MIGRATED, CURRENT, LEFT_ALONE = "migrated", "current", "left alone"
"""What can become of a file."""

_UNDER_WAY = ".migrating"
"""How the name of a file ends that is to take another's place; no run file's does."""
_FOOTER = b'{"footer":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What became of the file at `path`: `schema` as it was (None: it has no header that can be read).

    `problem` says why it was left alone.
    """

    path: Path
    schema: int | None
    problem: str | None = None

    @property
    def outcome(self) -> str:
        """`MIGRATED`, `CURRENT` or `LEFT_ALONE`."""
        if self.problem is not None:
            return LEFT_ALONE
        return CURRENT if self.schema == SCHEMA else MIGRATED


def migrate_results(results: Path | str) -> list[Migration]:
    """Rewrite every older file in a folder and in those below it, and return what became of each file.

    A folder that cannot be read is left alone, too.
    """
    files, problems = files_below(Path(results))
    unreadable = [Migration(path=folder, schema=None, problem=problem) for folder, problem in problems.items()]
    return [*unreadable, *map(migrate_file, files)]


def migrate_file(path: Path) -> Migration:
    """Rewrite the run file at `path` in the current schema where it has an earlier one, compressed if it was.

    Every file is read whole and checked. One that is damaged, foreign or of a later schema is left alone, as is an
    older one that is cut, that does not end in a footer (killed, or still running), that is being written, or that
    cannot be replaced. The new file has the times, the mode and, where permitted, the owner of the old one. It is on
    the disk and read back before it takes the old one's place, in one step: whatever interrupts this leaves one of the
    two, whole.
    """
    schema = None
    try:
        schema = read_header(path).schema
        if schema == SCHEMA:
            _checked(path)
        else:
            with _locked(path):
                _migrate(path)
    except StoreError as error:
        return Migration(path=path, schema=schema, problem=str(error))
    return Migration(path=path, schema=schema)


def _checked(path: Path) -> StoredRun:
    return read_run(path, on_rounds=lambda _: None, check_traces=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        raise StoreError(f"cannot rewrite {path}: {error.strerror}; make it writable, then migrate again") from None
    try:
        lock(path, descriptor, "wait for it, then migrate again")
        yield
    finally:
        os.close(descriptor)


def _migrate(path: Path) -> None:
    stored = _checked(path)
    if stored.cut:
        raise StoreError(f"{path}: its last line is cut: {_advice(stored)}")
    if not (_last_line(path).startswith(_FOOTER) or stored.header.imported):
        raise StoreError(f"{path}: no footer ends it, it was killed or is still running: {_advice(stored)}")
    rewrite(path, replace(stored.header, schema=SCHEMA))


def rewrite(path: Path, header: Header) -> None:
    """Replace the header of the run file at `path`, at once or not at all; raises `StoreError` where it cannot be."""
    place = path.resolve()  # a link is kept
    beside = None
    try:
        for left_behind in place.parent.glob(f".{escape(place.name)}.*{_UNDER_WAY}"):  # by one that was killed
            left_behind.unlink()
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=_UNDER_WAY)
        beside = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            _write(place, header, file)
            file.flush()
            _copy_what_it_is(place, beside)
            os.fsync(file.fileno())
        _check_same(path, header, beside)
        beside.replace(place)
    except OSError as error:
        raise StoreError(
            f"cannot rewrite {path}: {error.strerror}; it is as it was: mend this, then try again"
        ) from error
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)
    sync_folder(place.parent)


def _last_line(path: Path) -> bytes:
    with opened(path) as file:
        (line,) = deque(file, maxlen=1)
    return line


def _advice(stored: StoredRun) -> str:
    """Say what to do about a file that is not finished."""
    header, verb = stored.header, f"ampbench {verb_of(stored.header.explains)}"
    if not header.goes_on:
        return "if it is not running any more, it can only be measured anew; it is read as it is"
    resume = f"{verb} --resume {quote(str(stored.path))}"
    return f"if it is not running any more, continue it with {resume}, which rewrites it"


def _write(source: Path, header: Header, file: BinaryIO) -> None:
    """Write what is in `source` with another `header`."""
    with source.open("rb") as raw:
        compressed = is_compressed(raw.peek(2))
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if compressed else None
    target: IO[bytes] = packed or file  # type: ignore[assignment]
    with packed or contextlib.nullcontext(), opened(source) as old:
        old.readline()
        target.write(lines.encode(header))
        for line in old:
            target.write(line)


def _copy_what_it_is(old: Path, new: Path) -> None:
    """Give the file `new` the owner, the mode and the times of `old`."""
    about = old.stat()
    with contextlib.suppress(PermissionError):
        os.chown(new, about.st_uid, about.st_gid)
    shutil.copystat(old, new)


def _check_same(old: Path, header: Header, new: Path) -> None:
    """Raise `StoreError` unless the file `new` is whole and says what `old` says, under `header`."""
    try:
        same = _checked(new).header == header
    except StoreError:
        same = False
    with opened(old) as before, opened(new) as after:
        before.readline(), after.readline()
        same = same and all(one == other for one, other in zip_longest(before, after))
    if not same:
        raise StoreError(f"{old}: what was written did not read back the same; it is as it was: try again")
