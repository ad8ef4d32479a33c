"""Writing a run file: line by line, each on the disk before the next is measured."""

import gzip
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Self

from ampbench.errors import StoreError
from ampbench.records.case import Case
from ampbench.records.kinds import LINES, verb_of
from ampbench.records.measured import Failure, Reading, Round
from ampbench.records.run import SUFFIX, Entry, Header
from ampbench.store import lines
from ampbench.store.folder import followed, lock, sync_folder
from ampbench.store.lines import LineError
from ampbench.store.reading import StoredRun, is_compressed, read_run

_BLOCK_BYTES = 1 << 20

_Known = tuple[set[str], dict[str, set[str]], lines.Rounds]
"""What is in a file: the cases, what each kind of line is of, the rounds."""


class CannotBeError(StoreError):
    """An entry that could not be read again, because it says what cannot be: `why`; its `line` is of this name."""

    def __init__(self, message: str, why: str, line: str):
        super().__init__(message)
        self.why, self.line = why, line

    def failure(self, case_id: str, stage: str) -> Failure:
        """Return what stands for the entry: that its case failed at a `stage`."""
        message = f"what came out cannot be: {self.why}"
        return Failure(case_id=case_id, stage=stage, cause="exception", message=message)


def new_run_id(host: str, started: datetime | None = None) -> str:
    """Return an id for a run begun on `host` at `started` (now): `20260131T120000Z-myhost-1f9a3c`, sorted by time."""
    time = (started or datetime.now(UTC)).astimezone(UTC)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", host).strip("-") or "host"
    return f"{time:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(3)}"


def require_writable(results: Path | str) -> None:
    """Raise `StoreError` where no run can be written into the folder `results`: before the work that is to fill it."""
    folder = Path(results) / "runs"
    try:
        nearest = next(above for above in (folder, *folder.parents) if above.exists() or above.is_symlink())
        if not nearest.is_dir():
            problem = f"{nearest} is no folder"
        elif not os.access(nearest, os.W_OK | os.X_OK):
            problem = f"{nearest} may not be written to"
        else:
            return
    except OSError as error:
        problem = error.strerror or str(error)
    raise StoreError(f"cannot write {folder}: {problem}; choose another --results folder")


class RunWriter:
    """A run file that is being written; locked against a second writer until closed.

    `create` begins a file, `reopen` continues one. Use it as a context manager.
    """

    def __init__(self, path: Path, descriptor: int):
        self.path = path
        self._descriptor = descriptor
        self._size = 0
        self._case_ids: set[str] = set()
        self._found: dict[str, set[str]] = {}
        self._rounds: lines.Rounds = {}
        self._header: Header | None = None

    @classmethod
    def create(cls, results: Path | str, header: Header, cases: Iterable[Case] = ()) -> Self:
        """Begin `runs/<header.run>.jsonl` in the folder `results` with the header and the cases, in one write.

        The header says which run it follows where the clock has gone back since that was begun. Raises `StoreError`
        where the folder cannot be written (its cause is then the `OSError`) or the file exists.
        """
        path = Path(results) / "runs" / f"{header.run}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            header = replace(header, follows=followed(header.run, results))
            writer = cls._begin(path, header, cases)
        except FileExistsError:
            if not path.parent.is_dir():
                require_writable(results)  # says which
            raise StoreError(f"{path} exists: choose another --results folder, or continue it with --resume") from None
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; choose another --results folder") from error
        sync_folder(path.parent)
        return writer

    @classmethod
    def _begin(cls, path: Path, header: Header, entries: Iterable[Entry]) -> Self:
        """Begin a file with what it is to hold, in one write; where that fails, there is none.

        It is made once what it is to hold is ready: only a kill between two calls of the system leaves it empty.
        """
        writer = cls(path, -1)
        writer._header = header
        ready = writer._checked([header, *entries])
        writer._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try:
            lock(path, writer._descriptor)
            writer._write(*ready)
        except BaseException:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def reopen(cls, path: Path | str) -> tuple[Self, StoredRun]:
        """Continue the run file at `path`; return the writer and what the file holds.

        An unterminated last line is trimmed, which the returned `StoredRun.cut` says. Raises `StoreError` where the
        file is damaged or compressed, cannot be written, or is being written by another process.
        """
        path = Path(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise StoreError(f"cannot resume {path}: {error.strerror}") from None
        writer = cls(path, descriptor)
        try:
            lock(path, descriptor)
            if is_compressed(os.pread(descriptor, 2, 0)):
                raise StoreError(f"cannot resume {path}: it is compressed; gunzip it first")
            stored = read_run(path)
            writer._size = _size_of_whole_lines(path)
            writer._case_ids = set(stored.cases)
            writer._found = {line: set(held) for line, held in stored.found.items()}
            for one in stored.rounds:
                lines.add_round(one, writer._rounds)
            writer._header = stored.header
            writer._restore()
        except BaseException:
            writer.close()
            raise
        return writer, stored

    def append(self, *entries: Entry) -> None:
        """Write `entries`, a line each; when this returns, they are on the disk.

        Raises `StoreError` where they cannot be written (a full disk; its cause is then the `OSError`) or could not be
        read again: a number that must be finite is not, or a case is not listed. The file then holds what it held
        before.
        """
        self._write(*self._checked(entries))

    def check(self, entry: Entry) -> None:
        """Raise `CannotBeError` where `append` would, for what `entry` says."""
        self._checked([entry])

    def close(self) -> None:
        """Release the file and its lock; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes, known: _Known) -> None:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError as error:
            self._restore()
            raise StoreError(f"cannot write {self.path}: {error.strerror}; {self._advice}") from error
        except BaseException:
            self._restore()
            raise
        self._size += len(data)
        self._case_ids, self._found, self._rounds = known

    @property
    def _advice(self) -> str:
        """What to do when the file cannot be written any more."""
        if not self._size or self._header is None:
            return "choose another --results folder"
        explains, arm = self._header.explains, self._header.arm is not None
        kept = f"what was {'stored' if explains else 'measured'} before is kept"
        if not self._header.goes_on:
            return f"{kept}, but cannot be resumed: mend this, then {'ab' if arm else verb_of(explains)} anew"
        fleet = self._header.fleet
        run = f"{fleet.id} --ray ADDRESS" if fleet else self.path.stem
        again = f"--resume {run} --results {quote(str(self.path.parent.parent))}"
        command = f"ampbench {verb_of(explains)} " if explains else ""
        return f"{kept}: mend this, then continue with {command}{again}"

    def _checked(self, records: Sequence[Header | Entry]) -> tuple[bytes, _Known]:
        """Return the lines of `records`, sure to be readable again; then what is known once they are written."""
        rounds = dict(self._rounds) if any(isinstance(record, Round) for record in records) else self._rounds
        known = set(self._case_ids) if any(isinstance(record, Case) for record in records) else self._case_ids
        found = dict(self._found)
        written: list[bytes] = []
        for record in records:
            try:
                data = lines.encode(record)
                kind, _ = lines.decode(data)
                if self._size or written:
                    lines.check_entry(kind, getattr(record, "case_id", ""), record, known, found, rounds)
                elif isinstance(record, Header):
                    lines.check_said(record)
            except LineError as error:
                told = f"{self.path}: cannot store a {type(record).__name__}: {error}"
                raise CannotBeError(told, str(error), lines.line_of(type(record))) from None
            written.append(data)
            if isinstance(record, Case):
                known.add(record.case_id)
            elif kind in LINES:
                found[kind] = {*found.get(kind, ()), getattr(record, LINES[kind].of)}
        return b"".join(written), (known, found, rounds)

    def _restore(self) -> None:
        """Cut what a failed write left behind; should that fail too, the reader takes it for the cut that it is."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            return


def write_whole(runs: Iterable[StoredRun], results: Path | str) -> dict[str, Path]:
    """Write each run as `runs/<id>.jsonl` in the folder `results`; return the files by the runs' ids.

    They get their names once all of them are whole. Raises `StoreError` where they cannot be written (its cause is
    then the `OSError`); then there is none.
    """
    folder, written = Path(results) / "runs", {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=results) as temporary:
            for stored in runs:
                path = folder / f"{stored.header.run}{SUFFIX}"
                RunWriter._begin(Path(temporary) / path.name, stored.header, _entries(stored)).close()
                written[stored.header.run] = path
            for path in written.values():
                (Path(temporary) / path.name).replace(path)
        sync_folder(folder)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}; choose another --results folder") from error
    return written


def _entries(stored: StoredRun) -> Iterator[Entry]:
    """Yield what a run holds: cases, rounds and all else, footers last."""
    by_case = (stored.memory, stored.divergence, stored.failures, stored.skips)
    yield from chain(stored.cases.values(), stored.rounds, *(entries.values() for entries in by_case))
    for metric, values in stored.readings.items():
        for case_id, value in values.items():
            yield Reading(case_id=case_id, metric=metric, value=value)
    for line, held in stored.found.items():
        yield from chain.from_iterable(held.values()) if LINES[line].several else held.values()
    yield from stored.footers


def encode_run(header: Header, entries: Iterable[Entry], path: Path) -> bytes:
    """Return what a run file of this name holds, compressed where it ends in .gz; the same bytes for the same run."""
    data = b"".join(map(lines.encode, [header, *entries]))
    return gzip.compress(data, mtime=0) if path.suffix == ".gz" else data


def _size_of_whole_lines(path: Path) -> int:
    """Return how many bytes of a run file make whole lines: up to and with its last newline."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - _BLOCK_BYTES, 0)
            file.seek(start)
            end = start + file.read(end - start).rfind(b"\n") + 1
            if end > start:
                return end
    return 0
