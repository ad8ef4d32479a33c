"""Runs as tidy tables: a row per case, in base units, with the columns of `metrics.COLUMNS`.

Undefined text is None, an undefined number NaN. Only a DataFrame needs pandas, which takes longer to import than most
runs to read.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ampbench.core import stats
from ampbench.core.budget import Budget
from ampbench.core.metrics import COLUMNS, LATER, Column, reach
from ampbench.core.precisions import BASELINE, DEFAULT
from ampbench.errors import UsageError
from ampbench.judge.rounds import OK, MeasuredRun, paired_intervals
from ampbench.records.changes import VERDICT_COLUMNS
from ampbench.records.labels import NONE_NAMED, not_finite, optimizer_name
from ampbench.records.measured import OutputError
from ampbench.show.rows import place_of
from ampbench.store import CUT, StoredRun, measured_files, no_garbage_collection, not_measured, once, read_together
from ampbench.store.folder import trainings_beside
from ampbench.studies.ceilings import Bounds, Ceiling

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]


class Frame:
    """The cases of a run as columns by name, in the order of `COLUMNS`: arrays with an element for each case.

    Text and `batch_size` are objects, None if undefined. A column is made when it is first needed. A `late` frame has
    the divergences of late places.
    """

    def __init__(self, run: MeasuredRun, *, late: bool = False):
        stored, ids = run.stored, list(run.stored.cases)
        self.run, self.stored, self._is_late = run, stored, late
        lates = [stored.late.get(case_id) for case_id in ids]
        passes = [found and found.divergence for found in lates] if late else map(stored.divergence.get, ids)
        self._records: dict[str, Sequence[Any]] = {
            "header": [stored.header] * len(ids),
            "case": list(stored.cases.values()),
            "memory": [stored.memory.get(case_id) for case_id in ids],
            "divergence": list(passes),
            "late": lates,
            "outcome": list(map(run.outcome, ids)),
        }
        self.columns: dict[str, Array] = {}
        self.columns = {} if late else {name: self[name] for name in COLUMNS}

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            column = COLUMNS[name]
            if name.endswith(LATER):
                return self.late[name.removesuffix(LATER)]
            if column.of:
                stored = column.stored(self._records)
                values: Array = stats.numbers(stored) if column.unit else np.array(stored, dtype=object)
            else:
                values = FUNCTIONS[name](self)
            imported = self.run.stored.readings.get(name)
            if imported and not self._is_late:
                readings = stats.numbers([imported.get(case_id) for case_id in self.run.stored.cases])
                values = np.where(np.isnan(values), readings, values)
            self.columns[name] = values
        return self.columns[name]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as plain values for JSON: None if undefined, counts and bytes as integers."""
        values = [_plain(COLUMNS[name], column) for name, column in self.columns.items()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)]

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a DataFrame."""
        import pandas as pd

        columns: dict[str, Any] = {
            # without this dtype newer versions of pandas turn a missing text into NaN
            name: pd.Series(column, dtype=object) if column.dtype == object else column
            for name, column in self.columns.items()
        }
        columns["batch_size"] = pd.array(self["batch_size"].tolist(), dtype="Int64")
        return pd.DataFrame(columns, index=pd.RangeIndex(len(self["case_id"])))

    def each(self, path: str, of: Callable[[Any], Any] | None = None) -> Sequence[Any]:
        """Return for each case the value at `path`, passed through `of`; None if anything on the path is None."""
        values = reach(path, self._records)
        return [None if value is None else of(value) for value in values] if of else values

    def texts(self, path: str, of: Callable[[Any], Any] | None = None) -> Array:
        """Return a column of text or of objects."""
        return np.array(self.each(path, of), dtype=object)

    def numbers(self, path: str, of: Callable[[Any], float | None] | None = None) -> stats.Floats:
        """Return a column of numbers."""
        return stats.numbers(self.each(path, of))

    def optimizers(self) -> Array:
        """Return the optimizer of each training that was compared."""
        recipes = [
            (divergence.recipe, case.recipe) if case.phase == "training" and divergence is not None else None
            for case, divergence in zip(self._records["case"], self._records["divergence"], strict=True)
        ]
        return np.array([of and (optimizer_name(*of) if of[0] else NONE_NAMED) for of in recipes], dtype=object)

    @cached_property
    def late(self) -> "Frame":
        """The frame of late places."""
        return Frame(self.run, late=True)

    @cached_property
    def interval(self) -> tuple[stats.Floats, stats.Floats]:
        """The ends of the 95% interval of seconds_median."""
        return stats.log_t_intervals(self.run.rounds.seconds[self.run.own.order], self.run.own.lengths)

    @cached_property
    def decided(self) -> tuple[stats.Floats, stats.Floats]:
        """The decisions that are the reference's, and all decisions."""
        agreeing, decisions = (self.numbers("divergence.output.decided", itemgetter(part)) for part in (0, 1))
        return agreeing, decisions

    @cached_property
    def bounds(self) -> list[Any]:
        """What bounds each step with counted FLOPs."""
        bounds = Bounds(self.run.stored.every(Ceiling))
        pairs = zip(self._records["memory"], self.each("case.device"), strict=True)
        return [None if memory is None or memory.flops is None else bounds.of(memory, on) for memory, on in pairs]

    def rounds(self) -> Array:
        """Return the number of each case's rounds, NaN for imported readings."""
        lengths, read = self.run.own.lengths, set[str]().union(*self.run.stored.readings.values())
        unknown = np.array([case_id in read for case_id in self.run.stored.cases], dtype=np.bool_) & (lengths == 0)
        return np.where(unknown, np.nan, lengths) if read else lengths

    @cached_property
    def _tables(self) -> stats.Integers:
        """The table number of each case; cases of a table differ only in precision and its inputs."""
        known: dict[Any, int] = {}
        names = ("workload", "device", "phase", "path", "batch_size", "memory_format", "sdpa", "recipe")
        keys = zip(self["parameters"], *(self.each(f"case.{name}") for name in names), strict=True)
        return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)

    def baselines(self, precision: str) -> stats.Integers:
        """Return the row of each case's baseline in `precision`, -1 if it is missing or not ok."""
        rows = np.full(len(self._tables), -1)
        for row in np.flatnonzero((self["precision"] == precision) & (self["outcome"] == OK)).tolist():
            # prefer the baseline with fp32 inputs
            if rows[self._tables[row]] < 0 or self["input_dtype"][row] == "fp32":
                rows[self._tables[row]] = row
        return rows[self._tables]

    def speedup(self, precision: str) -> stats.Floats:
        """Return the speedup of each case over its baseline in `precision`."""
        rows, seconds = self.baselines(precision), _positive(self["seconds_median"])
        return np.where(rows >= 0, stats.ratio(seconds[rows], seconds), np.nan)

    def saving(self) -> stats.Floats:
        """Return the memory of each case relative to its baseline in fp32; NaN if their counters differ."""
        rows, memory, source = self.baselines(BASELINE), self["peak_memory_bytes"], self["memory_source"]
        alike = (rows >= 0) & (source[rows] == source)
        return np.where(alike, stats.ratio(memory, memory[rows]), np.nan)

    @cached_property
    def speedups(self) -> dict[str, stats.Floats]:
        """The ends of the 95% interval of each case's speedup over its baseline in fp32, and in `default`.

        Without three common rounds they come from the intervals of both cases. NaN without these, and for a baseline.
        """
        timed, speedups = list(self.run.timed.values()), {}
        low, high = _positive(self["seconds_low"]), _positive(self["seconds_high"])
        for precision in (BASELINE, DEFAULT):
            bases = self.baselines(precision)
            others = np.flatnonzero((bases >= 0) & (bases != np.arange(len(bases)))).tolist()
            ends = np.full((2, len(timed)), np.nan)
            ends[:, others] = low[bases[others]] / high[others], high[bases[others]] / low[others]
            paired = paired_intervals([(timed[row], timed[bases[row]]) for row in others])
            for row, interval in zip(others, paired, strict=True):
                ends[:, row] = interval or ends[:, row]
            speedups[precision] = ends
        return speedups


def _plain(column: Column, values: Array) -> list[Any]:
    if values.dtype.kind != "f":
        return values.tolist()  # type: ignore[no-any-return]
    undefined, plain = np.isnan(values), values.astype(object)
    if column.whole:
        plain[~undefined] = [int(value) for value in plain[~undefined]]
    plain[undefined] = None
    return plain.tolist()  # type: ignore[no-any-return]


def load(path: Path | str) -> "pd.DataFrame":
    """Return the run in a file, or all runs in a folder, as one frame with a row per case.

    Columns are `metrics.COLUMNS` and, by the default budget, `VERDICT_COLUMNS`. A folder is a results folder with
    `runs/`, or any folder of run files; its runs are sorted by name, and so by time, without runs that only explain.
    Warns about a run whose last line is cut. Raises `StoreError`, naming file and line, for a missing or damaged run,
    and `UsageError` for the file of a run that only explains.
    """
    import pandas as pd

    path = Path(path)
    frames = []
    for run in judged(measured_files(path) if path.is_dir() else [path]):
        if run.stored.cut:
            warnings.warn(f"{run.stored.path} {CUT}", stacklevel=2)
        frames.append(run.to_pandas())
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def judged(files: Iterable[Path]) -> Iterator[Frame]:
    """Yield the frame of each run with its verdicts by the default budget (`VERDICT_COLUMNS`); raises as `load` does.

    Studies of trainings in its folder count, as everywhere.
    """
    from ampbench.judge.verdict import verdicts_of

    studies: dict[tuple[Path, tuple[str, str]], list[StoredRun]] = {}
    for stored in read_together(files):
        with no_garbage_collection():  # until the records of a large run are reduced
            require_measured(stored)
            place = stored.path.parent, place_of(stored.header)
            if place not in studies:
                studies[place] = trainings_beside(stored)
            frame = frame_of(stored)
            stored.rounds.clear()  # the samples would fill the memory
            rows = [verdict.columns() for verdict in verdicts_of(stored, Budget(), studies[place]).values()]
            added = {name: np.array([row[name] for row in rows], dtype) for name, dtype in VERDICT_COLUMNS.items()}
            frame.columns = {**frame.columns, **added}
        yield frame


def require_measured(stored: StoredRun) -> None:
    """Raise `UsageError` for a run that only explains."""
    if stored.header.explains:
        raise UsageError(not_measured(stored.header))


@once
def frame_of(stored: StoredRun) -> Frame:
    """Return the frame of a run."""
    return Frame(MeasuredRun.of(stored))


@once
def run_rows(stored: StoredRun) -> list[dict[str, Any]]:
    """Return the rows of a run (`Frame.rows`), one a case in order."""
    return frame_of(stored).rows()


def _positive(values: Array) -> stats.Floats:
    """Return values, NaN for those that are not above zero."""
    return np.where(values > 0, values, np.nan)


def _largest(name: str) -> Callable[[Iterable[OutputError]], float | None]:
    """Return a function that finds the largest value of a field among outputs; None if there is none."""
    return lambda outputs: max(
        (value for output in outputs if (value := getattr(output, name)) is not None), default=None
    )


FUNCTIONS: Mapping[str, Callable[[Frame], Array]] = MappingProxyType(
    {
        "parameters": lambda of: of.texts(
            "case.parameters", lambda values: ",".join(f"{name}={value}" for name, value in sorted(values.items()))
        ),
        "recipe": lambda of: of.texts("case.recipe", lambda text: text or None),
        "optimizer": Frame.optimizers,
        "sdpa": lambda of: of.texts("case.sdpa", lambda text: text or None),
        "attention": lambda of: of.texts(
            "memory.attention",
            lambda kernels: ", ".join(f"{name} {kernels[name]:,}" for name in sorted(kernels)) or "none",
        ),
        "outcome": lambda of: of.texts("outcome.name"),
        "reason": lambda of: of.texts("outcome.reason", lambda reason: reason or None),
        "rounds": Frame.rounds,
        "seconds_median": lambda of: of.run.own.medians(of.run.rounds.seconds),
        "seconds_low": lambda of: of.interval[0],
        "seconds_high": lambda of: of.interval[1],
        "items_per_second": lambda of: stats.ratio(of.numbers("case.case_id", of.run.items.get), of["seconds_median"]),
        "speedup_vs_fp32": lambda of: of.speedup(BASELINE),
        "speedup_low": lambda of: of.speedups[BASELINE][0],
        "speedup_high": lambda of: of.speedups[BASELINE][1],
        "speedup_vs_tf32": lambda of: of.speedup("tf32"),
        "speedup_vs_default": lambda of: of.speedup(DEFAULT),
        "speedup_default_low": lambda of: of.speedups[DEFAULT][0],
        "speedup_default_high": lambda of: of.speedups[DEFAULT][1],
        "memory_ratio_vs_fp32": Frame.saving,
        "output_worst_name": lambda of: of.texts(
            "divergence.output", lambda errors: errors.worst.name if errors.worst and len(errors.tensors) > 1 else None
        ),
        "output_spread_name": lambda of: of.texts(
            "divergence.output",
            lambda errors: errors.noisiest.name if errors.noisiest and len(errors.tensors) > 1 else None,
        ),
        "sample_p99_rel_l2": lambda of: of.numbers("divergence.output.tensors", _largest("sample_p99_rel_l2")),
        "sample_worst_rel_l2": lambda of: of.numbers("divergence.output.tensors", _largest("sample_worst_rel_l2")),
        "output_sqnr_db": lambda of: -20 * np.log10(_positive(of.numbers("divergence.output.rel_l2"))),
        "output_not_finite": lambda of: of.texts("divergence", lambda errors: not_finite(errors) or None),
        "reference_dtype": lambda of: of.texts("divergence.reference.dtype", lambda text: text or None),
        "argmax_agreement": lambda of: stats.ratio(*of.decided),
        "argmax_bound": lambda of: stats.share_bound(*of.decided),
        "loss_rel_error": lambda of: stats.ratio(of["loss_abs_error"], np.abs(of.numbers("reference.loss"))),
        "loss_abs_error": lambda of: np.abs(of.numbers("loss") - of.numbers("reference.loss")),
        "grad_not_finite": lambda of: of.texts("divergence", lambda errors: not_finite(errors, "gradient") or None),
        "busy_share": lambda of: np.minimum(stats.ratio(of.numbers("memory.busy_seconds"), of["seconds_median"]), 1.0),
        "flops_per_step": lambda of: of.numbers("memory.flops", lambda flops: sum(flops.values())),
        "flops_per_second": lambda of: stats.ratio(of["flops_per_step"], of["seconds_median"]),
        "ceiling_share": lambda of: stats.ratio(
            stats.numbers([bound and (bound.least or None) for bound in of.bounds]), of["seconds_median"]
        ),
        "bound_by": lambda of: np.array([bound and bound.binds for bound in of.bounds], dtype=object),
        "burst_seconds": lambda of: of.run.own.medians(of.run.rounds.columns["bursts"]),
        "energy_per_step": lambda of: of.run.own.medians(of.run.rounds.columns["power"] * of.run.rounds.seconds),
        "energy_per_item": lambda of: stats.ratio(of["energy_per_step"], of.numbers("case.case_id", of.run.items.get)),
        "energy_error": lambda of: of.run.own.medians(of.run.rounds.columns["power_error"]),
        "other_share": lambda of: of.run.own.medians(of.run.rounds.columns["other"]),
    }
)
"""The function of each column that is not simply stored."""
