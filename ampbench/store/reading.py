"""Reading a run file, compressed or not: whole and checked, or refused by name and line number."""

import gzip
import io
import re
import stat
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from ampbench.errors import StoreError
from ampbench.records.case import Case
from ampbench.records.kinds import KINDS, LINES, line_of
from ampbench.records.labels import few
from ampbench.records.measured import Divergence, Failure, Fitness, MemoryPass, Round, Skip, Telemetry
from ampbench.records.run import COMPRESSED, SUFFIX, Entry, Footer, Header
from ampbench.store import lines
from ampbench.store.lines import LineError, LongLines, long_line, no_garbage_collection

CUT = "ends in a cut line, which was left out"
"""What is said of a run file that was killed while it was written to."""
_LONGEST_LINE = 1 << 26
"""The trace of a step of a hundred thousand ops, the longest line that there is, is a third of it."""
_MOST_UNPACKED = 100
"""A compressed run file is this many times as large once it is unpacked, at most, small ones apart: probes of rules,
which repeat themselves most, are 30 times."""
_ALWAYS_UNPACKED = 1 << 24
_LATEST = {"case": "cases", "memory": "memory", "divergence": "divergence", "failure": "failures", "skip": "skips"}
"""Kinds of entry of which the last of each case counts, and where a `StoredRun` has them."""
_GZIP = b"\x1f\x8b"
_BUFFER_BYTES, _HEADER_BYTES = 1 << 18, 1 << 13
"""How much is read at once of a file that is read to its end, and of one of which only the header is."""
_AT_ONCE = 128
"""So many rounds are handed over at once: what they are decoded to still fits a processor's cache."""
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
_OTHER_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


_AN_ID = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{6}")


def run_id(file: Path) -> str:
    """Return the id of the run in `file`, which is the file's name without its suffix."""
    return file.name.removesuffix(".gz").removesuffix(SUFFIX)


class TimedRound(Protocol):
    """What tables and comparisons need of a `Round`, as `read_run` hands them to `on_rounds`."""

    @property
    def case_id(self) -> str: ...  # noqa: D102
    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def confirmation(self) -> bool: ...  # noqa: D102
    @property
    def fitness(self) -> Fitness: ...  # noqa: D102
    @property
    def control(self) -> bool: ...  # noqa: D102
    @property
    def samples(self) -> list[list[float]]: ...  # noqa: D102
    @property
    def steps_per_sample(self) -> list[int]: ...  # noqa: D102
    @property
    def cpu_samples(self) -> list[list[float]] | None: ...  # noqa: D102
    @property
    def windows(self) -> list[list[float]] | None: ...  # noqa: D102
    @property
    def burst_seconds(self) -> float | None: ...  # noqa: D102
    @property
    def telemetry(self) -> Telemetry | None: ...  # noqa: D102
    @property
    def items_per_step(self) -> float: ...  # noqa: D102
    @property
    def weights_digest(self) -> str: ...  # noqa: D102
    @property
    def alone(self) -> str: ...  # noqa: D102


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run file's contents. `cases` are by case id, in the order of the file, as are `rounds`.

    `memory`, `divergence`, `failures` and `skips` hold each case's last entry of that kind, `readings` the values by
    metric and case id. `found` is what a run explains or studies, by the name of a line (`records.kinds`) and case id,
    or device: ask for it by its type, with `of`, `several_of` or `every`. A trace is decoded when it is asked for,
    which raises `StoreError` for a damaged one. `cut`: the last line had no end, which is what a killed run leaves, and
    was left out. `lacks` says by case what a run that ended as complete should hold and does not ("round 2", "the
    memory pass"): lines of its file were lost.
    """

    path: Path
    header: Header
    cases: dict[str, Case] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    memory: dict[str, MemoryPass] = field(default_factory=dict)
    divergence: dict[str, Divergence] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    skips: dict[str, Skip] = field(default_factory=dict)
    readings: dict[str, dict[str, float]] = field(default_factory=dict)
    found: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    footers: list[Footer] = field(default_factory=list)
    cut: bool = False
    lacks: dict[str, list[str]] = field(default_factory=dict)
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, record: type[R]) -> Mapping[str, R]:
        """Return what is stored as `record`, by case id or device: of several of one the last."""
        return self.found.get(line_of(record), {})

    def several_of(self, record: type[R]) -> Mapping[str, list[R]]:
        """Return what is stored as `record`, of which there may be several of a case or device, by that."""
        return self.found.get(line_of(record), {})

    def every(self, record: type[R]) -> list[R]:
        """Return all that is stored as `record`, of which there may be several of a case or device, by these."""
        return [one for several in self.several_of(record).values() for one in several]

    @property
    def asked(self) -> Any:
        """What the run was asked for, as the record that the row of its kind names; None where it does not say."""
        return lines.asked_in(self.header)

    def narrowed(self, case_ids: Container[str]) -> "StoredRun":
        """Return the run with what is of these cases alone; rounds, readings and what is of devices stay."""

        def kept(entries: Mapping[str, R]) -> dict[str, R]:
            return {case_id: entry for case_id, entry in entries.items() if case_id in case_ids}

        by_case: dict[str, Any] = {name: kept(getattr(self, name)) for name in _LATEST.values()}
        found = {line: kept(held) if LINES[line].of == "case_id" else held for line, held in self.found.items()}
        return replace(self, **by_case, found=found)

    @property
    def misnamed(self) -> str:
        """What is wrong with the file's name, in words after it; "": nothing.

        A run may be kept under any name, but not under the id of another.
        """
        name = run_id(self.path)
        return (
            f"is run {self.header.run} under the id of another"
            if name != self.header.run and _AN_ID.fullmatch(name)
            else ""
        )

    @property
    def lost(self) -> str:
        """What is missing of what it `lacks`, in words after its name; "": nothing."""
        if not self.lacks:
            return ""
        case_id, missing = next(iter(self.lacks.items()))
        others = f", and something of {len(self.lacks) - 1} more cases" if len(self.lacks) > 1 else ""
        return f"says that it is complete, but lines are missing: {few(missing)} of {case_id}{others}"

    @property
    def explained(self) -> list[str]:
        """The ids of the cases that it explains or studies, but those of which only a search's beginning is there."""
        lines_found = (kind.found.line for kind in KINDS.values() if kind.of_cases)
        found = {case_id for line in lines_found for case_id in self.found.get(line, ())}
        return [case_id for case_id in self.cases if case_id in found]

    @property
    def given_up(self) -> set[str]:
        """The ids of the cases of which nothing is measured any more, however often the run is resumed."""
        return {*self.skips, *(case_id for case_id, failure in self.failures.items() if failure.final)}

    @property
    def ended(self) -> str:
        """How the last session ended, as its footer says; "" where there is none (killed, or still running)."""
        return self.footers[-1].ended if self.footers else ""

    @property
    def ending(self) -> str:
        """How the run ended, in words; "" for an imported one whose program did not tell."""
        return self.ended or ("" if self.header.imported else "killed, or still running")

    @property
    def complete(self) -> bool:
        """Whether nothing says that the run broke off."""
        return self.ending in ("complete", "")


def once(derive: Callable[[StoredRun], R]) -> Callable[[StoredRun], R]:
    """Have what a function derives of a run derived when it is first asked for, and then known: a page asks ten times.

    Nobody may change a run after that, nor what is derived of it; a copy with changes (`replace`) begins anew.
    """

    @wraps(derive)
    def known(stored: StoredRun) -> R:
        found = stored._derived
        if derive not in found:
            found[derive] = derive(stored)
        return cast("R", found[derive])

    return known


def read_run(
    path: Path | str, on_rounds: Callable[[Sequence[TimedRound]], None] | None = None, *, check_traces: bool = False
) -> StoredRun:
    """Return the contents of the run file at `path`.

    An unterminated last line is a cut and left out. Raises `StoreError` with the file and the line's number for any
    other damage: a damaged line, an unknown schema, a foreign or empty file, an entry of a case that is not listed, or
    of a search without its space.

    With `on_rounds`, rounds are not kept: they are handed over, some at a time, in the order of the file, so that a
    table of a run of any size is made in little memory. A trace is decoded, and refused where it is damaged, when it is
    first asked for; with `check_traces` every one is at once.
    """
    path = Path(path)
    rounds: list[Round] = []
    keep = on_rounds or (lambda found: rounds.extend(lines.to_records("round", found)))
    reader = _Reader(path, keep, check_traces)
    with opened(path) as file, no_garbage_collection():
        header = _header(file)
        try:
            for line in file:
                reader.take(line)
            reader.hand_over()
        except _TooLargeError as error:
            raise StoreError(f"{path}, line {reader.number + 1}: {error}") from None
        except LineError as error:
            raise StoreError(f"{path}, line {reader.number}: {error}") from None
        except _DAMAGED as error:
            raise StoreError(f"{path}, after line {reader.number}: damaged: {error}") from None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
    stored = replace(reader.contents.stored(path, header), rounds=rounds, cut=reader.cut)
    return replace(stored, lacks=_lacking(stored, reader.rounds))


class _Reader:
    """What is read of the run file at `path` behind its header, some lines after the other.

    `number` is that of the last line that was taken, `rounds` are those that there are; `on_rounds` takes them.
    """

    def __init__(self, path: Path, on_rounds: Callable[[list[Any]], None], check_traces: bool):
        self.contents = _Contents()
        self.rounds: lines.Rounds = {}
        self.number = 1
        self.cut = False
        self._path = path
        self._on_rounds = on_rounds
        self._pending: list[Any] = []
        self._check_traces = check_traces

    def take(self, line: bytes) -> None:
        """Take the next line; `LineError` where it is not what it should be."""
        self.number += 1
        contents = self.contents
        if not line.endswith(b"\n"):
            self.cut = True
            return
        if not self._check_traces and (long := long_line(line)):
            kind, case_id = long
            lines.check_entry(kind, case_id, None, contents.cases)
            self._keep(kind, case_id, line)
            return
        kind, record = lines.decode(line)
        if kind == "round":
            lines.check_round(record, contents.cases, self.rounds)
            contents.outdo(record.case_id)
            self._pending.append(record)
            if len(self._pending) == _AT_ONCE:
                self.hand_over()
            return
        record = lines.to_record(kind, record)
        case_id = getattr(record, "case_id", "")
        lines.check_entry(kind, case_id, record, contents.cases, contents.found)
        if kind in LINES and LINES[kind].long:
            self._keep(kind, case_id, line)
        else:
            contents.add(kind, case_id, record)

    def hand_over(self) -> None:
        """Hand over the rounds that were taken since."""
        if self._pending:
            self._on_rounds(self._pending)
            self._pending = []

    def _keep(self, kind: str, case_id: str, line: bytes) -> None:
        """Keep a long line of a case as it is."""
        found = self.contents.found
        if kind not in found:
            found[kind] = LongLines(partial(_decoded, self._path))
        found[kind].keep(case_id, line, self.number)
        self.contents.outdo(case_id)


def _lacking(stored: StoredRun, known: lines.Rounds) -> dict[str, list[str]]:
    """Return what a run that measured to its end should have of each case and has not: rounds, or a pass.

    That of `ab` has as many rounds of a case as were needed, and an imported one what its program kept.
    """
    header = stored.header
    if header.explains or header.arm is not None or header.imported is not None or stored.ended != "complete":
        return {}
    rounds = range(header.settings.rounds)
    all_own = lines.own_rounds(rounds)
    found: dict[str, list[str]] = {}
    for case_id in stored.cases:
        has = known.get(case_id, 0)
        if case_id in stored.failures or case_id in stored.skips:
            continue
        whole = has & all_own == all_own
        missing = [] if whole else [f"round {number}" for number in rounds if not lines.has_own(has, number)]
        for what, passes in (("memory", stored.memory), ("divergence", stored.divergence)):
            missing += [] if case_id in passes else [f"the {what} pass"]
        if missing:
            found[case_id] = missing
    return found


def gathered(path: Path, header: Header, entries: Iterable[Entry], begun: StoredRun | None = None) -> StoredRun:
    """Return the run that a file at `path` would hold had all of `entries`, rounds not among them, been written.

    They follow what is in the run `begun`, if there was one.
    """
    contents = _Contents(begun)
    for entry in entries:
        contents.add(lines.line_of(type(entry)), getattr(entry, "case_id", ""), entry)
    return contents.stored(path, header)


class _Contents:
    """What entries, read one after the other, leave: the last of each kind of a case, or all of them."""

    def __init__(self, begun: StoredRun | None = None) -> None:
        self.latest: dict[str, dict[str, Any]] = {kind: {} for kind in _LATEST}
        self.found: dict[str, Any] = {}
        self.readings: dict[str, dict[str, float]] = {}
        self.footers: list[Footer] = []
        if begun is not None:
            self.latest = {kind: dict(getattr(begun, name)) for kind, name in _LATEST.items()}
            self.footers = list(begun.footers)
            self.found = {
                line: {key: list(one) if LINES[line].several else one for key, one in held.items()}
                for line, held in begun.found.items()
            }
            self.readings = {metric: dict(values) for metric, values in begun.readings.items()}

        self.cases: dict[str, Case] = self.latest["case"]
        self.failures: dict[str, Failure] = self.latest["failure"]

    def outdo(self, case_id: str) -> None:
        """Drop the failure of a case of which there is more: its worker was killed, and it was tried again."""
        if case_id in self.failures and not self.failures[case_id].final:
            del self.failures[case_id]

    def add(self, kind: str, case_id: str, record: Any) -> None:
        """Add a record of the case `case_id`, of none where that is ""."""
        self.outdo(case_id)
        if kind == "reading":
            self.readings.setdefault(record.metric, {})[record.case_id] = record.value
        elif kind in LINES:
            held, key = self.found.setdefault(kind, {}), getattr(record, LINES[kind].of)
            if LINES[kind].several:
                held.setdefault(key, []).append(record)
            else:
                held[key] = record
        elif kind == "footer":
            self.footers.append(record)
        else:
            self.latest[kind][case_id] = record

    def stored(self, path: Path, header: Header) -> StoredRun:
        by_case: dict[str, Any] = {name: self.latest[kind] for kind, name in _LATEST.items()}
        return StoredRun(
            path=path,
            header=header,
            readings=self.readings,
            found=self.found,
            footers=self.footers,
            **by_case,
        )


def read_header(path: Path | str) -> Header:
    """Return the header of the run file at `path` without reading further; `StoreError` where there is none."""
    with opened(Path(path), _HEADER_BYTES) as file:
        return _header(file)


def first_line(path: Path) -> bytes:
    """Return the first line of a file, whatever it is; `StoreError` where it cannot be read."""
    with opened(path, _HEADER_BYTES) as file:
        try:
            return file.readline(_LONGEST_LINE + 1)
        except (LineError, OSError, *_DAMAGED) as error:
            raise StoreError(f"{path}, line 1: damaged: {error}") from None


@contextmanager
def opened(path: Path, at_once: int = _BUFFER_BYTES) -> Iterator[BinaryIO]:
    """Open `path` for reading, so many bytes at once, decompressed where it is compressed; `StoreError` where it fails.

    It may be a pipe, but not under the name of a run file: those are found in folders, and reading one that nobody
    writes to would never end. A line longer than any of a run, and a file that unpacks to more than any run does, raise
    `LineError` as they are read, before they take time and memory.
    """
    try:
        other = what_else(path) if path.name.endswith((SUFFIX, COMPRESSED)) else ""
        if other:
            raise StoreError(f"cannot read {path}: it is {other}, not a file")
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    with file:
        try:
            compressed = is_compressed(file.peek(len(_GZIP)))
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
        yield cast("BinaryIO", io.BufferedReader(_Bounded(file, compressed), at_once))


def what_else(path: Path) -> str:
    """Return what is at `path` where that is no file ("a named pipe"); "" for a file, and where there is nothing."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return _OTHER_KINDS.get(kind, "")


class _TooLargeError(LineError):
    """A line, or what a file unpacks to, is larger than any of a run."""


class _Bounded(io.RawIOBase):
    """What is in `file`, decompressed where it is `compressed`, as long as it has the size of a run."""

    def __init__(self, file: io.BufferedReader, compressed: bool):
        self.name = file.name
        self._packed = file if compressed and file.seekable() else None
        self._source = gzip.open(file) if compressed else file  # noqa: SIM115 - who opened `file` closes it
        self._unpacked = self._line = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        end = data.rfind(b"\n")
        self._line = self._line + len(data) if end < 0 else len(data) - end - 1
        self._unpacked += len(data)
        if self._line > _LONGEST_LINE:
            raise _TooLargeError(f"damaged: longer than {_LONGEST_LINE >> 20} MiB, which no line of a run is")
        if self._packed and self._unpacked > _ALWAYS_UNPACKED + _MOST_UNPACKED * self._packed.tell():
            raise _TooLargeError(f"damaged: unpacks to over {_MOST_UNPACKED} times its size, which no run does")
        return len(data)


def is_compressed(beginning: bytes) -> bool:
    """Return whether a file with this `beginning` is one of gzip's."""
    return beginning.startswith(_GZIP)


def _decoded(path: Path, line: bytes, number: int) -> Any:
    """Return the record in `line`, the `number`th of a run file; `StoreError` where it is damaged."""
    try:
        kind, found = lines.decode(line)
        record = lines.to_record(kind, found)
        lines.check_row(kind, record, {})
        return record
    except LineError as error:
        raise StoreError(f"{path}, line {number}: {error}") from None


def _header(file: BinaryIO) -> Header:
    """Return the header that `file` begins with, and leave the file behind it."""
    try:
        data = file.readline(_LONGEST_LINE + 1)
        if not data:
            raise LineError("no header: the file is empty")
        if not data.endswith(b"\n"):
            raise LineError("no whole header: cut before anything was measured, or not an ampbench run")
        lines.check_header(data)
        header: Header = lines.to_record(*lines.decode(data))
        lines.check_said(header)
    except LineError as error:
        raise StoreError(f"{file.name}, line 1: {error}") from None
    except _DAMAGED as error:
        raise StoreError(f"{file.name}, line 1: damaged: {error}") from None
    return header
