"""Reads the named runs and reduces each to the numbers of a trend, each run once."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ampbench.core.metrics import COLUMNS
from ampbench.core.units import counted, format_share
from ampbench.errors import AmpbenchError, NothingToRunError, StoreError
from ampbench.judge.frame import Frame
from ampbench.judge.rounds import OK, UNFIT_SHARE, MeasuredRun, Role, said_of, unfit_rounds
from ampbench.records.case import Case, matches
from ampbench.records.measured import OTHER_SHARE, GradientDivergence, OutputDivergence
from ampbench.records.run import Header
from ampbench.store import CUT, check_folder, find_runs, not_measured, read_header, run_files
from ampbench.trend.series import TIME, Gap, Lack, Tracked

LOW, HIGH = "seconds_low", "seconds_high"
_FUNCTION = attrgetter("output_norm", "output_sketch", "grad_sketch", "loss", "output_shapes")
"""The fields of a reference that show which function a case computed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunValues:
    """One run, reduced to numbers of the `cases` that are followed.

    `values` are by column and case id, in base units, without unknown ones; `missing` has the reasons why cases are
    not ok, `disturbed` the causes of too many unfit rounds of cases.
    """

    cases: Mapping[str, Case]
    values: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, Gap]
    disturbed: Mapping[str, str]
    measured: MeasuredRun

    @property
    def header(self) -> Header:
        """The header of the run."""
        return self.measured.stored.header

    def value(self, column: str, case_id: str) -> float | None:
        """Return the value of a column of a case, None where it has none."""
        return self.values[column].get(case_id)

    def numbers(self, metric: Tracked, case_id: str) -> str:
        """Return the key of comparable values: the digests of weights and inputs for errors, the counter for bytes."""
        stored = self.measured.stored
        if metric.gate.kind == "memory" and (memory := stored.memory.get(case_id)):
            return memory.source
        if metric.gate.kind == "accuracy" and (divergence := stored.divergence.get(case_id)):
            return f"{divergence.weights_digest}/{divergence.inputs_digest}"
        return ""

    def undefined(self, column: str, case_id: str) -> str:
        """Return why a measured error is undefined, "" where it is defined or was not measured."""
        divergence = self.measured.stored.divergence.get(case_id)
        if divergence is None or case_id in self.missing or case_id in self.values[column]:
            return ""
        part = COLUMNS[column].undefined_by
        if not part:
            return ""
        errors: OutputDivergence | GradientDivergence = getattr(divergence, part)
        count = errors.nonfinite
        return errors.undefined or (
            f"{counted(count, f'{part} element is', f'{part} elements are')} not finite" if count else ""
        )

    def function(self, case_id: str) -> object:
        """Return the fp64 result of a case, for comparison to the last bit; None where it is unknown."""
        divergence = self.measured.stored.divergence.get(case_id)
        return _FUNCTION(divergence.reference) if divergence else None

    def may_vary(self, case_id: str) -> bool:
        """Return whether a repeated step may differ in its bits: it did, or was not repeated on an accelerator."""
        divergence = self.measured.stored.divergence.get(case_id)
        repeatable = divergence.repeatable if divergence else None
        return repeatable is False or (repeatable is None and self.cases[case_id].device != "cpu")


def reduced(run: MeasuredRun, columns: Iterable[str], is_chosen: Callable[[str], bool]) -> RunValues:
    """Return the values of `columns` of the cases whose ids are chosen."""
    stored, frame = run.stored, Frame(run)
    cases = {case_id: case for case_id, case in stored.cases.items() if is_chosen(case_id)}
    outcomes = {
        case_id: Gap(outcome, reason)
        for case_id, outcome, reason in zip(stored.cases, frame["outcome"], frame["reason"], strict=True)
        if case_id in cases
    }

    def known(column: str) -> dict[str, float]:
        numbers = zip(stored.cases, frame[column].astype(np.float64).tolist(), strict=True)
        return {
            case_id: number
            for case_id, number in numbers
            # a step that was held up all the while may have a CPU time of zero on a coarse clock
            if math.isfinite(number) and (column != TIME or number > 0) and case_id in cases
            and outcomes[case_id].lack == OK
        }  # fmt: skip

    return RunValues(
        cases=cases,
        values={name: known(name) for name in (*columns, LOW, HIGH)},
        missing={case_id: Gap(Lack(outcome), why) for case_id, (outcome, why) in outcomes.items() if outcome != OK},
        disturbed=_disturbed(run),
        measured=run,
    )


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


_ASV = "asv"
"""The folder of asv's results in a results folder."""


class RunsRead(NamedTuple):
    """The runs read, and notes on what was left out or assumed."""

    runs: Sequence[RunValues]
    notes: Sequence[str]


def read_runs(names: Sequence[str], results: Path, metrics: Iterable[Tracked], keyword: str = "") -> RunsRead:
    """Return the runs of the sources `names`, with the `metrics` of the cases whose id matches `keyword`.

    A source is a run file, a run's id, a prefix of one or `latest` (in the folder `results`), a folder of run files, a
    results folder (its runs/ and its asv/), a folder of asv's results, or a file of pytest-benchmark. Default: all of
    `results`. A run that is named twice, or also present in its own format, counts once; of a file of asv's that grew
    since its import, the newest state counts.

    Raises `NothingToRunError` where no run measured, `StoreError` for a damaged or foreign file, `UsageError` for an
    unknown name.
    """
    if not names:
        check_folder(results)
    notes: list[str] = []
    native: dict[Path, tuple[Path, bool]] = {}  # with whether the file was named itself, so that damage is an error
    foreign: dict[Path, Path] = {}
    explaining: list[Path] = []
    for name in names or [str(results)]:
        path = Path(name).expanduser()
        if path.is_dir():
            files = run_files(path, measuring=True)
            explaining += [] if files else run_files(path)
            native = {file.resolve(): (file, False) for file in files} | native
            foreign |= {source.resolve(): source for source in _foreign(path, alone=not files)}
        elif path.is_file() and path.suffix == ".json":
            foreign[path.resolve()] = path
        else:
            native |= {file.resolve(): (file, True) for file in find_runs(name, results, notes.append)}
    columns = dict.fromkeys([*(metric.column.name for metric in metrics), TIME])
    runs: dict[object, RunValues] = {}

    def keep(run: MeasuredRun) -> None:
        key = _identity(run)
        if key not in runs or _numbers(run) > _numbers(runs[key].measured):
            runs[key] = reduced(run, columns, partial(matches, keyword))

    damaged = []
    for path, named in native.values():
        try:
            run = MeasuredRun.read(path, averaging=False)  # samples are never all in memory
        except StoreError as error:
            if named:
                raise
            damaged.append(str(error))
            continue
        if run.stored.header.explains:
            explaining.append(path)
            continue
        notes += [f"{path} {CUT}"] if run.stored.cut else []
        keep(run)
    remarks: Counter[str] = Counter()
    if foreign:
        from ampbench.convert import read_source  # most trends have nothing to convert

        for path in foreign.values():
            for stored in read_source(path, remarks):
                keep(MeasuredRun.of(stored))
                stored.rounds.clear()  # nor are these
    if not any(run.cases for run in runs.values()):
        raise _nothing(runs, damaged, explaining, ", ".join(names) or str(results), keyword)
    notes += [f"left out: {problem}" for problem in damaged]
    notes += [f"{remark} ({counted(count, 'file')})" for remark, count in remarks.items()]
    return RunsRead(list(runs.values()), notes)


def _nothing(runs: Sized, damaged: list[str], explaining: list[Path], named: str, keyword: str) -> AmpbenchError:
    """Return the error for runs without a case to follow."""
    if runs:
        return NothingToRunError(f"no case of {len(runs)} runs matches -k {keyword!r}")
    if damaged:
        return StoreError(damaged[0])
    if explaining:
        return NothingToRunError(not_measured(read_header(explaining[-1])))
    return NothingToRunError(f"there is no run in {named}: measure with `ampbench run`, or name run files or folders")


def _foreign(folder: Path, alone: bool) -> list[Path]:
    """Return asv's results in a results folder or, where the folder holds no run (`alone`), another program's files."""
    from ampbench.convert.asv import BENCHMARKS_FILE, MACHINE_FILE

    asv = folder / _ASV
    # before its first result, asv describes machine and suite
    if any(path.name not in (MACHINE_FILE, BENCHMARKS_FILE) for path in asv.rglob("*.json")):
        return [asv]
    return [folder] if alone and not (folder / "runs").is_dir() and any(folder.rglob("*.json")) else []


def _identity(run: MeasuredRun) -> object:
    """Return the identity of a run: its id; imports of one measurement are one run."""
    header = run.stored.header
    if header.imported is None:
        return header.run
    return header.imported.program, header.environment.host, header.commit, header.imported.file, header.started_at


def _numbers(run: MeasuredRun) -> int:
    """Return how many numbers an import has: asv only ever adds to a file."""
    return len(run.rounds.seconds) + sum(map(len, run.stored.readings.values()))
