"""Points of searches that ended, made by hand, and runs of them."""

from pathlib import Path
from typing import Any

from ampbench.instruments.batch.records import TOO_LARGE, BatchAsked, BatchPoint
from ampbench.records.case import Case
from ampbench.store import StoredRun, read_run
from tests.stored_runs import COMPLETE, make_case, write_run

MIB = 2**20
ASKED = BatchAsked(max_batch=4096, rounds=3, seconds=0.1, limit_bytes=64 * MIB)
FP32, BF16 = (make_case(name, phase="training") for name in ("fp32", "bf16_autocast"))


def tried(case: Case, batch: int, per_second: float, number: int = 0, **given: Any) -> BatchPoint:
    fields = {"peak_bytes": batch * MIB, "items_per_step": float(batch), "samples": [batch / per_second]}
    return BatchPoint(case_id=case.case_id, batch=batch, round=number, **{**fields, **given})


def too_large(case: Case, batch: int) -> BatchPoint:
    return BatchPoint(case_id=case.case_id, batch=batch, outcome=TOO_LARGE, reason="takes 65.0 MiB")


def search(case: Case, largest: int, speed: float) -> list[BatchPoint]:
    """Return a search that ended, whose largest batch is the fastest in each of three rounds."""
    first = [tried(case, largest // 2, 0.97 * speed), tried(case, largest, speed), too_large(case, largest + 1)]
    return [*first, *(tried(case, largest, speed * factor, number) for number, factor in ((1, 1.01), (2, 0.99)))]


def stored(path: Path, *points: BatchPoint, cases: tuple[Case, ...] = (FP32, BF16), **header: Any) -> StoredRun:
    return read_run(write_run(path, list(cases), *points, COMPLETE, **({"explains": "batch", "asked": ASKED} | header)))
