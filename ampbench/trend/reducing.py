"""What a user names, found, read and reduced to what trends need of it, each run once."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ampbench.core.metrics import COLUMNS, DRIFT
from ampbench.core.units import counted, format_share
from ampbench.errors import NothingToRunError, StoreError
from ampbench.judge.frame import Frame
from ampbench.judge.rounds import UNFIT_SHARE, MeasuredRun, Role, said_of, unfit_rounds
from ampbench.records.case import Case, matches
from ampbench.records.measured import OTHER_SHARE, Divergence, GradientDivergence, OutputDivergence
from ampbench.records.run import Header
from ampbench.store import (
    CUT,
    check_folder,
    find_runs,
    not_measured,
    read_header,
    run_files,
)
from ampbench.trend.series import TIME, Gap, Lack, Tracked

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """One run, reduced to numbers of the `cases` that are followed.

    `values` are by column and case id, in base units, without those that are not known; `undefined` says why errors
    that were measured are no numbers, `missing` why cases are not ok, `disturbed` what disturbed cases with too many
    unfit rounds. `intervals` are those of seconds.
    """

    header: Header
    cases: Mapping[str, Case]
    values: Mapping[str, Mapping[str, float]]
    undefined: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, Gap]
    disturbed: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]
    measured: MeasuredRun

    def value(self, column: str, case_id: str) -> float | None:
        """Return the value of a column of a case, None where it has none."""
        return self.values[column].get(case_id)

    def numbers(self, case_id: str) -> str:
        """Return what tells apart cases that computed with other weights or inputs, "" where that is not known."""
        divergence = self.measured.stored.divergence.get(case_id)
        return f"{divergence.weights_digest}/{divergence.inputs_digest}" if divergence else ""

    def memory_source(self, case_id: str) -> str:
        """Return who counted the bytes of a case, "" where nobody did."""
        memory = self.measured.stored.memory.get(case_id)
        return memory.source if memory else ""

    def function(self, case_id: str) -> object:
        """Return what a case computed, equal to the last bit; None where that is not known."""
        divergence = self.measured.stored.divergence.get(case_id)
        return _FUNCTION(divergence.reference) if divergence else None

    def may_vary(self, case_id: str) -> bool:
        """Return whether a step's bits may differ when it is run again: seen, or not looked at on an accelerator."""
        divergence = self.measured.stored.divergence.get(case_id)
        repeatable = divergence.repeatable if divergence else None
        return repeatable is False or (repeatable is None and self.cases[case_id].device != "cpu")


_FUNCTION = attrgetter("output_norm", "output_sketch", "grad_sketch", "loss", "output_shapes")
"""The fields of a reference that say what a case computed."""


def reduced(run: MeasuredRun, columns: Sequence[str], is_chosen: Callable[[str], bool]) -> RunValues:
    """Return the values of `columns` of the cases whose ids are chosen."""
    stored, frame = run.stored, Frame(run)
    cases = {case_id: case for case_id, case in stored.cases.items() if is_chosen(case_id)}
    outcomes = dict(zip(stored.cases, frame["outcome"].tolist(), strict=True))
    reasons = dict(zip(stored.cases, frame["reason"].tolist(), strict=True))
    ok = [case_id for case_id in cases if outcomes[case_id] == "ok"]

    def known(column: str) -> dict[str, float]:
        numbers = dict(zip(stored.cases, frame[column].astype(np.float64).tolist(), strict=True))
        # a time of zero is none
        return {
            case_id: numbers[case_id]
            for case_id in ok
            if math.isfinite(numbers[case_id]) and (column != TIME or numbers[case_id] > 0)
        }

    values = {name: known(name) for name in columns if name != DRIFT}
    if DRIFT in columns:
        # what is held against another run's is here; how far it lies from that, no run tells alone
        divergences = {case_id: stored.divergence.get(case_id) for case_id in ok}
        values[DRIFT] = {
            case_id: 0.0 for case_id, one in divergences.items() if one and one.reference.output_norm is not None
        }
    undefined: dict[str, dict[str, str]] = {name: {} for name in columns}
    for name, numbers in values.items():
        for case_id in ok:
            divergence = stored.divergence.get(case_id)
            if case_id not in numbers and divergence is not None and (why := _undefined(name, divergence)):
                undefined[name][case_id] = why
    low, high = known("seconds_low"), known("seconds_high")
    return RunValues(
        header=stored.header,
        cases=cases,
        values=values,
        undefined=undefined,
        missing={
            case_id: Gap(Lack(outcomes[case_id]), reasons[case_id]) for case_id in cases if outcomes[case_id] != "ok"
        },
        disturbed=_disturbed(run),
        intervals={case_id: (low[case_id], high[case_id]) for case_id in low.keys() & high.keys()},
        measured=run,
    )


def _undefined(column: str, divergence: Divergence) -> str:
    """Return why an error is no number, "" where that is not for want of finite ones."""
    if column == "update_rel_l2" and divergence.update is not None and divergence.update.nonfinite:
        return divergence.update.undefined
    what = COLUMNS[column].undefined_by if column in COLUMNS else ""
    if not what:
        return ""
    errors: OutputDivergence | GradientDivergence = getattr(divergence, what)
    if errors.undefined:
        return errors.undefined
    if count := errors.nonfinite:
        return f"{counted(count, f'{what} element is', f'{what} elements are')} not finite"
    # finite gradients may still overflow in the optimizer
    if column == "param_rel_l2" and divergence.gradient.elements is not None:
        return "updated parameters are not finite"
    return ""


def _disturbed(run: MeasuredRun) -> dict[str, str]:
    """Return what disturbed the cases with more than `UNFIT_SHARE` of their rounds unfit, or asv's with other load."""
    rounds, unfit = run.rounds, unfit_rounds(run)
    disturbed = {}
    for place, case_id in enumerate(run.stored.cases):
        own = (rounds.owners == place) & (rounds.roles == Role.OWN)
        bad = own & (unfit.cause >= 0)
        if bad.sum() > UNFIT_SHARE * own.sum():
            disturbed[case_id] = said_of(unfit.cause[bad], unfit.value[bad], int(own.sum()), "rounds")
    for case_id, share in run.stored.readings.get("other_share", {}).items():
        if share > OTHER_SHARE:
            disturbed[case_id] = f"other processes used {format_share(share)} of the CPU"
    return disturbed


_ASV = "asv"
"""The program, as its runs name it, and its folder in a results folder."""


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
        self._imported: dict[tuple[object, ...], tuple[int, str]] = {}  # how many numbers, and the run's id

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
        from ampbench.convert.native import read_source  # most trends have nothing to convert

        for path in self._waiting:
            for stored in read_source(path, self.remarks):
                run = MeasuredRun.of(stored)
                stored.rounds.clear()  # nor are these
                self._keep(run)

    def _is_new(self, path: Path) -> bool:
        resolved = path.resolve()
        known = resolved in self._seen
        self._seen.add(resolved)
        return not known

    def _keep(self, run: MeasuredRun) -> None:
        run_id = run.stored.header.run
        if run_id not in self.runs and self._is_wanted(run):
            self.runs[run_id] = reduced(run, self._columns, partial(matches, self._keyword))

    def _is_wanted(self, run: MeasuredRun) -> bool:
        """Return whether a run is to be kept: imports of one measurement are one run, the one with the most numbers."""
        header, imported = run.stored.header, run.stored.header.imported
        if imported is None:
            return True
        key = (imported.program, header.environment.host, header.commit, imported.file, header.started_at)
        numbers = len(run.rounds.seconds) + sum(map(len, run.stored.readings.values()))  # asv only ever adds to a file
        before, run_id = self._imported.get(key, (-1, ""))
        if before > numbers:
            return False
        self.runs.pop(run_id, None)
        self._imported[key] = (numbers, header.run)
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
    if theirs.is_dir() and _has_results(theirs):
        reader.foreign(theirs)
    elif not files and not (folder / "runs").is_dir() and any(folder.rglob("*.json")):
        reader.foreign(folder)


def _has_results(theirs: Path) -> bool:
    """Return whether asv has left more than the files that, before its first result, describe machine and suite."""
    from ampbench.convert.asv import BENCHMARKS_FILE, MACHINE_FILE

    return any(path.name not in (MACHINE_FILE, BENCHMARKS_FILE) for path in theirs.rglob("*.json"))
