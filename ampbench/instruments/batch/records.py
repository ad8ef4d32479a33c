"""What a study of batches stores: steps on batches of a size, and what a run and a worker are asked for."""

from dataclasses import dataclass, field
from typing import Annotated

from ampbench.records.kinds import Before, Between, unknown
from ampbench.records.measured import MEMORY_SOURCES, Fitness

FITS, TOO_LARGE, FAILED = OUTCOMES = ("fits", "does not fit", "failed")
"""What becomes of a batch: its steps run within the limit, need more memory, or end by something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPoint:
    """Steps of a case on batches of the size `batch`, in a process of their own; `round` 0 belongs to the search.

    `outcome` is one of `OUTCOMES`, and `reason` why it does not fit or failed. `peak_bytes` is the most memory taken
    (None: unknown, as the process was ended), and `source` one of `MEMORY_SOURCES`: on a CPU the peak that torch's
    allocation record has, as in a `MemoryPass`, on an accelerator what the caching allocator reserved. By
    `resident_bytes` the process' resident set grew on a CPU, at its largest, which depends on what the heap keeps.
    `samples` are seconds per step, `cpu_samples` the CPU seconds of the calling thread (None: not known, or on an
    accelerator), `items_per_step` is what throughput counts.
    """

    case_id: str
    batch: int
    round: int = 0
    outcome: str = FITS
    reason: str = ""
    source: str = "profiler"
    peak_bytes: int | None = None
    resident_bytes: Annotated[int | None, Between(0, 2**62)] = None
    items_per_step: float | None = None
    samples: list[float] = field(default_factory=list)
    cpu_samples: list[float] | None = None
    fitness: Fitness = field(default_factory=Fitness)


def wrong_point(found: BatchPoint, _: Before) -> str:
    """Return what of a batch cannot be: an outcome or a source that there is not, or CPU times of other samples."""
    where = f"a point of {found.case_id}"
    if found.cpu_samples is not None and len(found.cpu_samples) != len(found.samples):
        return f"CPU times that are not those of the samples, in {where}"
    return unknown("an outcome", found.outcome, OUTCOMES, where) or unknown(
        "a source", found.source, MEMORY_SOURCES, where
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PointAsked:
    """To run steps on batches of the size `batch` and time them for about `seconds`."""

    batch: int
    round: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAsked:
    """To search for the largest batch up to `max_batch` that takes no more than `limit_bytes`, Python and torch aside.

    Without a limit that is what the machine has. The search ends where what fits and what does not lie within the share
    `resolution` of each other. Each batch is timed for about `seconds`, the best in `rounds` processes.
    """

    max_batch: int
    resolution: Annotated[float, Between(0, 1)] = 0.05
    rounds: int
    seconds: float
    limit_bytes: Annotated[int | None, Between(1, 2**62)] = None
