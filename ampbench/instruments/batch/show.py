"""The batches that fit and the fastest of them: the document of a run, a table for each network, phase and device.

Numbers without a value are "–".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ampbench.base.units import UNDEFINED, format_bytes, format_count, format_percent, format_ratio, format_whole
from ampbench.instruments.batch.findings import Searched, Searches, batches_said, searches_of, speed_interval
from ampbench.instruments.batch.records import BatchPoint
from ampbench.instruments.batch.search import Reached, rate
from ampbench.instruments.cases import missing_said, nested_data
from ampbench.present.document import Block, Column, Document, Section, as_sentence, picked, records, table
from ampbench.records.case import Case
from ampbench.store import StoredRun


def _largest(row: Searched) -> int | None:
    return row.found.largest.batch if row.found.largest else None


def _over(row: Searched) -> int | None:
    return row.found.over.batch if row.found.over else None


def _peak(row: Searched) -> int | None:
    return row.found.largest.peak_bytes if row.found.largest else None


def _best(name: str) -> Any:
    return lambda row: getattr(row.found.best, name) if row.found.best else None


def _times(name: str) -> Any:
    return lambda row: getattr(row.speedup, name) if row.speedup else None


def _throughput(row: Searched) -> str:
    best = row.found.best
    return f"{format_count(best.value)}{speed_interval(row.found)}" if best else UNDEFINED


def _speedup(row: Searched) -> str:
    times = row.speedup
    if times is None:
        return UNDEFINED
    between = "" if times.low is None or times.high is None else f" {times.low:.2f}–{times.high:.2f}"
    return f"{format_ratio(times.value)}{'' if row.found is row.baseline else between}"


def _largest_said(row: Searched) -> str:
    """Return the largest batch, and the smallest that does not fit behind it: "384 <402"; "≥16,384": none is known."""
    if row.found.largest is None:
        return "none" if row.found.over else UNDEFINED
    over = f" <{format_whole(row.found.over.batch)}" if row.found.over else ""
    return f"{'' if over else '≥'}{format_whole(row.found.largest.batch)}{over}"


def _seconds_of(point: BatchPoint) -> float | None:
    speed = rate(point)
    return point.items_per_step / speed if speed and point.items_per_step else None


COLUMNS: Sequence[Column[Searched]] = (
    Column("precision", lambda row: row.case.precision, "precision"),
    Column("largest_batch", _largest, "largest", "whole", _largest_said),
    Column("too_large_batch", _over),
    Column("peak_memory_bytes", _peak, "takes", "B"),
    Column("largest_vs_fp32", lambda row: row.largest_ratio, "of fp32's", "ratio"),
    Column("best_batch", _best("batch"), "fastest", "whole"),
    Column("items_per_second", _best("value"), "items/s", "count", _throughput),
    Column("items_per_second_low", _best("low")),
    Column("items_per_second_high", _best("high")),
    Column("speedup_vs_fp32", _times("value"), "speed", "ratio", _speedup),
    Column("speedup_low", _times("low")),
    Column("speedup_high", _times("high")),
    Column("enough_batch", lambda row: row.found.enough, "95% from", "whole"),
    Column("points", lambda row: len(row.found.points)),
    Column("reason", lambda row: _reason(row.found)),
)
"""Of a precision: the largest batch and what it takes, the batch of best throughput with that, both beside fp32's."""

POINTS: Sequence[Column[BatchPoint]] = (
    Column("batch", lambda one: one.batch, "batch", "whole"),
    Column("round", lambda one: one.round, "round", "whole"),
    Column("outcome", lambda one: one.outcome, "outcome"),
    Column("peak_memory_bytes", lambda one: one.peak_bytes, "takes", "B"),
    Column("resident_bytes", lambda one: one.resident_bytes, "resident", "B", rare=True),
    Column("items_per_second", rate, "items/s", "count"),
    Column("seconds_per_step", _seconds_of, "step", "s"),
    Column("reason", lambda one: one.reason or None, "reason", said=lambda one: one.reason, rare=True),
)  # fmt: skip
"""Of a batch: what it takes, and how fast it is."""


def _reason(found: Reached) -> str | None:
    """Return why a search has no largest batch, or ended before it knew."""
    point = found.failed or (found.over if found.largest is None else None)
    return f"a batch of {point.batch}: {point.reason}" if point else None


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what a run found of the batches of the cases `case_ids`, a flat row for each case."""
    tables = searches_of(stored, case_ids)
    found = {row.case.case_id: (one, row) for one in tables for row in one.rows}

    def data(_: Case, seen: tuple[Searches, Searched]) -> Mapping[str, Any]:
        one, row = seen
        return {
            "limit_bytes": one.limit,
            "sentences": batches_said(one),
            "reached": records(COLUMNS, [row])[0],
            "tables": {"points": records(POINTS, row.found.points)},
            "points": [asdict(point) for point in row.found.points],
        }

    return Document(
        sections=lambda: [batches_section(one, everything=everything) for one in tables],
        data=lambda: nested_data(stored, case_ids, found, data),
        columns=["case_id", *(column.key for column in COLUMNS)],
        rows=lambda: [
            {"case_id": row.case.case_id, **records(COLUMNS, [row])[0]} for one in tables for row in one.rows
        ],
        missing=missing_said(stored, case_ids, found),
    )


def batches_section(one: Searches, *, everything: bool = False) -> Section:
    """Return what is known of the batches of a network; `everything`: what each batch took, too."""
    case = one.case
    network = case.network.replace(f"/b{case.batch_size}", "", 1)
    recipe = [f"recipe-{case.recipe}"] if case.recipe else []
    parts = ["/".join([network, *recipe]), case.phase, case.device, case.path, f"within {format_bytes(one.limit)}"]
    said = [Block(as_sentence(line)) for line in batches_said(one)]
    return Section(" · ".join(parts), [*said, _reached(one), *(_points(row) for row in one.rows if everything)])


def _reached(one: Searches) -> Block:
    keys = ("precision", "largest_batch", "peak_memory_bytes", "largest_vs_fp32", "best_batch", "items_per_second",
            "speedup_vs_fp32", "enough_batch")  # fmt: skip
    whose = "that a step allocates" if one.case.device == "cpu" else "that the allocator reserves"
    note = (
        f"largest: what fits, < what does not, to {format_percent(one.asked.resolution)}; takes: memory {whose} "
        "then; fastest: the batch of best throughput; items/s: median over rounds, ± its 95% interval; speed: times "
        "fp32's best, and its interval; 95% from: the smallest batch that is nearly as fast"
    )
    return table("Batches", picked(COLUMNS, *keys), one.rows, note)


def _points(row: Searched) -> Block:
    points = sorted(row.found.points, key=lambda point: (point.batch, point.round))
    return table(
        f"Batches tried in {row.case.precision}",
        POINTS,
        points,
        "round 0 is the search; resident: what the process grew by, which depends on what the heap keeps",
    )
