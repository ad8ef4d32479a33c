"""What a user names, found, read and reduced to what trends need of it, each run once."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ampbench.core import stats
from ampbench.core.metrics import COLUMNS, DRIFT
from ampbench.core.units import format_share
from ampbench.errors import NothingToRunError, StoreError
from ampbench.judge.frame import Frame
from ampbench.judge.rounds import UNFIT_SHARE, MeasuredRun, Role, controls, grid, said_of, unfit_rounds
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
_CONFIDENCE, _ASV_CONFIDENCE = 0.95, 0.99
"""Of the intervals of `ampbench.judge.frame`, and of those that asv stores (stats_ci_99_a and _b)."""


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """One run, reduced: what is a number, as arrays with an element for each of the `cases` that are followed.

    `rows` are the places of the cases in these arrays. `values` are by column before that, NaN where not known, in base
    units; the reasons why errors that were measured are `undefined`, by column and case id. `missing` says of cases
    that are not ok why. `logs` are the logarithms of the rounds' seconds, case after case, `lengths` of each case,
    without the control's, the slow ones and those that the machine disturbed; `disturbed` says of cases with too many
    of these what did. `low` and `high` are the intervals of seconds, of so much `confidence`. `control` is
    log(control / own) of the case that was measured twice. `numbers` tells apart cases that computed with other weights
    or inputs, `function` what they computed (equal to the last bit; "": not known), `repeatable` whether a step, run
    twice, gave the same bits (1, 0; -1: not known), `memory_source` says who counted bytes.
    """

    header: Header
    cases: Mapping[str, Case]
    rows: Mapping[str, int]
    values: Mapping[str, stats.Floats]
    undefined: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, Gap]
    logs: stats.Floats
    lengths: stats.Integers
    disturbed: Mapping[str, str]
    low: stats.Floats
    high: stats.Floats
    confidence: float
    control: float | None
    numbers: Array
    function: Array
    repeatable: stats.Integers
    memory_source: Array
    measured: MeasuredRun

    def value(self, column: str, case_id: str) -> float | None:
        """Return the value of a column of a case, None where it has none."""
        row = self.rows.get(case_id)
        found = math.nan if row is None else float(self.values[column][row])
        return None if math.isnan(found) else found

    def interval(self, case_id: str) -> tuple[float, float] | None:
        """Return the interval of a case's seconds, None where there is none."""
        row = self.rows.get(case_id)
        low, high = (math.nan, math.nan) if row is None else (float(self.low[row]), float(self.high[row]))
        return None if math.isnan(low) or math.isnan(high) else (low, high)

    def rounds(self, case_id: str) -> stats.Floats:
        """Return the logarithms of a case's rounds; none where it has none."""
        row = self.rows.get(case_id)
        return self.logs[:0] if row is None else self.logs[self._ends[row] - self.lengths[row] : self._ends[row]]

    @cached_property
    def _ends(self) -> stats.Integers:
        return np.cumsum(self.lengths)


_FUNCTION = attrgetter("output_norm", "output_sketch", "grad_sketch", "loss", "output_shapes")
"""The fields of a reference that say what a case computed."""


def reduced(run: MeasuredRun, columns: Sequence[str], is_chosen: Callable[[str], bool]) -> RunValues:
    """Return the values of `columns` of the cases whose ids are chosen."""
    stored = run.stored
    every = Frame(run)
    cases = {case_id: case for case_id, case in stored.cases.items() if is_chosen(case_id)}
    rows = {case_id: row for row, case_id in enumerate(cases)}
    chosen = np.fromiter((case_id in cases for case_id in stored.cases), np.bool_, len(stored.cases))
    outcomes = every["outcome"][chosen]
    ok = outcomes == "ok"
    divergences = [stored.divergence.get(case_id) for case_id in cases]

    def known(column: str) -> stats.Floats:
        numbers = every[column][chosen].astype(np.float64)
        there = ok & np.isfinite(numbers)
        return np.where(there & (numbers > 0) if column == TIME else there, numbers, np.nan)  # a time of zero is none

    values = {name: known(name) for name in columns if name != DRIFT}
    if DRIFT in columns:
        # what is held against another run's is here; how far it lies from that, no run tells alone
        has_norm = [one is not None and one.reference.output_norm is not None for one in divergences]
        values[DRIFT] = np.where(ok & np.array(has_norm, dtype=np.bool_), 0.0, np.nan)
    undefined: dict[str, dict[str, str]] = {name: {} for name in columns}
    for name, numbers in values.items():
        for row in np.flatnonzero(ok & np.isnan(numbers)).tolist():
            divergence = divergences[row]
            if divergence is not None and (why := _undefined(name, divergence)):
                undefined[name][divergence.case_id] = why
    logs, lengths, disturbed = _undisturbed(run)
    for case_id, share in stored.readings.get("other_share", {}).items():
        if share > OTHER_SHARE:
            disturbed[case_id] = f"other processes used {format_share(share)} of the CPU"
    imported = stored.header.imported
    return RunValues(
        header=stored.header,
        cases=cases,
        rows=rows,
        values=values,
        undefined=undefined,
        missing={
            case_id: Gap(Lack(outcome), reason)
            for case_id, outcome, reason in zip(cases, outcomes, every["reason"][chosen], strict=True)
            if outcome != "ok"
        },
        logs=logs[np.repeat(chosen, lengths)],
        lengths=lengths[chosen],
        disturbed={case_id: why for case_id, why in disturbed.items() if case_id in cases},
        low=known("seconds_low"),
        high=known("seconds_high"),
        confidence=_ASV_CONFIDENCE if imported and imported.program == _ASV else _CONFIDENCE,
        control=_control(run),
        numbers=_texts(f"{one.weights_digest}/{one.inputs_digest}" if one else "" for one in divergences),
        function=_texts("" if one is None else _function_of(one) for one in divergences),
        repeatable=np.array(
            [-1 if one is None or one.repeatable is None else one.repeatable for one in divergences], np.int8
        ),
        memory_source=_texts(one.source if (one := stored.memory.get(case_id)) else "" for case_id in cases),
        measured=run,
    )


def _texts(values: Iterable[str]) -> Array:
    return np.array(list(values), dtype=object)


def _function_of(one: Divergence) -> str:
    """Return a digest of what a case computed."""
    told = msgspec.msgpack.encode(_FUNCTION(one.reference))
    return hashlib.blake2b(told, digest_size=12).hexdigest()


def _undefined(column: str, one: Divergence) -> str:
    """Return why an error is no number, "" where that is not for want of finite ones."""
    if column == "update_rel_l2" and one.update is not None and one.update.nonfinite:
        return one.update.undefined
    what = COLUMNS[column].undefined_by if column in COLUMNS else ""
    if not what:
        return ""
    errors: OutputDivergence | GradientDivergence = getattr(one, what)
    if errors.undefined:
        return errors.undefined
    if count := errors.nonfinite:
        return f"{count:,} {what} {'element is' if count == 1 else 'elements are'} not finite"
    # finite gradients may still overflow in the optimizer
    if column == "param_rel_l2" and one.gradient.elements is not None:
        return "updated parameters are not finite"
    return ""


def _undisturbed(run: MeasuredRun) -> tuple[stats.Floats, stats.Integers, dict[str, str]]:
    """Return the logarithms of the rounds that count, case after case, how many each case has, and what disturbed the
    cases that have too few of them.

    Both as comparisons have it: `unfit_rounds`, no more than `UNFIT_SHARE` of a case's, `without_slow`.
    """
    from ampbench.judge.deciding import without_slow  # imports SciPy

    rounds, found, count = run.rounds, unfit_rounds(run), len(run.stored.cases)
    columns = (rounds.seconds, found.cause.astype(np.float64), found.value)
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
    return logs[kept], kept.sum(axis=1), disturbed


def _control(run: MeasuredRun) -> float | None:
    """Return log(control / own) of the first case that was measured twice; None where none was."""
    timed = (one for one in controls(run) if one.own.size and min(one.own.min(), one.again.min()) > 0)
    return next((math.log(one.ratio) for one in timed), None)


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
        self._imported: dict[tuple[object, ...], tuple[tuple[str, int, int], str]] = {}  # how much, and the run's id

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
        """Return whether a run is to be kept: imports of one measurement are one run, that which was read last."""
        stored = run.stored
        header, imported = stored.header, stored.header.imported
        if imported is None:
            return True
        devices = frozenset(case.device for case in stored.cases.values())
        key = (imported.program, header.environment.host, header.commit, imported.file, header.started_at, devices)
        finished_at = stored.footers[-1].finished_at if stored.footers else ""
        numbers = len(run.rounds.seconds) + sum(map(len, stored.readings.values()))
        held = (finished_at, len(stored.cases), numbers)  # asv only ever adds to a file
        if key in self._imported:
            before, run_id = self._imported[key]
            if before >= held:
                return False
            del self.runs[run_id]
        self._imported[key] = (held, header.run)
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
