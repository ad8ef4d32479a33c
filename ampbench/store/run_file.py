"""Read a run file, or write it line by line, each on the disk before the next measurement.

A line is `{"round": {...}}`: one key, its kind, as in `records.run.CORE` and `records.kinds`. Decoding is strict: a
missing or unknown field, a wrong type and a value outside its field's bounds are damage, refused with the file and the
line's number. Reader and writer admit lines by one function, so every written line is readable.
"""

import contextlib
import errno
import fcntl
import functools
import gc
import gzip
import os
import re
import secrets
import tempfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Self, TypeVar, cast

import msgspec

from ampbench.errors import StoreError, escaped
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS, LINES, named, verb_of
from ampbench.records.measured import Divergence, Failure, Late, MemoryPass, Reading, Round, Skip
from ampbench.records.run import COMPRESSED, CORE, SCHEMA, SUFFIX, Entry, Footer, Header

CUT = "ends in a cut line, which was left out"
"""The state of a run file whose writer was killed."""
_LONGEST_LINE = 1 << 26
"""Three times the longest line: the trace of a step of a hundred thousand ops."""
_LAST = {
    "case": "cases", "memory": "memory", "divergence": "divergence", "late": "late", "failure": "failures",
    "skip": "skips",
}  # fmt: skip
"""Lines whose last one of each case counts, and their fields of `StoredRun`."""
_GZIP = b"\x1f\x8b"
"""The beginning of a compressed file."""
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
R = TypeVar("R")


class LineError(ValueError):
    """An invalid line; the message continues "FILE, line N: "."""


_CORE = {record: line for line, record in CORE.items()}
_STUDIED = {lines.record: lines.line for lines in LINES.values()}
_ENCODER = msgspec.json.Encoder(enc_hook=dict)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for a line: a wrong type, invalid UTF-8, or nested too deep."""
DAMAGED_OR_NEWER = "damaged, or written by a newer ampbench (upgrade this one)"
_KIND = re.compile(rb'\{"(\w{1,40})"')


def line_of(record: type) -> str:
    """Return the kind of line of a type of record; `KeyError` without one."""
    return _CORE.get(record) or _STUDIED[f"{record.__module__}:{record.__qualname__}"]


@functools.cache
def _decoder(begins: bytes) -> tuple[str, Callable[[bytes], Any]]:
    """Return the kind of the lines that begin so, up to its second quotation mark, and their decoder."""
    known = _KIND.fullmatch(begins)
    kind = known[1].decode() if known else ""
    if kind not in CORE and kind not in LINES:
        why = f"no line is called {kind}" if kind else "it begins as no line does"
        raise LineError(f"{DAMAGED_OR_NEWER}: {why}")
    record = CORE[kind] if kind in CORE else named(LINES[kind].record)
    strict = msgspec.defstruct(kind, [(kind, record)], gc=False, forbid_unknown_fields=True)
    return kind, msgspec.json.Decoder(strict).decode


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
    kind, decoded = _decoder(line[: line.find(b'"', 2) + 1])
    try:
        return kind, getattr(decoded(line), kind)
    except _UNREADABLE as error:
        raise LineError(f"{DAMAGED_OR_NEWER if 'unknown field' in str(error) else 'damaged'}: {error}") from None


def decode_header(data: bytes) -> Header:
    """Return the header in a file's first line; `LineError` without one, or with another schema."""
    try:
        schema = int(msgspec.json.decode(data)["header"]["schema"])
    except (*_UNREADABLE, LookupError, TypeError, ValueError):
        raise LineError("no header of an ampbench run: this is another program's file or a damaged one") from None
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


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which takes a third of the time to read a hundred thousand records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_id(file: Path) -> str:
    """Return the id of the run in `file`: the file's name without its suffix."""
    return file.name.removesuffix(".gz").removesuffix(SUFFIX)


def new_run_id(host: str, started: datetime | None = None) -> str:
    """Return an id for a run begun on `host` at `started` (now): `20260131T120000Z-myhost-1f9a3c`, sorted by time."""
    time = (started or datetime.now(UTC)).astimezone(UTC)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", host).strip("-") or "host"
    return f"{time:%Y%m%dT%H%M%SZ}-{name}-{time.microsecond >> 8:03x}{secrets.randbits(12):03x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The contents of a run file. `cases` are by case id, in the order of the file, as are `rounds`.

    `memory`, `divergence`, `late`, `failures` and `skips` hold each case's last entry, `readings` values by metric and
    case id. `found` holds the results of a run that explains or studies, by the name of a line (`records.kinds`) and
    case id or device: use `of`, `several_of` or `every`. `cut`: the last line was incomplete, as of a killed run, and
    left out.
    """

    path: Path
    header: Header
    cases: dict[str, Case] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    memory: dict[str, MemoryPass] = field(default_factory=dict)
    divergence: dict[str, Divergence] = field(default_factory=dict)
    late: dict[str, Late] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    skips: dict[str, Skip] = field(default_factory=dict)
    readings: dict[str, dict[str, float]] = field(default_factory=dict)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    footers: list[Footer] = field(default_factory=list)
    cut: bool = False
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, record: type[R]) -> Mapping[str, R]:
        """Return the records of this type by case id or device, the last of each."""
        return self.found.get(line_of(record), {})

    def several_of(self, record: type[R]) -> Mapping[str, list[R]]:
        """Return the records of this type by case id or device, which may have several."""
        return self.found.get(line_of(record), {})

    def every(self, record: type[R]) -> list[R]:
        """Return all records of this type."""
        kept = self.found.get(line_of(record), {}).values()
        return list(chain.from_iterable(kept) if LINES[line_of(record)].several else kept)

    @property
    def asked(self) -> Any:
        """The options of the run, as its study's record of options; None without any."""
        return asked_in(self.header)

    def narrowed(self, case_ids: Container[str]) -> "StoredRun":
        """Return the run with the entries and rounds of these cases alone; readings and devices stay."""

        def kept(entries: Mapping[str, R]) -> dict[str, R]:
            return {case_id: entry for case_id, entry in entries.items() if case_id in case_ids}

        by_case: dict[str, Any] = {name: kept(getattr(self, name)) for name in _LAST.values()}
        explained = {line: kept(held) if LINES[line].of == "case_id" else held for line, held in self.found.items()}
        rounds = [timing for timing in self.rounds if timing.case_id in case_ids]
        return replace(self, **by_case, found=explained, rounds=rounds)

    @property
    def explained(self) -> list[str]:
        """The ids of the cases it explains or studies; a search's beginning alone does not count."""
        held = (self.found.get(kind.found.line, ()) for kind in KINDS.values() if kind.of_cases)
        explained = set(chain.from_iterable(held))
        return [case_id for case_id in self.cases if case_id in explained]

    @property
    def given_up(self) -> set[str]:
        """The ids of the cases that a resumed run does not measure again."""
        return {*self.skips, *(case_id for case_id, failure in self.failures.items() if failure.final)}

    @property
    def ended(self) -> str:
        """How the last session ended, by its footer; "" without one (killed, or still running)."""
        return self.footers[-1].ended if self.footers else ""

    @property
    def ending(self) -> str:
        """How the run ended, in words; "" if unknown, for an imported run."""
        return self.ended or ("" if self.header.imported else "killed, or still running")

    @property
    def complete(self) -> bool:
        """Whether the run did not break off."""
        return self.ending in ("complete", "")

    def entries(self) -> Iterator[Entry]:
        """Yield all entries in an order for writing: footers last."""
        passes = self.memory, self.divergence, self.late
        yield from chain(self.cases.values(), self.rounds, *(entries.values() for entries in passes))
        for metric, values in self.readings.items():
            for case_id, value in values.items():
                yield Reading(case_id=case_id, metric=metric, value=value)
        for line, held in self.found.items():
            yield from chain.from_iterable(held.values()) if LINES[line].several else held.values()
        yield from chain(self.failures.values(), self.skips.values(), self.footers)

    def _take(self, line: str, record: Any) -> None:
        """Add a record; remove an earlier failure of its case that was not final, as the case was tried again."""
        case_id = getattr(record, "case_id", "")
        if case_id in self.failures and not self.failures[case_id].final:
            del self.failures[case_id]
        if line == "round":
            self.rounds.append(record)
        elif line in _LAST:
            getattr(self, _LAST[line])[case_id] = record
        elif line == "reading":
            self.readings.setdefault(record.metric, {})[case_id] = record.value
        elif line == "footer":
            self.footers.append(record)
        elif LINES[line].several:
            self.found.setdefault(line, {}).setdefault(getattr(record, LINES[line].of), []).append(record)
        else:
            self.found.setdefault(line, {})[getattr(record, LINES[line].of)] = record


def once(derive: Callable[[StoredRun], R]) -> Callable[[StoredRun], R]:
    """Return a function that derives a value from a run once, when it is first needed.

    Afterwards neither the run nor the value may change; a copy with changes (`replace`) starts without it.
    """

    @functools.wraps(derive)
    def known(stored: StoredRun) -> R:
        if derive not in stored._derived:
            stored._derived[derive] = derive(stored)
        return cast("R", stored._derived[derive])

    return known


def gathered(path: Path, header: Header, entries: Iterable[Entry], begun: StoredRun | None = None) -> StoredRun:
    """Return the run that a file at `path` would hold with all of `entries`, after those in the run `begun`."""
    run = StoredRun(path=path, header=header)
    for entry in chain(begun.entries() if begun else (), entries):
        run._take(line_of(type(entry)), entry)
    return run


def _admit(line: bytes, known: Container[str]) -> tuple[str, Any]:
    """Return the kind and the record of the next line; the ids in `known` are those of the cases before it.

    Raises `LineError` for a damaged line, a second header and an entry of an unlisted case.
    """
    kind, record = decode(line)
    if kind == "header":
        raise LineError("a second header: two files were put together")
    case_id = getattr(record, "case_id", None)
    if not (kind == "case" or case_id is None or case_id in known):
        raise LineError(f"a {kind} of a case that is not listed before it: {case_id}")
    return kind, record


def read_run(path: Path | str) -> StoredRun:
    """Return the contents of the run file at `path`, compressed or not.

    An unterminated last line is a cut and left out. Raises `StoreError` with the file and the line's number for any
    other damage: a damaged line, an unknown schema, a foreign or empty file, an entry of an unlisted case.
    """
    return _read(Path(path))[0]


def read_header(path: Path | str) -> Header:
    """Return the header of the run file at `path` without reading further; `StoreError` without one."""
    return _header(Path(path), next(_read_lines(Path(path)), b""))


def _read(path: Path) -> tuple[StoredRun, int]:
    """Return the run in a file, and the bytes of its whole lines."""
    cut, read = False, _read_lines(path)
    with no_garbage_collection():
        line = next(read, b"")
        run, size = StoredRun(path=path, header=_header(path, line)), len(line)
        for number, line in enumerate(read, 2):
            if cut := not line.endswith(b"\n"):
                break
            try:
                run._take(*_admit(line, run.cases))
            except LineError as error:
                raise StoreError(f"{path}, line {number}: {error}") from None
            size += len(line)
    return replace(run, cut=cut), size


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed if necessary; `StoreError` if it cannot be read.

    It may be a pipe, except under the name of a run file, where reading might never end. A line longer than any line of
    a run is refused before it fills the memory.
    """
    number = 0
    try:
        if path.name.endswith((SUFFIX, COMPRESSED)) and path.exists() and not path.is_file():
            raise StoreError(f"cannot read {path}: it is no file")
        with path.open("rb") as file:
            source = gzip.open(file) if file.peek(2).startswith(_GZIP) else file  # noqa: SIM115 - closed with `file`
            while line := source.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    why = f"longer than {_LONGEST_LINE >> 20} MiB, which no line of a run is"
                    raise StoreError(f"{path}, line {number}: damaged: {why}")
                yield line
    except _DAMAGED as error:
        raise StoreError(f"{path}, line {number + 1}: damaged: {error}") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None


def _header(path: Path, line: bytes) -> Header:
    """Return the header in the first line of a file; `StoreError` without one."""
    try:
        if not line:
            raise LineError("no header: the file is empty")
        if not line.endswith(b"\n"):
            raise LineError("no whole header: cut before anything was measured, or not an ampbench run")
        return decode_header(line)
    except LineError as error:
        raise StoreError(f"{path}, line 1: {error}") from None


class CannotBeError(StoreError):
    """An entry that would be unreadable, for the reason `why`; `line` is the name of its line."""

    def __init__(self, message: str, why: str, line: str):
        super().__init__(message)
        self.why, self.line = why, line

    def failure(self, case_id: str, stage: str) -> Failure:
        """Return the failure of its case at a `stage` that replaces the entry."""
        message = f"invalid measurement: {self.why}"
        return Failure(case_id=case_id, stage=stage, cause="exception", message=message)


def require_writable(results: Path | str) -> None:
    """Raise `StoreError` if no run can be written into the folder `results`; call it before the work."""
    folder = Path(results) / "runs"
    try:
        nearest = next(above for above in (folder, *folder.parents) if above.exists() or above.is_symlink())
        problem = "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} may not be written to"
        problem = problem if nearest.is_dir() else f"{nearest} is no folder"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise StoreError(f"cannot write {folder}: {problem}; choose another --results folder")


class RunWriter:
    """A run file that is being written; locked against a second writer until closed. Use it as a context manager.

    `create` begins a file, `reopen` continues one.
    """

    def __init__(self, path: Path, header: Header, descriptor: int, size: int = 0, cases: Iterable[str] = ()):
        self.path, self.cases = path, set(cases)
        self._header, self._descriptor, self._size = header, descriptor, size

    @classmethod
    def create(cls, results: Path | str, header: Header, cases: Iterable[Case] = ()) -> Self:
        """Begin `runs/<header.run>.jsonl` in the folder `results` with the header and the cases, in one write.

        Raises `StoreError` if the folder cannot be written (its cause is then the `OSError`) or the file exists.
        """
        path = Path(results) / "runs" / f"{header.run}{SUFFIX}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = cls._begin(path, header, cases)
            _sync_folder(path.parent)
        except FileExistsError:
            if not path.parent.is_dir():
                require_writable(results)  # says which
            raise StoreError(f"{path} exists: choose another --results folder, or continue it with --resume") from None
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}; choose another --results folder") from error
        return writer

    @classmethod
    def _begin(cls, path: Path, header: Header, entries: Iterable[Entry]) -> Self:
        """Begin a file with its first lines in one write; if it fails, there is no file.

        The lines are encoded first: only a kill between two system calls leaves the file empty.
        """
        writer = cls(path, header, -1)
        begun = writer._encoded([header, *entries])
        writer._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try:
            _lock(path, writer._descriptor)
            writer._write(begun)
        except BaseException:
            writer.close()
            path.unlink(missing_ok=True)
            raise
        return writer

    @classmethod
    def reopen(cls, path: Path | str) -> tuple[Self, StoredRun]:
        """Continue the run file at `path`; return the writer and the run.

        An unterminated last line is trimmed (`StoredRun.cut`). Raises `StoreError` if the file is damaged or
        compressed, cannot be written, or is being written by another process.
        """
        path, descriptor = Path(path), -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
            _lock(path, descriptor)
            if os.pread(descriptor, 2, 0) == _GZIP:
                raise StoreError(f"cannot resume {path}: it is compressed; gunzip it first")
            stored, size = _read(path)
            os.ftruncate(descriptor, size)
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            if isinstance(error, OSError):
                raise StoreError(f"cannot resume {path}: {error.strerror}") from None
            raise
        return cls(path, stored.header, descriptor, size, stored.cases), stored

    def append(self, *entries: Entry) -> None:
        """Write `entries`, a line each; when this returns, they are on the disk.

        Raises `StoreError` if they cannot be written (a full disk; its cause is then the `OSError`) or would be
        unreadable; the file is then unchanged. Raises it, too, if the file was deleted, replaced or changed by others.
        """
        self._write(self._encoded(entries))

    def check(self, entry: Entry) -> None:
        """Raise `CannotBeError` for an entry that `append` would refuse."""
        self._encoded([entry])

    def close(self) -> None:
        """Release the file and its lock; closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encoded(self, records: Iterable[Header | Entry]) -> bytes:
        """Return the lines of `records`, all readable."""
        encoded = []
        for record in records:
            line = encode(record)
            try:
                if record is self._header:
                    decode_header(line)
                else:
                    kind, admitted = _admit(line, self.cases)
                    if kind == "case":
                        self.cases.add(admitted.case_id)
            except LineError as error:
                message = f"{self.path}: cannot store a {type(record).__name__}: {error}"
                raise CannotBeError(message, str(error), line_of(type(record))) from None
            encoded.append(line)
        return b"".join(encoded)

    def _write(self, data: bytes) -> None:
        self._require_own()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except BaseException as error:
            with contextlib.suppress(OSError):  # if this fails too, the reader leaves out the cut line
                os.ftruncate(self._descriptor, self._size)
            if isinstance(error, OSError):
                advice = f"the stored records are kept: mend this, then {self._advice}"
                advice = advice if self._size else "choose another --results folder"
                raise StoreError(f"cannot write {self.path}: {error.strerror}; {advice}") from error
            raise
        self._size += len(data)

    def _require_own(self) -> None:
        """Raise `StoreError` if the file at the path was moved, replaced or changed by others."""
        written = os.fstat(self._descriptor)
        with contextlib.suppress(OSError):
            if os.path.samestat(written, self.path.stat()) and written.st_size == self._size:
                return
        raise StoreError(
            f"{self.path} was moved, deleted, replaced or changed while this run wrote to it, so its measurements may "
            "be lost: leave the file alone, then measure anew"
        )

    @property
    def _advice(self) -> str:
        """The command that goes on with the run or repeats it."""
        header = self._header
        verb = "ab" if header.arm is not None else verb_of(header.explains)
        if not header.goes_on:
            return f"ampbench {verb} anew"
        run = f"{header.fleet.id} --ray ADDRESS" if header.fleet else self.path.stem
        return f"ampbench {verb} --resume {run} --results {quote(str(self.path.parent.parent))}"


def write_whole(runs: Iterable[StoredRun], results: Path | str) -> dict[str, Path]:
    """Write each run as `runs/<id>.jsonl` in the folder `results`; return the files by the runs' ids.

    Either all files are written or none: they get their names once all are complete. Raises `StoreError` if they cannot
    be written (its cause is then the `OSError`).
    """
    folder, written = Path(results) / "runs", {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=results) as temporary:
            for stored in runs:
                path = folder / f"{stored.header.run}{SUFFIX}"
                RunWriter._begin(Path(temporary) / path.name, stored.header, stored.entries()).close()
                written[stored.header.run] = path
            for path in written.values():
                (Path(temporary) / path.name).replace(path)
        _sync_folder(folder)
    except OSError as error:
        raise StoreError(f"cannot write {folder}: {error.strerror}; choose another --results folder") from error
    return written


def _lock(path: Path, descriptor: int) -> None:
    """Lock the file against other writers until it is closed; `StoreError` if another writes it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreError(f"{path} is being written by another ampbench: wait for it or begin a new run") from None
    except OSError as error:
        # some network file systems have no locks; measuring must work there, too
        if error.errno not in _NO_LOCKS:
            raise StoreError(f"cannot lock {path}: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Write a new file's name to the disk, on file systems that can (some network ones cannot)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
