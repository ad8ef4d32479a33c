"""What a user names, found, read and reduced, each run once."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ampbench.convert import asv
from ampbench.convert.asv_files import BENCHMARKS_FILE, MACHINE_FILE, result_paths
from ampbench.errors import NothingToRunError, StoreError
from ampbench.keywords import matches
from ampbench.store import CUT, StoredRun, check_folder, find_run, not_measured, read_header, read_run, run_files
from ampbench.trends.metrics import TIME, Tracked
from ampbench.trends.reducing import Rounds, RunValues, reduced

_ASV = "asv"
"""The folder of a results folder that is asv's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was read: the runs, each once, and what is to be said about reading them."""

    runs: Sequence[RunValues]
    notes: Sequence[str] = field(default_factory=list)


def read_runs(sources: Sequence[str], results: Path, metrics: Iterable[Tracked], keyword: str = "") -> Sources:
    """Return the runs that `sources` name, with the `metrics` of the cases whose id matches `keyword`.

    A source is a run file, a run's id, a prefix of one or `latest` (in the folder `results`), a folder of run files, a
    results folder (its runs/ and its asv/), a folder of asv's results, or a file of pytest-benchmark. Without any: all
    of `results`. A run that is named twice, or was imported and is there in its own format too, counts once; of a file
    of asv's that grew since it was imported, it counts as it is.

    Raises `NothingToRunError` where there is no run that measured, `StoreError` for a damaged or foreign file,
    `UsageError` for what names nothing.
    """
    reader = _Reader(list(dict.fromkeys([*(one.column.name for one in metrics), TIME])), keyword)
    for source in sources:
        _read(source, results, reader)
    if not sources:
        check_folder(results)
        _read_folder(results, reader)
    reader.finish()
    reader.notes += [f"left out: {problem}" for problem in reader.unread]
    if not reader.runs:
        if reader.unread:
            raise StoreError(reader.unread[0])
        if reader.explaining:
            raise NothingToRunError(not_measured(read_header(reader.explaining[-1])))
        said = ", ".join(sources) or str(results)
        raise NothingToRunError(f"there is no run in {said}: measure with `ampbench run`, or name run files or folders")
    if not any(run.cases for run in reader.runs.values()):
        raise NothingToRunError(f"no case of {len(reader.runs)} runs matches -k {keyword!r}")
    counted = [f"{remark} ({count} {'file' if count == 1 else 'files'})" for remark, count in reader.remarks.items()]
    return Sources(runs=list(reader.runs.values()), notes=[*reader.notes, *counted])


class _Measurement(NamedTuple):
    """What imports of one measurement share, whatever the file held when each was read."""

    program: str
    host: str
    commit: str | None
    file: str
    started_at: str
    devices: frozenset[str]


class _Held(NamedTuple):
    """What tells which of two imports is to be kept, in this order, and its `run`: asv only ever adds to a file."""

    finished_at: str
    cases: int
    numbers: int
    run: str


class _Reader:
    """Reads files, each once, and keeps the runs by id."""

    def __init__(self, columns: list[str], keyword: str):
        self.runs: dict[str, RunValues] = {}
        self.notes: list[str] = []
        self.remarks: Counter[str] = Counter()
        self.explaining: list[Path] = []
        self.unread: list[str] = []
        self._columns = columns
        self._keyword = keyword
        self._seen: set[Path] = set()
        self._waiting: list[Path] = []
        self._imported: dict[_Measurement, _Held] = {}
        self._devices: dict[tuple[str, str], str] = {}
        self._chosen: dict[str, bool] = {}

    def native(self, path: Path) -> None:
        if not self._is_new(path):
            return
        rounds = Rounds()
        stored = read_run(path, on_round=rounds.add)
        if stored.header.explains:
            self.explaining.append(path)
            return
        if stored.cut:
            self.notes.append(f"{path} {CUT}")
        self._keep(stored, rounds)

    def foreign(self, path: Path) -> None:
        """Read `path` in the end: what was imported from it is known then."""
        if self._is_new(path):
            self._waiting.append(path)

    def finish(self) -> None:
        """Read what other programs left."""
        if not self._waiting:
            return
        from ampbench.convert.native import read_source, recognise  # most trends have nothing to convert

        for path in self._waiting:
            program = recognise(path)
            for file in result_paths(path) if program == asv.PROGRAM else [path]:
                # a file that does not tell its device was imported with one; asv keeps it in a folder named by the host
                device = self._devices.get((file.parent.name, file.name), "")
                for stored in read_source(file, program, device, self.remarks):
                    rounds = Rounds()
                    for one in stored.rounds:
                        rounds.add(one)
                    self._keep(stored, rounds)

    def _is_new(self, path: Path) -> bool:
        resolved = path.resolve()
        known = resolved in self._seen
        self._seen.add(resolved)
        return not known

    def _keep(self, stored: StoredRun, rounds: Rounds) -> None:
        if stored.header.run in self.runs or not self._is_wanted(stored, rounds):
            return
        for case_id in stored.cases:
            if case_id not in self._chosen:
                self._chosen[case_id] = matches(self._keyword, case_id)
        chosen = {case_id for case_id in stored.cases if self._chosen[case_id]}
        self.runs[stored.header.run] = reduced(stored, rounds, self._columns, chosen)

    def _is_wanted(self, stored: StoredRun, rounds: Rounds) -> bool:
        """Return whether a run is to be kept: imports of one measurement are one run, that which was read last."""
        header, imported = stored.header, stored.header.imported
        if imported is None:
            return True
        devices = frozenset(case.device for case in stored.cases.values())
        host = header.environment.host
        key = _Measurement(imported.program, host, header.commit, imported.file, header.started_at, devices)
        numbers = len(rounds.kept) + sum(map(len, stored.readings.values()))
        finished = stored.footers[-1].finished_at if stored.footers else ""
        held = _Held(finished, len(stored.cases), numbers, header.run)
        known = self._imported.get(key)
        if known is not None:
            if known[:3] >= held[:3]:
                return False
            del self.runs[known.run]
        self._imported[key] = held
        if imported.program == asv.PROGRAM and len(devices) == 1:
            (self._devices[host, imported.file],) = devices
        return True


def _read(source: str, results: Path, reader: _Reader) -> None:
    path = Path(source).expanduser()
    if path.is_dir():
        _read_folder(path, reader)
    elif path.is_file() and path.suffix == ".json":
        reader.foreign(path)
    else:
        reader.native(find_run(source, results, reader.notes.append))


def _read_folder(folder: Path, reader: _Reader) -> None:
    files = run_files(folder, measuring=True)
    reader.explaining += [] if files else run_files(folder)
    for path in files:
        try:
            reader.native(path)
        except StoreError as error:
            reader.unread.append(str(error))
    theirs = folder / _ASV
    # before its first result asv leaves files that describe the machine and the suite
    if theirs.is_dir() and any(path.name not in (MACHINE_FILE, BENCHMARKS_FILE) for path in theirs.rglob("*.json")):
        reader.foreign(theirs)
    elif not files and not (folder / "runs").is_dir() and any(folder.rglob("*.json")):
        reader.foreign(folder)
