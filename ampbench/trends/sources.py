"""What a user names, read and reduced: of each run, its header and the values of its cases."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from ampbench import frames, stats
from ampbench.convert.asv_files import BENCHMARKS_FILE, MACHINE_FILE
from ampbench.errors import NothingToRunError
from ampbench.planning import matches
from ampbench.records.cases import Case
from ampbench.records.measurements import Round
from ampbench.records.runs import Header
from ampbench.store import StoredRun, TimedRound, find_run, list_runs, read_run
from ampbench.trends.metrics import TIME, Tracked

_ASV = "asv"
"""The folder of a results folder that is asv's."""
_INTERVAL = ("seconds_low", "seconds_high")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """One run, reduced. All mappings are by case id, and hold what is known.

    `values` are by column before that, finite, in base units. `logs` are the logarithms of the rounds' seconds, without
    the control's. `intervals` are of seconds. `control` is log(control / own) of the case that was measured twice.
    `numbers` tells apart cases that computed with other weights or inputs, `repeatable` whether a step, run twice, gave
    the same bits. `memory_source` says who counted bytes.
    """

    header: Header
    cases: Mapping[str, Case]
    values: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, str]
    logs: Mapping[str, stats.Floats]
    intervals: Mapping[str, tuple[float, float]]
    control: float | None
    numbers: Mapping[str, str]
    repeatable: Mapping[str, bool | None]
    memory_source: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was read: the runs, each once, and what is to be said about reading them."""

    runs: Sequence[RunValues]
    notes: Sequence[str] = field(default_factory=list)


def read_runs(sources: Sequence[str], results: Path, metrics: Iterable[Tracked], keyword: str = "") -> Sources:
    """Return the runs that `sources` name, with the `metrics` of the cases whose id matches `keyword`.

    A source is a run file, a run's id, a prefix of one or `latest` (in the folder `results`), a folder of run files, a
    results folder (its runs/ and its asv/), a folder of asv's results, or a file of pytest-benchmark. Without any: all
    of `results`. A run that is named twice, or was imported and is there in its own format too, counts once.

    Raises `NothingToRunError` where there is no run, `StoreError` for a damaged or foreign file, `UsageError` for what
    names nothing.
    """
    reader = _Reader(list(dict.fromkeys([*(one.column.name for one in metrics), TIME])), keyword)
    for source in sources:
        _read(source, results, reader)
    if not sources:
        _read_folder(results, reader)
    if not reader.runs:
        said = ", ".join(sources) or str(results)
        raise NothingToRunError(f"there is no run in {said}: measure with `ampbench run`, or name run files or folders")
    if not any(run.cases for run in reader.runs.values()):
        raise NothingToRunError(f"no case of {len(reader.runs)} runs matches -k {keyword!r}")
    counted = [f"{remark} ({count} {'file' if count == 1 else 'files'})" for remark, count in reader.remarks.items()]
    return Sources(runs=list(reader.runs.values()), notes=[*reader.notes, *counted])


class _Value(NamedTuple):
    """What tables need of a round: its value stands for its samples."""

    case_id: str
    control: bool
    samples: tuple[tuple[float]]
    items_per_step: float
    weights_digest: str


class _Rounds:
    """The rounds of a run, reduced to their values while it is read, so that samples are never all in memory."""

    def __init__(self) -> None:
        self.kept: list[_Value] = []

    def add(self, one: TimedRound) -> None:
        value = ((stats.round_value(one.samples),),)
        self.kept.append(_Value(one.case_id, one.control, value, one.items_per_step, one.weights_digest))


class _Reader:
    """Reads files, each once, and keeps the runs by id."""

    def __init__(self, columns: list[str], keyword: str):
        self.runs: dict[str, RunValues] = {}
        self.notes: list[str] = []
        self.remarks: Counter[str] = Counter()
        self._columns = columns
        self._keyword = keyword
        self._seen: set[Path] = set()
        self._chosen: dict[str, bool] = {}

    def native(self, path: Path) -> None:
        if not self._is_new(path):
            return
        rounds = _Rounds()
        stored = read_run(path, on_round=rounds.add)
        if stored.cut:
            self.notes.append(f"{path} ends in a cut line, which was left out")
        self._keep(stored, rounds)

    def foreign(self, path: Path) -> None:
        if not self._is_new(path):
            return
        from ampbench.convert.native import read_source, recognise  # most trends have nothing to convert

        for stored in read_source(path, recognise(path), "", self.remarks):
            rounds = _Rounds()
            for one in stored.rounds:
                rounds.add(one)
            self._keep(stored, rounds)

    def _is_new(self, path: Path) -> bool:
        resolved = path.resolve()
        known = resolved in self._seen
        self._seen.add(resolved)
        return not known

    def _keep(self, stored: StoredRun, rounds: _Rounds) -> None:
        for case_id in stored.cases:
            if case_id not in self._chosen:
                self._chosen[case_id] = matches(self._keyword, case_id)
        chosen = {case_id for case_id in stored.cases if self._chosen[case_id]}
        if stored.header.run not in self.runs:
            self.runs[stored.header.run] = _reduced(stored, rounds, self._columns, chosen)


def _read(source: str, results: Path, reader: _Reader) -> None:
    path = Path(source).expanduser()
    if path.is_dir():
        _read_folder(path, reader)
    elif path.is_file() and path.suffix == ".json":
        reader.foreign(path)
    else:
        reader.native(find_run(source, results))


def _read_folder(folder: Path, reader: _Reader) -> None:
    files = list_runs(folder) or sorted(folder.glob("*.jsonl"), key=lambda path: path.stem)
    for path in files:
        reader.native(path)
    theirs = folder / _ASV
    # before its first result asv leaves files that describe the machine and the suite
    if theirs.is_dir() and any(path.name not in (MACHINE_FILE, BENCHMARKS_FILE) for path in theirs.rglob("*.json")):
        reader.foreign(theirs)
    elif not files and not (folder / "runs").is_dir() and any(folder.rglob("*.json")):
        reader.foreign(folder)


def _reduced(stored: StoredRun, rounds: _Rounds, columns: list[str], chosen: set[str]) -> RunValues:
    # a run's table needs of its rounds what `_Value` holds, which is far quicker made than a `Round`
    frame = frames.run_frame(replace(stored, rounds=cast("list[Round]", rounds.kept)))
    case_ids = list(stored.cases)
    wanted = np.fromiter((case_id in chosen for case_id in case_ids), np.bool_, len(case_ids))
    outcomes = dict(zip(case_ids, zip(frame["outcome"], frame["reason"], strict=True), strict=True))
    ok = wanted & (frame["outcome"] == "ok").to_numpy(dtype=np.bool_)

    def known(column: str) -> dict[str, float]:
        numbers = frame[column].to_numpy(dtype=np.float64)
        return {case_ids[row]: float(numbers[row]) for row in np.flatnonzero(ok & np.isfinite(numbers)).tolist()}

    lows, highs = (known(name) for name in _INTERVAL)
    own, controls = _by_case(rounds.kept)
    numbers: dict[str, str] = {}
    for case_id, one in stored.divergence.items():
        numbers[case_id] = f"{one.weights_digest}/{one.inputs_digest}"
    return RunValues(
        header=stored.header,
        cases={case_id: case for case_id, case in stored.cases.items() if case_id in chosen},
        values={name: known(name) for name in columns},
        missing={
            case_id: f"{outcome}: {reason}"
            for case_id, (outcome, reason) in outcomes.items()
            if outcome != "ok" and case_id in chosen
        },
        logs={case_id: np.log(values) for case_id, values in own.items() if case_id in chosen and min(values) > 0},
        intervals={case_id: (low, highs[case_id]) for case_id, low in lows.items() if case_id in highs},
        control=_control(own, controls),
        numbers=numbers,
        repeatable={case_id: one.repeatable for case_id, one in stored.divergence.items()},
        memory_source={case_id: one.source for case_id, one in stored.memory.items()},
    )


def _by_case(rounds: Iterable[_Value]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the values of each case's own rounds, and of the control's."""
    own: dict[str, list[float]] = {}
    controls: dict[str, list[float]] = {}
    for one in rounds:
        (controls if one.control else own).setdefault(one.case_id, []).append(one.samples[0][0])
    return own, controls


def _control(own: Mapping[str, list[float]], controls: Mapping[str, list[float]]) -> float | None:
    """Return log(control / own) of the first case that was measured twice; None where none was."""
    for case_id, again in controls.items():
        first = own.get(case_id)
        if first and min(*first, *again) > 0:
            return math.log(stats.median(again) / stats.median(first))
    return None
