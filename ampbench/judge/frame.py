"""Runs as tidy tables: one flat row per case, in base units, with everything derived that can be.

The columns are `metrics.COLUMNS`. Text is None and numbers are NaN where undefined. Whoever asks for a DataFrame waits
for pandas, which takes longer to import than most runs to read; rows and columns are made without.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from ampbench.base import stats
from ampbench.base.metrics import COLUMNS, METRICS
from ampbench.base.precisions import BASELINE, DEFAULT
from ampbench.base.units import format_seconds
from ampbench.errors import UsageError
from ampbench.instruments.ceilings.findings import Bounds
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.judge.rounds import ON_ACCELERATOR, UNFIT_SHARE, ByCase, MeasuredRun, Rounds, said_of
from ampbench.records.case import Case
from ampbench.records.labels import Pending, attention_said, case_labels, not_finite
from ampbench.records.measured import Divergence, OutputError, Predictions, Update
from ampbench.store import StoredRun, measured_files, not_measured, once
from ampbench.store.lines import no_garbage_collection

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R")
S = TypeVar("S")

WEIGHTS_DIFFER = "weights differ between rounds"

Columns = dict[str, "np.ndarray[Any, Any]"]
"""The columns of a table by name, in their order."""

COUNTS = ("rounds", "batch_size", *(name for name, one in METRICS.items() if one.unit in ("count", "B")))
"""The columns of whole numbers."""


def load(path: Path | str) -> "pd.DataFrame":
    """Return the runs at `path` as one frame with a row per case: a file is that run, a folder all its runs.

    A folder is a results folder, which holds `runs/`, or any folder of run files; its runs are in the order of their
    names, which is that of their times; those that only explain are left out. Warns of a run whose last line is cut.
    Raises `StoreError`, naming file and line, where there is no run or one is damaged, `UsageError` for the file of a
    run that only explains.
    """
    import pandas as pd

    path = Path(path)
    frames = [_load_file(file) for file in measured_files(path)] if path.is_dir() else [_load_file(path)]
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def require_measured(stored: StoredRun) -> None:
    """Raise `UsageError` where a run only explains, and so has nothing that is measured."""
    if stored.header.explains:
        raise UsageError(not_measured(stored.header))


@once
def run_rows(stored: StoredRun) -> list[dict[str, Any]]:
    """Return a run's rows, one a case in order, as plain values, as `plain_rows` gives them, without pandas."""
    columns = measured_columns(MeasuredRun.of(stored, averaging=False))
    return _rows({name: _values(column) for name, column in columns.items()})


def _values(column: "np.ndarray[Any, Any]") -> list[Any]:
    """Return a column's values, None where a number is undefined."""
    if column.dtype.kind != "f":
        return column.tolist()  # type: ignore[no-any-return]
    undefined = np.isnan(column)
    values = column.astype(object)
    values[undefined] = None
    return values.tolist()  # type: ignore[no-any-return]


def plain_rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return a frame's rows as plain values, ready for JSON: None where undefined, counts and bytes as integers."""
    texts = frame.astype(object)  # in which undefined can be None
    return _rows({name: texts[name].where(frame[name].notna(), None).tolist() for name in frame.columns})


def _rows(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows of columns in which what is undefined is None."""
    plain = dict(columns)
    for name in COUNTS:
        plain[name] = [None if value is None else int(value) for value in columns[name]]
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


DISTURBED = 1.1
"""A sample this many times as long as the fastest of its build, or as its CPU time, was delayed by something else."""
DISTURBED_BY = f"{DISTURBED} times the fastest of their build, or their CPU time"
"""What samples took longer than that were disturbed."""

UNQUIET_SHARE = 0.2
"""With more disturbed samples than this, a machine was not quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """How far apart two measurements of the very same case came out in one run.

    `ratio` is the control's seconds_median divided by that of the case's own rounds.
    """

    case_id: str
    label: str
    rounds: int
    own_seconds: float
    control_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as long the control took."""
        return self.control_seconds / self.own_seconds

    @property
    def apart(self) -> float:
        """By what factor the two differ, whichever is larger; 1 where they are equal."""
        return max(self.ratio, 1 / self.ratio) if self.ratio > 0 else 1.0

    @property
    def sentence(self) -> str:
        """What the control says, for the foot of a table."""
        return (
            f"control: {self.label} measured twice took {format_seconds(self.own_seconds)} and "
            f"{format_seconds(self.control_seconds)}, {self.apart - 1:.1%} apart; take no smaller difference for real"
        )


@once
def control_ratio(stored: StoredRun) -> Control | None:
    """Return what the run's control says; None where the run measured no case twice."""
    case_ids = list(stored.cases)
    for one in MeasuredRun.of(stored, averaging=False).controlled():
        if one.own.size and one.own.min() > 0:
            case_id = case_ids[one.owner]
            return Control(
                case_id=case_id,
                label=case_labels(stored.cases.values())[case_id],
                rounds=min(len(one.own), len(one.again)),
                own_seconds=stats.median(one.own.tolist()),
                control_seconds=stats.median(one.again.tolist()),
            )
    return None


@once
def disturbed_share(stored: StoredRun) -> float | None:
    """Return the share of samples that took over `DISTURBED` times the fastest of their build, or their CPU time.

    On a quiet machine it is a few hundredths. A build of a single sample whose CPU time is not known is held against
    the other such builds of its case. None where nothing can be held against anything.
    """
    builds: list[Sequence[float]] = []
    known: list[Sequence[float]] = []
    alone: dict[str, list[float]] = {}
    for each in stored.rounds:
        if each.cpu_samples is not None:
            builds += each.samples
            known += each.cpu_samples
            continue
        for build in each.samples:
            if len(build) == 1:
                alone.setdefault(each.case_id, []).extend(build)
            else:
                builds.append(build)
                known.append(build)
    single: list[Sequence[float]] = [samples for samples in alone.values() if len(samples) > 1]
    builds, known = builds + single, known + single
    if not builds:
        return None
    lengths = np.fromiter(map(len, builds), np.int64, len(builds))
    samples, cpu = (np.fromiter(chain.from_iterable(each), np.float64, lengths.sum()) for each in (builds, known))
    fastest = np.minimum.reduceat(samples, np.cumsum(lengths) - lengths)
    return float(np.mean(samples > DISTURBED * np.minimum(cpu, np.repeat(fastest, lengths))))


@once
def unfit_said(stored: StoredRun) -> str:
    """Return why too many rounds were unfit for their times to be trusted: "other processes used 76% of the CPU in …".

    They are unfit as they are for a comparison (`rounds.unfit_rounds`). "" where they were not or no machine tells.
    """
    if not stored.rounds:
        return ""
    found = MeasuredRun.of(stored, averaging=False).unfit
    unfit = found.cause >= 0
    if np.mean(unfit) <= UNFIT_SHARE:
        return ""
    return said_of(found.cause[unfit], found.value[unfit], len(stored.rounds), "rounds")


def unsteady_device(stored: StoredRun) -> bool:
    """Return whether what `unfit_said` says is an accelerator's own doing: heat, a falling clock, others on it."""
    causes = MeasuredRun.of(stored, averaging=False).unfit.cause
    unfit = causes[causes >= 0]
    return bool(unfit.size) and int(np.bincount(unfit).argmax()) in ON_ACCELERATOR


def unquiet(stored: StoredRun) -> list[str]:
    """Return what tells that a machine was not quiet while a run was measured, in words; [] where nothing does."""
    causes = [unfit_said(stored)]
    disturbed = disturbed_share(stored)
    if disturbed is not None and disturbed > UNQUIET_SHARE:
        causes.append(f"{disturbed:.0%} of the samples took over {DISTURBED_BY}")
    held_up = sum(stats.all_inflated(each.samples, each.cpu_samples) for each in stored.rounds)
    if held_up:
        rounds = f"{held_up} of {len(stored.rounds)} rounds"
        causes.append(f"in {rounds} no sample ran at one go, and CPU time stands for theirs")
    return [cause for cause in causes if cause]


def _load_file(path: Path) -> "pd.DataFrame":
    columns, cut = file_columns(path)
    if cut:
        warnings.warn(f"{path}: the last line is cut and was left out; the run was killed, or goes on", stacklevel=3)
    return framed(columns)


@no_garbage_collection()  # until all that a large run is made of is given back
def file_columns(path: Path) -> tuple[Columns, bool]:
    """Return the columns of the run in a file, as `measured_columns` does, and whether its last line is cut.

    Raises as `load` does.
    """
    run = MeasuredRun.read(path, averaging=False)
    require_measured(run.stored)
    return measured_columns(run), run.stored.cut


def framed(found: Columns) -> "pd.DataFrame":
    """Return such columns as a frame."""
    import pandas as pd

    columns: dict[str, Any] = {
        # or newer versions of pandas would make NaN of a text that is None
        name: pd.Series(column, dtype=object) if column.dtype == object else column
        for name, column in found.items()
    }
    columns["batch_size"] = pd.array(columns["batch_size"].tolist(), dtype="Int64")
    return pd.DataFrame(columns, index=pd.RangeIndex(len(found["case_id"])))


def measured_columns(run: MeasuredRun) -> Columns:
    """Return the columns of such a frame, one value for each case in order; text and `batch_size` are objects."""
    stored = run.stored
    cases = list(stored.cases.values())
    rows = {case_id: row for row, case_id in enumerate(stored.cases)}
    parameters = [",".join(f"{name}={value}" for name, value in sorted(case.parameters.items())) for case in cases]
    columns: dict[str, Any] = {
        "run": np.full(len(rows), stored.header.run, dtype=object),
        "case_id": _text(rows),
        "parameters": _text(parameters),
        "torch_version": np.full(len(rows), stored.header.environment.torch_version, dtype=object),
    }
    for name in ("workload", "family", "precision", "device", "phase", "path", "input_dtype", "memory_format"):
        columns[name] = _text(map(attrgetter(name), cases))
    columns["recipe"] = _text([case.recipe or None for case in cases])
    columns["sdpa"] = _text([case.sdpa or None for case in cases])
    columns["batch_size"] = np.array([case.batch_size for case in cases], dtype=object)
    columns |= _times(run)
    columns |= _memory(stored, rows, columns["seconds_median"])
    columns |= _flops(stored, rows, columns["seconds_median"])
    columns |= _divergences(stored, rows)
    columns |= _outcomes(stored, columns["rounds"], run.differing)
    columns |= _readings(stored, rows, columns)
    columns |= _against_baselines(cases, parameters, columns, run.own, run.rounds)
    return {name: columns[name] for name in COLUMNS}


def _text(values: Iterable[str | None]) -> "np.ndarray[Any, Any]":
    """Return a column of text, None where undefined."""
    return np.array(list(values), dtype=object)


def _times(run: MeasuredRun) -> dict[str, Any]:
    """Return the columns made from rounds: those of the control are left out."""
    seconds, own = run.rounds.seconds, run.own
    median = own.medians(seconds)
    low, high = own.intervals(seconds)
    items = stats.numbers([run.items(case_id) for case_id in run.stored.cases])
    energy = own.medians(run.rounds.power * seconds)
    return {
        "rounds": own.lengths,
        "seconds_median": median,
        "seconds_low": low,
        "seconds_high": high,
        "items_per_second": stats.ratio(items, median),
        "burst_seconds": own.medians(run.rounds.bursts),
        "energy_per_step": energy,
        "energy_per_item": stats.ratio(energy, items),
        "energy_error": own.medians(run.rounds.power_error),
        "other_share": own.medians(run.rounds.other),
    }


class _Told(Generic[R]):
    """What some of a run's cases have one of, with their rows: made into columns with an element for every case."""

    def __init__(self, records: Iterable[R], places: stats.Integers, length: int):
        self._records, self._places, self._length = list(records), places, length

    @classmethod
    def by_case(cls, records: Mapping[str, R], rows: Mapping[str, int]) -> "_Told[R]":
        return cls(records.values(), np.fromiter(map(rows.__getitem__, records), np.int64, len(records)), len(rows))

    def each(self, of: Callable[[R], S | None]) -> "_Told[S]":
        """Return what `of` says of each record, of those of which it is something."""
        found = list(map(of, self._records))
        places = self._places[[one is not None for one in found]]
        return _Told([one for one in found if one is not None], places, self._length)

    def numbers(self, of: Callable[[R], float | None]) -> stats.Floats:
        """Return a number of each record, NaN where it is None and where there is no record."""
        column = np.full(self._length, np.nan)
        column[self._places] = stats.numbers(list(map(of, self._records)))
        return column

    def texts(self, of: Callable[[R], str | None]) -> "np.ndarray[Any, Any]":
        """Return a text of each record, None where there is none."""
        column = np.full(self._length, None, dtype=object)
        column[self._places] = _text(map(of, self._records))
        return column


def _memory(stored: StoredRun, rows: dict[str, int], seconds: stats.Floats) -> dict[str, Any]:
    told = _Told.by_case(stored.memory, rows)
    return {
        "peak_memory_bytes": told.numbers(attrgetter("peak_bytes")),
        "memory_source": told.texts(attrgetter("source")),
        "reserved_memory_bytes": told.numbers(attrgetter("reserved_bytes")),
        "bytes_per_parameter": told.numbers(attrgetter("bytes_per_parameter")),
        "attention": told.texts(lambda one: attention_said(one.attention)),
        "busy_share": np.minimum(stats.ratio(told.numbers(attrgetter("busy_seconds")), seconds), 1.0),
    }


def _flops(stored: StoredRun, rows: dict[str, int], seconds: stats.Floats) -> dict[str, Any]:
    """Return how much there is to compute and to move, how fast that goes, and how long it would take at least."""
    bounds = Bounds(stored.every(Ceiling))
    count, moved, least = (np.full(len(rows), np.nan) for _ in range(3))
    binds = np.full(len(rows), None, dtype=object)
    for case_id, found in stored.memory.items():
        if found.flops is not None:
            row, bound = rows[case_id], bounds.of(found, stored.cases[case_id].device)
            binds[row] = bound.binds
            count[row] = sum(found.flops.values())
            moved[row] = np.nan if found.least_bytes is None else found.least_bytes
            least[row] = bound.least or np.nan
    return {
        "flops_per_step": count,
        "flops_per_second": stats.ratio(count, seconds),
        "least_bytes_per_step": moved,
        "ceiling_share": stats.ratio(least, seconds),
        "bound_by": binds,
    }


def _divergences(stored: StoredRun, rows: dict[str, int]) -> dict[str, Any]:
    told = _Told.by_case(stored.divergence, rows)
    outputs: _Told[list[OutputError]] = told.each(lambda one: one.outputs or None)
    worst: _Told[OutputError] = told.each(attrgetter("worst_output"))
    of_several = told.each(lambda one: one.worst_output if len(one.outputs or ()) > 1 else None)
    decided: _Told[tuple[int, int]] = told.each(attrgetter("decided"))
    predictions: _Told[Predictions] = told.each(attrgetter("predictions"))
    updates: _Told[Update] = told.each(attrgetter("update"))

    def numbers(name: str) -> stats.Floats:
        return told.numbers(attrgetter(name))

    def of_update(name: str) -> stats.Floats:
        return updates.numbers(attrgetter(name))

    output, judged = numbers("output_rel_l2"), worst.numbers(attrgetter("rel_l2"))
    agreeing, decisions = (decided.numbers(itemgetter(part)) for part in (0, 1))
    loss, expected = numbers("loss"), numbers("reference_loss")
    columns: dict[str, Any] = {one.name: numbers(one.name) for one in fields(Divergence) if one.name in METRICS}
    columns |= {
        f"update_{name}": of_update(name) for name in ("rel_l2", "kept", "noise", "swallowed_energy", "worst_kept")
    }
    columns |= {
        name: outputs.numbers(partial(_largest, name=name)) for name in ("sample_p99_rel_l2", "sample_worst_rel_l2")
    }
    return columns | {
        "output_sqnr_db": stats.sqnr_decibels(output),
        "output_floor_ratio": stats.ratio(output, numbers("output_floor_rel_l2")),
        "output_fp32_ratio": stats.ratio(output, numbers("output_fp32_rel_l2")),
        "output_worst_rel_l2": judged,
        "output_worst_floor_ratio": stats.ratio(judged, worst.numbers(attrgetter("floor_rel_l2"))),
        "output_worst_name": of_several.texts(attrgetter("name")),
        "output_not_finite": told.texts(lambda one: not_finite(one) or None),
        "kl_mean": predictions.numbers(attrgetter("kl_mean")),
        "kl_p99": predictions.numbers(attrgetter("kl_p99")),
        "argmax_agreement": stats.ratio(agreeing, decisions),
        "argmax_bound": stats.share_bound(agreeing, decisions),
        "loss_abs_error": np.abs(loss - expected),
        "loss_rel_error": stats.ratio(np.abs(loss - expected), np.abs(expected)),
        "grad_worst_parameter": told.texts(attrgetter("grad_worst_parameter")),
        "grad_tensor_parameter": told.texts(attrgetter("grad_tensor_parameter")),
        "grad_not_finite": told.texts(lambda one: not_finite(one, "grad") or None),
        "grad_flushed_share": stats.ratio(numbers("grad_flushed"), numbers("grad_elements")),
        "grad_bias_ratio": stats.ratio(numbers("grad_bias"), numbers("grad_noise")),
        "update_swallowed_share": stats.ratio(of_update("swallowed"), of_update("moving")),
        "update_worst_parameter": updates.texts(attrgetter("worst_parameter")),
        "reference_dtype": told.texts(lambda one: one.reference_dtype or None),
    }


def _largest(outputs: list[OutputError], name: str) -> float | None:
    """Return the largest value of a field among the outputs of a step; None where there is none."""
    return max((value for one in outputs if (value := getattr(one, name)) is not None), default=None)


def _readings(stored: StoredRun, rows: dict[str, int], columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that another program's numbers fill; the rounds behind a case's readings are not known."""
    filled: dict[str, Any] = {}
    for metric, values in stored.readings.items():
        places = [rows[case_id] for case_id in values]
        column = np.array(columns.get(metric, np.full(len(rows), np.nan)), dtype=np.float64)
        given = np.fromiter(values.values(), np.float64, len(values))
        column[places] = np.where(np.isnan(column[places]), given, column[places])
        filled[metric] = column
    if read := set().union(*stored.readings.values()):
        unknown = np.fromiter((case_id in read for case_id in rows), np.bool_, len(rows))
        filled["rounds"] = np.where(unknown & (columns["rounds"] == 0), np.nan, columns["rounds"])
    return filled


def _outcomes(stored: StoredRun, rounds: stats.Integers, differing: frozenset[str]) -> dict[str, Any]:
    pending = Pending.OUT_OF_TIME if stored.ended == "out of time" else Pending.NOT_YET
    outcomes: list[str] = []
    reasons: list[str | None] = []
    read = set().union(*stored.readings.values())
    for case_id, count in zip(stored.cases, rounds.tolist(), strict=True):
        failure, skip = stored.failures.get(case_id), stored.skips.get(case_id)
        if failure or case_id in differing:
            outcomes.append("failed")
            reasons.append(failure.said if failure else WEIGHTS_DIFFER)
        elif count or case_id in read:
            outcomes.append("ok")
            reasons.append(None)
        else:
            outcomes.append("skipped")
            reasons.append(skip.reason if skip else pending)
    return {"outcome": _text(outcomes), "reason": _text(reasons)}


def _against_baselines(
    cases: list[Case], parameters: list[str], columns: dict[str, Any], own: ByCase, rounds: Rounds
) -> dict[str, stats.Floats]:
    """Return the ratios to the same case in fp32 and tf32, NaN where that one is missing or not ok."""
    # a time of zero is no time, and how many times it is as fast no number
    seconds = np.where(columns["seconds_median"] > 0, columns["seconds_median"], np.nan)
    memory = columns["peak_memory_bytes"]
    source, ok = columns["memory_source"], columns["outcome"] == "ok"
    groups: dict[Any, int] = {}
    keys = (
        (one.workload, text, one.device, one.phase, one.path, one.batch_size, one.memory_format, one.sdpa, one.recipe)
        for one, text in zip(cases, parameters, strict=True)
    )
    group = np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)

    def baselines(precision: str) -> tuple[stats.Integers, Any]:
        """Return the row of each case's baseline, and whether it has one."""
        rows = np.full(len(groups), -1)
        for row in np.flatnonzero((columns["precision"] == precision) & ok).tolist():
            # the baseline's inputs are fp32; inputs stored otherwise are a baseline only where there is no other
            if rows[group[row]] < 0 or cases[row].input_dtype == "fp32":
                rows[group[row]] = row
        return rows[group], rows[group] >= 0

    fp32, has_fp32 = baselines(BASELINE)
    tf32, has_tf32 = baselines("tf32")
    todays, has_todays = baselines(DEFAULT)
    comparable = has_fp32 & (source[fp32] == source) if cases else has_fp32
    order = own.order[np.lexsort((rounds.blocks[own.order], rounds.owners[own.order]))]
    owned = _Owned(rounds.owners[order], rounds.blocks[order], rounds.seconds[order])
    low, high = _speedup_intervals(owned, np.where(has_fp32, fp32, -1), columns)
    default_low, default_high = _speedup_intervals(owned, np.where(has_todays, todays, -1), columns)
    return {
        "speedup_vs_fp32": np.where(has_fp32, stats.ratio(seconds[fp32], seconds), np.nan),
        "speedup_low": low,
        "speedup_high": high,
        "speedup_vs_tf32": np.where(has_tf32, stats.ratio(seconds[tf32], seconds), np.nan),
        "speedup_vs_default": np.where(has_todays, stats.ratio(seconds[todays], seconds), np.nan),
        "speedup_default_low": default_low,
        "speedup_default_high": default_high,
        "memory_ratio_vs_fp32": np.where(comparable, stats.ratio(memory, memory[fp32]), np.nan),
    }


class _Owned(NamedTuple):
    """Rounds as arrays: the rows of their `owners`, ascending, their numbers, ascending, too, and values in seconds."""

    owners: stats.Integers
    numbers: stats.Integers
    seconds: stats.Floats


def _speedup_intervals(
    rounds: _Owned, baselines: stats.Integers, columns: dict[str, Any]
) -> tuple[stats.Floats, stats.Floats]:
    """Return the ends of the 95% interval of each case's speedup over that in the row `baselines` (-1: none).

    The precisions of a table are measured next to each other in every round, so that what slows the machine down for a
    while slows all of them down: it is the t interval of the logarithms of the ratios, round by round. Without three
    common rounds, it is what the intervals of both leave open. NaN where there is none, and of a baseline itself.
    """
    compared = (baselines >= 0) & (baselines != np.arange(len(baselines)))
    mine = np.flatnonzero(compared[rounds.owners])
    span = int(rounds.numbers.max(initial=0)) + 1
    keys = rounds.owners * span + rounds.numbers
    wanted = baselines[rounds.owners[mine]] * span + rounds.numbers[mine]
    theirs = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    common = (keys[theirs] == wanted) & (rounds.seconds[mine] > 0) & (rounds.seconds[theirs] > 0)
    mine, theirs = mine[common], theirs[common]
    counts = np.bincount(rounds.owners[mine], minlength=len(baselines))
    low, high = (np.full(len(baselines), np.nan) for _ in range(2))
    paired = counts > 0
    low[paired], high[paired] = stats.log_t_intervals(rounds.seconds[theirs] / rounds.seconds[mine], counts[paired])
    ends = {name: np.where(columns[name] > 0, columns[name], np.nan) for name in ("seconds_low", "seconds_high")}
    open_low = stats.ratio(ends["seconds_low"][baselines], ends["seconds_high"])
    open_high = stats.ratio(ends["seconds_high"][baselines], ends["seconds_low"])
    return np.where(np.isnan(low) & compared, open_low, low), np.where(np.isnan(high) & compared, open_high, high)
