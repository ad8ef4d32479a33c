"""What a study of batches found, in sentences: what fits, what is fastest, and how each precision stands to fp32."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ampbench.base.precisions import BASELINE
from ampbench.base.units import format_bytes, format_count, format_percent, format_ratio, format_whole
from ampbench.instruments.batch.records import BatchAsked, BatchPoint
from ampbench.instruments.batch.search import ENOUGH, Reached, Times, next_batch, rate, reached, times_of
from ampbench.records.case import Case, Environment
from ampbench.records.labels import NOT_REACHED, few
from ampbench.records.measured import Fitness
from ampbench.records.paired import unfit
from ampbench.records.run import Settings
from ampbench.store import StoredRun


class Searched(NamedTuple):
    """A case that was searched, what its points come to, and its best throughput in times of fp32's.

    `baseline` is what fp32's points come to (None: fp32 was not searched).
    """

    case: Case
    found: Reached
    baseline: Reached | None

    @property
    def largest_ratio(self) -> float | None:
        """How many times the largest batch of fp32 the largest is; None where either is not known."""
        there = self.baseline.largest if self.baseline else None
        return self.found.largest.batch / there.batch if self.found.largest and there else None

    @property
    def speedup(self) -> Times | None:
        """How many times the best throughput of fp32 the best is."""
        return times_of(self.found, self.baseline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """The precisions of a network in one phase on one device, what they were asked for, and the limit in bytes."""

    rows: Sequence[Searched]
    asked: BatchAsked
    limit: int | None

    @property
    def case(self) -> Case:
        """One of the cases: the others differ from it in precision alone."""
        return self.rows[0].case


def limit_of(case: Case, asked: BatchAsked, settings: Settings, environment: Environment) -> int | None:
    """Return what a case may take: what was asked for, or what the machine has (None: it does not tell)."""
    if asked.limit_bytes is not None:
        return asked.limit_bytes
    if case.device == "cpu":
        return settings.memory_limit_bytes
    device = environment.device(case.device)
    return device.memory_bytes if device is not None else None


def too_large_said(point: BatchPoint, limit: int | None) -> str:
    """Say that not even the smallest batch fits, and what it takes, as far as that is known."""
    return f"not even a batch of {point.batch} fits into {format_bytes(limit)}: {point.reason}"


def searches_of(stored: StoredRun, case_ids: Sequence[str]) -> list[Searches]:
    """Return what a run found of those of the cases `case_ids` that were searched, a table each, in its order."""
    points = stored.several_of(BatchPoint)
    header = stored.header
    found = {case_id: reached(points[case_id]) for case_id in stored.cases if case_id in points}
    baselines = {
        table_of(stored.cases[case_id]): one for case_id, one in found.items()
        if stored.cases[case_id].precision == BASELINE
    }  # fmt: skip
    tables: dict[str, list[Searched]] = {}
    for case_id in case_ids:
        if case_id in found:
            case = stored.cases[case_id]
            key = table_of(case)
            tables.setdefault(key, []).append(Searched(case, found[case_id], baselines.get(key)))
    most = max((point.batch for each in points.values() for point in each), default=0)
    asked = stored.asked or BatchAsked(max_batch=most, rounds=1, seconds=0.0)  # a run that does not say
    return [
        Searches(rows=rows, asked=asked, limit=limit_of(rows[0].case, asked, header.settings, header.environment))
        for rows in tables.values()
    ]


def table_of(case: Case) -> str:
    """Return what the precisions of one table share."""
    return replace(case, precision=BASELINE, input_dtype="fp32").case_id


def batches_said(table: Searches) -> list[str]:
    """Return what a table comes to: the largest batches, the best throughput, and what is in doubt."""
    said = [*_largest_said(table), *_best_said(table)]
    ended: dict[str, list[str]] = {}
    for row in table.rows:
        for line in _ended_said(row.found, table):
            ended.setdefault(line, []).append(row.case.precision)
    alone = len(table.rows) == 1
    said += [line if alone else f"{few(names, len(names))}: {line}" for line, names in ended.items()]
    return [*said, *_disturbed(table)]


def _largest_said(table: Searches) -> list[str]:
    fitting = [row for row in table.rows if row.found.largest is not None]
    if not fitting:
        return []
    most = max(fitting, key=lambda row: row.found.largest.batch if row.found.largest else 0)
    batch = most.found.largest.batch if most.found.largest else 0
    same = [row.case.precision for row in fitting if row.found.largest and row.found.largest.batch == batch]
    if len(same) > 1:
        who = "all precisions take" if len(same) == len(fitting) else f"{few(same, len(same))} take"
        return [f"{who} a batch of {format_whole(batch)}{_at_least(most.found)}"]
    times = most.largest_ratio
    beside = f", {format_ratio(times)} fp32's" if times is not None and most.case.precision != BASELINE else ""
    return [f"the largest batch is {most.case.precision}'s, {format_whole(batch)}{_at_least(most.found)}{beside}"]


def _at_least(found: Reached) -> str:
    return "" if found.over is not None else ", and larger ones may fit"


def _best_said(table: Searches) -> list[str]:
    timed = [row for row in table.rows if row.found.best is not None]
    if not timed:
        return []
    row = max(timed, key=lambda row: row.found.best.value if row.found.best else 0.0)
    best = row.found.best
    assert best is not None
    at = f"{format_count(best.value)} items/s{speed_interval(row.found)} on batches of {format_whole(best.batch)}"
    enough = row.found.enough
    from_ = f"; {format_percent(ENOUGH)} of it from {format_whole(enough)} on" if enough and enough < best.batch else ""
    said = f"the best throughput is {row.case.precision}'s, {at}{from_}"
    times = row.speedup
    if times is None or row.case.precision == BASELINE:
        return [said]
    interval = "" if times.low is None or times.high is None else f" (95%: {times.low:.2f} to {times.high:.2f})"
    return [f"{said}: {format_ratio(times.value)} fp32's best{interval}"]


def speed_interval(found: Reached) -> str:
    """Return " ±2.1%", half the 95% interval of the best throughput, "" where there is none."""
    best = found.best
    if best is None or best.low is None or best.high is None:
        return ""
    half = (best.high / best.low) ** 0.5 - 1
    return f" ±{format_percent(half)}" if half < 0.995 else " ±99%+"


def _ended_said(found: Reached, table: Searches) -> list[str]:
    """Return why a search ended elsewhere than between what fits and what does not."""
    said = []
    if found.alone is not None:
        said.append(f"a batch of 1 does not run: {found.alone.reason}")
    if found.largest is None and found.over is not None:
        said.append(too_large_said(found.over, table.limit))
    if found.failed is not None:
        said.append(
            f"a batch of {format_whole(found.failed.batch)} failed, which ended the search: {found.failed.reason}"
        )
    elif found.over is None and found.largest is not None and found.largest.batch >= table.asked.max_batch:
        said.append(f"no larger batch than {format_whole(table.asked.max_batch)} was tried (--max-batch)")
    elif next_batch(found.points, table.asked) is not None:
        said.append(f"the search broke off: {NOT_REACHED}")
    if found.wavering is not None:
        said.append(f"a batch of {format_whole(found.wavering)} fits at times only")
    return said


def _disturbed(table: Searches) -> list[str]:
    """Return what spoiled the times of the batches that are the fastest, of the round that was disturbed most."""
    points = [
        point
        for row in table.rows
        for point in row.found.points
        if row.found.best is not None and point.batch == row.found.best.batch and rate(point)
    ]
    worst = max(points, key=lambda point: _taken(point.fitness), default=None)
    return [f"throughput is in doubt: {line}" for line in unfit(worst.fitness)] if worst is not None else []


def _taken(seen: Fitness) -> float:
    """Return the share of the CPU that others had."""
    return (seen.other_share or 0.0) + (seen.steal_share or 0.0)
