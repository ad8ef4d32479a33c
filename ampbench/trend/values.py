"""The metrics that trends follow, and their values in the runs of files and folders."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ampbench.core.metrics import GATED, METRICS, Column, Gate
from ampbench.core.units import counted, format_share
from ampbench.errors import NothingToRunError, StoreError, UnknownNameError
from ampbench.judge.frame import Frame
from ampbench.judge.rounds import OK, UNFIT_SHARE, MeasuredRun, Role, said_of, unfit_rounds
from ampbench.records.case import Case
from ampbench.records.measured import OTHER_SHARE, Divergence, GradientDivergence, OutputDivergence
from ampbench.store import (
    CUT,
    StoredRun,
    check_folder,
    find_runs,
    not_measured,
    once,
    read_together,
    run_files,
)
from ampbench.store.folder import shared_lanes

TIME = "seconds_median"


@dataclass(frozen=True, slots=True)
class Tracked:
    """A metric that is followed: its short `name`, its `column`, and the column `gated` that comparisons judge.

    `scale` is the smallest number that a change is related to: a tenth of an error below the cost of rounding to the
    dtype is no change.
    """

    name: str
    column: Column
    gated: str
    scale: float = 0.0

    @property
    def gate(self) -> Gate:
        """How comparisons judge it."""
        return GATED[self.gated]

    @property
    def noisy(self) -> bool:
        """Whether its values are noisy: times vary, bytes and errors of one environment do not."""
        return self.column.name == TIME


TRACKED: Mapping[str, Tracked] = MappingProxyType(
    {
        "time": Tracked("time", METRICS[TIME], TIME),
        "memory": Tracked("memory", METRICS["peak_memory_bytes"], "peak_memory_bytes"),
        # the table's ×floor: the error of rounding alone is 1 here, and every program keeps it
        "floor": Tracked("floor", METRICS["output_floor_ratio"], "output_rel_l2", 1.0),
        "gradients": Tracked("gradients", METRICS["grad_rel_l2"], "grad_rel_l2"),
    }
)
"""The metrics that `ampbench trend` follows."""


def tracked(names: Iterable[str] = ()) -> list[Tracked]:
    """Return the metrics called `names`, all without any; raises `UnknownNameError` for any other name."""
    chosen = dict.fromkeys(names or TRACKED)
    for name in chosen:
        if name not in TRACKED:
            raise UnknownNameError("metric", name, TRACKED)
    return [TRACKED[name] for name in chosen]


class Lack(StrEnum):
    """Why there is no number."""

    FAILED = "failed"
    SKIPPED = "skipped"
    UNDEFINED = "undefined"
    """The error was measured and is no number, because something is not finite."""
    NOT_MEASURED = "not measured"
    OTHER_NUMBERS = "other numbers"
    """Measured with other weights, inputs, or by another counter of memory."""


class Gap(NamedTuple):
    """Why there is no number, with the reason of a failure, a skip or an undefined error."""

    lack: Lack
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """The `value` of a metric of a case in one `run`, in base units.

    An undefined error is infinite: worse than any number. A case that is not ok has no value; `gap` has the reason of
    both. `low` and `high` are the interval of a time by the run's own rounds or samples (95%, asv's 99%). Values of
    equal `numbers` are comparable: the digests of weights and inputs of errors, the counter of bytes. `disturbed` names
    the disturbance of the machine that spoils a time, "" without any.
    """

    run: MeasuredRun
    value: float | None
    low: float | None = None
    high: float | None = None
    numbers: str = ""
    disturbed: str = ""
    gap: Gap | None = None


@once
def values_of(stored: StoredRun) -> list[tuple[Case, Tracked, Measured]]:
    """Return the value of each metric of each case that was measured, failed or was skipped."""
    run = MeasuredRun.of(stored)
    frame, disturbed = Frame(run), _disturbed(run)
    columns = [frame[metric.column.name].tolist() for metric in TRACKED.values()]
    limits = (frame["seconds_low"].tolist(), frame["seconds_high"].tolist())
    ends = [[limit if math.isfinite(limit) else None for limit in column] for column in limits]
    values = []
    for (case_id, case), low, high, *known in zip(stored.cases.items(), *ends, *columns, strict=True):
        outcome = run.outcome(case_id)
        for metric, number in zip(TRACKED.values(), known, strict=True):
            value, gap = number, None
            if outcome.name != OK:
                value, gap = None, Gap(Lack(outcome.name), outcome.reason)
            elif metric.noisy and not value > 0:
                # a step that was held up all the while may have a CPU time of zero on a coarse clock
                value, gap = None, Gap(Lack.NOT_MEASURED)
            elif not math.isfinite(value):
                value, gap = math.inf, Gap(Lack.UNDEFINED, _undefined(stored.divergence.get(case_id), metric))
                if not gap.why:
                    continue
            numbers, memory, divergence = "", stored.memory.get(case_id), stored.divergence.get(case_id)
            if metric.gate.kind == "memory" and memory:
                numbers = memory.source
            elif metric.gate.kind == "accuracy" and divergence:
                numbers = f"{divergence.weights_digest}/{divergence.inputs_digest}"
            measured = Measured(run=run, value=value, gap=gap, numbers=numbers)
            if metric.noisy:
                measured = replace(measured, low=low, high=high, disturbed=disturbed.get(case_id, ""))
            values.append((case, metric, measured))
    return values


def _undefined(divergence: Divergence | None, metric: Tracked) -> str:
    """Return why a measured error is undefined, "" where it was not measured."""
    part = metric.column.undefined_by
    if divergence is None or not part:
        return ""
    errors: OutputDivergence | GradientDivergence = getattr(divergence, part)
    count = errors.nonfinite
    elements = counted(count or 0, f"{part} element is", f"{part} elements are")
    return errors.undefined or (f"{elements} not finite" if count else "")


def _disturbed(run: MeasuredRun) -> dict[str, str]:
    """Return the disturbances of cases with more than `UNFIT_SHARE` unfit rounds, or in asv with other load."""
    rounds, unfit = run.rounds, unfit_rounds(run)
    disturbed = {}
    for place, case_id in enumerate(run.stored.cases):
        of_case = (rounds.owners == place) & (rounds.roles == Role.OWN)
        bad = of_case & (unfit.cause >= 0)
        if bad.sum() > UNFIT_SHARE * of_case.sum():
            disturbed[case_id] = said_of(unfit.cause[bad], unfit.value[bad], int(of_case.sum()), "rounds")
    for case_id, share in run.stored.readings.get("other_share", {}).items():
        if share > OTHER_SHARE:
            disturbed[case_id] = f"other processes used {format_share(share)} of the CPU"
    return disturbed


class RunsRead(NamedTuple):
    """The runs read, and notes on what was left out or assumed."""

    runs: Sequence[MeasuredRun]
    notes: Sequence[str]


def read_runs(names: Sequence[str], results: Path) -> RunsRead:
    """Return the runs of the sources `names`.

    A source is a run file, a run's id, a prefix of one or `latest` (in the folder `results`), a folder of run files, a
    results folder (its runs/ and its asv/), or a folder or file of asv's results. Default: all of `results`. A run that
    is named twice, or also present in its own format, counts once; of a file of asv's that grew since its import, the
    newest state counts.

    Raises `NothingToRunError` where no run measured, `StoreError` for a damaged or foreign file, `UsageError` for an
    unknown name.
    """
    if not names:
        check_folder(results)
    notes: list[str] = []
    native: dict[Path, tuple[Path, bool]] = {}  # with whether the file was named itself, so that damage is an error
    foreign: dict[Path, None] = {}
    for name in names or [str(results)]:
        path = Path(name).expanduser()
        if path.is_dir():
            files = run_files(path, measuring=True)
            native = {file.resolve(): (file, False) for file in files} | native
            if (path / "asv").is_dir():
                foreign[path / "asv"] = None
            elif not files and not (path / "runs").is_dir():
                foreign[path] = None
        elif path.is_file() and path.suffix == ".json":
            foreign[path] = None
        else:
            native |= {file.resolve(): (file, True) for file in find_runs(name, results, notes.append)}
    runs: dict[object, MeasuredRun] = {}

    def keep(stored: StoredRun) -> None:
        run, header = MeasuredRun.of(stored), stored.header
        stored.rounds.clear()  # the samples of many runs would fill the memory
        of_import = header.imported and (header.environment.host, header.commit, header.started_at, header.imported)
        known = runs.setdefault(of_import or header.run, run)
        if _numbers(run) > _numbers(known):
            runs[of_import or header.run] = run

    damaged = []
    named_files = {file for file, named in native.values() if named}
    for lanes in shared_lanes(file for file, _ in native.values()):
        try:
            (stored,) = read_together(lanes)
        except StoreError as error:
            if named_files & {*lanes}:
                raise
            damaged.append(str(error))
            continue
        if stored.header.explains:  # it was named: folders are searched for runs that measured
            raise NothingToRunError(not_measured(stored.header))
        notes += [f"{stored.path} {CUT}"] if stored.cut else []
        keep(stored)
    remarks: Counter[str] = Counter()
    if foreign:
        from ampbench.convert import read_source  # most trends have nothing to convert

        for path in foreign:
            for stored in read_source(path, remarks):
                keep(stored)
    if damaged and not runs:
        raise StoreError(damaged[0])
    if not runs:
        where = ", ".join(names) or results
        raise NothingToRunError(
            f"there is no run in {where}: measure with `ampbench run`, or name run files or folders"
        )
    notes += [f"left out: {problem}" for problem in damaged]
    notes += [f"{remark} ({counted(count, 'file')})" for remark, count in remarks.items()]
    return RunsRead(list(runs.values()), notes)


def _numbers(run: MeasuredRun) -> int:
    """Return how many numbers an import has: asv only ever adds to a file."""
    return len(run.rounds.seconds) + sum(map(len, run.stored.readings.values()))
