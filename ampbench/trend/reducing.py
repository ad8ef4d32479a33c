"""What a user names, found, read and reduced to what trends need of it, each run once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ampbench.base import stats
from ampbench.base.metrics import COLUMNS, DRIFT
from ampbench.base.names import matches
from ampbench.base.units import format_share
from ampbench.convert import asv
from ampbench.convert.asv_files import BENCHMARKS_FILE, MACHINE_FILE, result_paths
from ampbench.errors import NothingToRunError, StoreError
from ampbench.judge.deciding import without_slow
from ampbench.judge.frame import measured_columns
from ampbench.judge.rounds import UNFIT_SHARE, MeasuredRun, Role, grid, said_of
from ampbench.records.case import Case
from ampbench.records.measured import OTHER_SHARE, Divergence
from ampbench.records.run import Header
from ampbench.store import (
    CUT,
    check_folder,
    find_runs,
    not_measured,
    read_header,
    run_files,
)
from ampbench.trend.series import TIME, UNDEFINED, Tracked

_INTERVAL = ("seconds_low", "seconds_high")
_CONFIDENCE, _ASV_CONFIDENCE = 0.95, 0.99
"""Of the intervals of `ampbench.judge.frame`, and of those that asv stores (stats_ci_99_a and _b)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """One run, reduced. All mappings are by case id, and hold what is known.

    `values` are by column before that, finite, in base units, and so are the reasons why errors that were measured are
    `undefined`. `logs` are the logarithms of the rounds' seconds, without the control's, the slow ones and those that
    the machine disturbed; `disturbed` says of cases with too many of these what did. `intervals` are of seconds, of so
    much `confidence`. `control` is log(control / own) of the case that was measured twice. `numbers` tells apart cases
    that computed with other weights or inputs, `repeatable` whether a step, run twice, gave the same bits.
    `memory_source` says who counted bytes. `measured` is the run as comparisons read it.
    """

    header: Header
    measured: MeasuredRun
    cases: Mapping[str, Case]
    values: Mapping[str, Mapping[str, float]]
    undefined: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, str]
    logs: Mapping[str, stats.Floats]
    disturbed: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]
    confidence: float
    control: float | None
    numbers: Mapping[str, str]
    repeatable: Mapping[str, bool | None]
    memory_source: Mapping[str, str]


def reduced(run: MeasuredRun, columns: list[str], chosen: set[str]) -> RunValues:
    """Return the values of `columns` of the cases in `chosen`, by id."""
    stored = run.stored
    every = measured_columns(run)
    case_ids = list(stored.cases)
    wanted = np.fromiter((case_id in chosen for case_id in case_ids), np.bool_, len(case_ids))
    outcomes = dict(zip(case_ids, zip(every["outcome"], every["reason"], strict=True), strict=True))
    ok = wanted & (every["outcome"] == "ok")

    def known(column: str) -> dict[str, float]:
        numbers = every[column].astype(np.float64)
        return {case_ids[row]: float(numbers[row]) for row in np.flatnonzero(ok & np.isfinite(numbers)).tolist()}

    lows, highs = (known(name) for name in _INTERVAL)
    measured = {case_ids[row] for row in np.flatnonzero(ok).tolist()}
    values = {name: known(name) for name in columns if name != DRIFT}
    if DRIFT in columns:  # what is held against another run's is here; how far it lies from that, no run tells alone
        told = (id for id, one in stored.divergence.items() if one.output_reference_norm is not None)
        values[DRIFT] = dict.fromkeys(measured.intersection(told), 0.0)
    logs, disturbed = _undisturbed(run)
    for case_id, share in stored.readings.get("other_share", {}).items():
        if share > OTHER_SHARE:
            disturbed[case_id] = f"other processes used {format_share(share)} of the CPU"
    imported = stored.header.imported
    numbers: dict[str, str] = {}
    for case_id, one in stored.divergence.items():
        numbers[case_id] = f"{one.weights_digest}/{one.inputs_digest}"
    return RunValues(
        header=stored.header,
        measured=run,
        cases={case_id: case for case_id, case in stored.cases.items() if case_id in chosen},
        values=values,
        undefined={
            name: {
                case_id: why
                for case_id, one in stored.divergence.items()
                if case_id in measured and case_id not in values[name] and (why := _undefined(name, one))
            }
            for name in columns
        },
        missing={
            case_id: f"{outcome}: {reason}"
            for case_id, (outcome, reason) in outcomes.items()
            if outcome != "ok" and case_id in chosen
        },
        logs={case_id: one for case_id, one in logs.items() if case_id in chosen},
        disturbed={case_id: why for case_id, why in disturbed.items() if case_id in chosen},
        intervals={case_id: (low, highs[case_id]) for case_id, low in lows.items() if case_id in highs},
        confidence=_ASV_CONFIDENCE if imported and imported.program == asv.PROGRAM else _CONFIDENCE,
        control=_control(run),
        numbers=numbers,
        repeatable={case_id: one.repeatable for case_id, one in stored.divergence.items()},
        memory_source={case_id: one.source for case_id, one in stored.memory.items()},
    )


def _undefined(column: str, one: Divergence) -> str:
    """Return why an error is no number, "" where that is not for want of finite ones."""
    if column == "update_rel_l2" and one.update is not None and one.update.nonfinite:
        return f"{UNDEFINED}: {one.update.undefined}"
    undefined_by = COLUMNS[column].undefined_by if column in COLUMNS else None
    if undefined_by is None:
        return ""
    name, what = undefined_by
    count = getattr(one, name)
    if why := one.grad_undefined if what == "gradient" else one.output_undefined:
        return f"{UNDEFINED}: {why}"
    if count:
        return f"{UNDEFINED}: {count:,} {what} {'element is' if count == 1 else 'elements are'} not finite"
    # finite gradients may still overflow in the optimizer
    if column == "param_rel_l2" and one.grad_elements is not None:
        return f"{UNDEFINED}: updated parameters are not finite"
    return ""


def _undisturbed(run: MeasuredRun) -> tuple[dict[str, stats.Floats], dict[str, str]]:
    """Return the logarithms of each case's rounds that count, and what disturbed the cases that have too few of them.

    Both as comparisons have it: `MeasuredRun.unfit`, no more than `UNFIT_SHARE` of a case's, `without_slow`.
    """
    rounds, count = run.rounds, len(run.stored.cases)
    columns = (rounds.seconds, run.unfit.cause.astype(np.float64), run.unfit.value)
    seconds, causes, values = (grid(rounds, each, Role.OWN, range(count), None) for each in columns)
    unfit, there = causes >= 0, ~np.isnan(seconds)
    usual = without_slow(np.where(unfit | ~(seconds > 0), np.nan, seconds))
    counts, too_many = there.sum(axis=1), unfit.sum(axis=1) > UNFIT_SHARE * there.sum(axis=1)
    disturbed = {}
    case_ids = list(run.stored.cases)
    for place in np.flatnonzero(too_many).tolist():
        bad = unfit[place]
        said = said_of(causes[place][bad].astype(np.int64), values[place][bad], int(counts[place]), "rounds")
        disturbed[case_ids[place]] = said
    logs = np.log(usual)
    kept = ~np.isnan(logs)
    return {id: row[own] for id, row, own in zip(case_ids, logs, kept, strict=True) if own.any()}, disturbed


def _control(run: MeasuredRun) -> float | None:
    """Return log(control / own) of the first case that was measured twice; None where none was."""
    timed = (one for one in run.controlled() if one.own.size and min(one.own.min(), one.again.min()) > 0)
    return next((one.log_ratio for one in timed), None)


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
        run = MeasuredRun.read(path, averaging=False)  # samples are never all in memory
        stored = run.stored
        if stored.header.explains:
            self.explaining.append(path)
            return
        if stored.cut:
            self.notes.append(f"{path} {CUT}")
        self._keep(run)

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
                    run = MeasuredRun.of(stored, averaging=False)
                    stored.rounds.clear()  # nor are these
                    self._keep(run)

    def _is_new(self, path: Path) -> bool:
        resolved = path.resolve()
        known = resolved in self._seen
        self._seen.add(resolved)
        return not known

    def _keep(self, run: MeasuredRun) -> None:
        stored = run.stored
        if stored.header.run in self.runs or not self._is_wanted(run):
            return
        for case_id in stored.cases:
            if case_id not in self._chosen:
                self._chosen[case_id] = matches(self._keyword, case_id)
        chosen = {case_id for case_id in stored.cases if self._chosen[case_id]}
        self.runs[stored.header.run] = reduced(run, self._columns, chosen)

    def _is_wanted(self, run: MeasuredRun) -> bool:
        """Return whether a run is to be kept: imports of one measurement are one run, that which was read last."""
        stored, header = run.stored, run.stored.header
        imported = header.imported
        if imported is None:
            return True
        devices = frozenset(case.device for case in stored.cases.values())
        host = header.environment.host
        key = _Measurement(imported.program, host, header.commit, imported.file, header.started_at, devices)
        numbers = len(run.rounds.seconds) + sum(map(len, stored.readings.values()))
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
        for file in find_runs(source, results, reader.notes.append):
            reader.native(file)


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
