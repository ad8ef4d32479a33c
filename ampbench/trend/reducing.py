"""The runs that a user names, read and reduced to the numbers of a trend, each run once."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np

from ampbench.core.metrics import COLUMNS
from ampbench.core.units import counted, format_share
from ampbench.errors import NothingToRunError, StoreError
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

    `values` are by column and case id, in base units, without unknown ones; `missing` says why cases are not ok,
    `disturbed` what disturbed cases with too many unfit rounds.
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
        """Return what must be equal for values to be comparable: weights and inputs of errors, the counter of bytes."""
        stored = self.measured.stored
        if metric.gate.kind == "memory" and (memory := stored.memory.get(case_id)):
            return memory.source
        if metric.gate.kind == "accuracy" and (divergence := stored.divergence.get(case_id)):
            return f"{divergence.weights_digest}/{divergence.inputs_digest}"
        return ""

    def undefined(self, column: str, case_id: str) -> str:
        """Return why a measured error is no number, "" where it is one or was not measured."""
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
        """Return what a case computed, equal to the last bit; None where that is not known."""
        divergence = self.measured.stored.divergence.get(case_id)
        return _FUNCTION(divergence.reference) if divergence else None

    def may_vary(self, case_id: str) -> bool:
        """Return whether a step's bits may differ when it is run again: seen, or not looked at on an accelerator."""
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
"""The folder of asv's results in a results folder."""


@dataclass(slots=True)
class Sources:
    """The files that a user named, by their absolute paths: run files, and files of other programs.

    With a run file stands whether it was named itself, so that damage is an error.
    """

    native: dict[Path, tuple[Path, bool]] = field(default_factory=dict)
    foreign: dict[Path, Path] = field(default_factory=dict)
    explaining: list[Path] = field(default_factory=list)
    runs: Sequence[RunValues] = ()
    notes: list[str] = field(default_factory=list)

    def add(self, source: str, results: Path) -> None:
        """Add the files of a source, as `read_runs` describes it."""
        path = Path(source).expanduser()
        if path.is_dir():
            self.add_folder(path)
        elif path.is_file() and path.suffix == ".json":
            self.foreign[path.resolve()] = path
        else:
            for file in find_runs(source, results, self.notes.append):
                self.native[file.resolve()] = file, True

    def add_folder(self, folder: Path) -> None:
        """Add the runs of a folder, asv's results in it, or another program's files."""
        files = run_files(folder, measuring=True)
        self.explaining += [] if files else run_files(folder)
        for file in files:
            self.native.setdefault(file.resolve(), (file, False))
        asv = folder / _ASV
        if _has_results(asv):
            self.foreign[asv.resolve()] = asv
        elif not files and not (folder / "runs").is_dir() and any(folder.rglob("*.json")):
            self.foreign[folder.resolve()] = folder


def _has_results(asv: Path) -> bool:
    """Return whether asv has left more than the files that, before its first result, describe machine and suite."""
    from ampbench.convert.asv import BENCHMARKS_FILE, MACHINE_FILE

    return any(path.name not in (MACHINE_FILE, BENCHMARKS_FILE) for path in asv.rglob("*.json"))


def read_runs(names: Sequence[str], results: Path, metrics: Iterable[Tracked], keyword: str = "") -> Sources:
    """Return the runs that sources are the `names` of, with the `metrics` of the cases whose id matches `keyword`.

    A source is a run file, a run's id, a prefix of one or `latest` (in the folder `results`), a folder of run files, a
    results folder (its runs/ and its asv/), a folder of asv's results, or a file of pytest-benchmark. Without any: all
    of `results`. A run that is named twice, or was imported and is there in its own format too, counts once; of a file
    of asv's that grew since it was imported, the newest state counts.

    Raises `NothingToRunError` where no run measured, `StoreError` for a damaged or foreign file, `UsageError` for a
    name of nothing.
    """
    sources = Sources()
    for name in names:
        sources.add(name, results)
    if not names:
        check_folder(results)
        sources.add_folder(results)
    columns = dict.fromkeys([*(metric.column.name for metric in metrics), TIME])
    runs: dict[object, RunValues] = {}

    def keep(run: MeasuredRun) -> None:
        key = _identity(run)
        if key not in runs or _numbers(run) > _numbers(runs[key].measured):
            runs[key] = reduced(run, columns, partial(matches, keyword))

    damaged = []
    for path, named in sources.native.values():
        try:
            run = MeasuredRun.read(path, averaging=False)  # samples are never all in memory
        except StoreError as error:
            if named:
                raise
            damaged.append(str(error))
            continue
        if run.stored.header.explains:
            sources.explaining.append(path)
            continue
        sources.notes += [f"{path} {CUT}"] if run.stored.cut else []
        keep(run)
    remarks: Counter[str] = Counter()
    if sources.foreign:
        from ampbench.convert.native import read_source  # most trends have nothing to convert

        for path in sources.foreign.values():
            for stored in read_source(path, remarks):
                keep(MeasuredRun.of(stored))
                stored.rounds.clear()  # nor are these
    _check(runs, keyword, damaged, sources, ", ".join(names) or str(results))
    sources.notes += [f"left out: {problem}" for problem in damaged]
    sources.notes += [f"{remark} ({counted(count, 'file')})" for remark, count in remarks.items()]
    sources.runs = list(runs.values())
    return sources


def _check(runs: Mapping[object, RunValues], keyword: str, damaged: list[str], sources: Sources, named: str) -> None:
    """Raise the error for runs without a case to follow."""
    if not runs and damaged:
        raise StoreError(damaged[0])
    if not runs and sources.explaining:
        raise NothingToRunError(not_measured(read_header(sources.explaining[-1])))
    if not runs:
        raise NothingToRunError(
            f"there is no run in {named}: measure with `ampbench run`, or name run files or folders"
        )
    if not any(run.cases for run in runs.values()):
        raise NothingToRunError(f"no case of {len(runs)} runs matches -k {keyword!r}")


def _identity(run: MeasuredRun) -> object:
    """Return what makes a run itself: its id; imports of one measurement are one run."""
    header = run.stored.header
    if header.imported is None:
        return header.run
    return header.imported.program, header.environment.host, header.commit, header.imported.file, header.started_at


def _numbers(run: MeasuredRun) -> int:
    """Return how many numbers an import has: asv only ever adds to a file."""
    return len(run.rounds.seconds) + sum(map(len, run.stored.readings.values()))
