"""What a study of ceilings stores: what a device attains, and what a worker is asked for that."""

from dataclasses import dataclass, field

from ampbench.records.bounds import Count, Seconds, StepSeconds
from ampbench.records.kinds import Before, unknown
from ampbench.records.measured import MULTIPLYING, Fitness

COPY, READ = MOVING = "copy", "read"
OPERATIONS = (*MULTIPLYING, *MOVING)
"""What ceilings are measured with: those that multiply in FLOP/s, the others in bytes per second, read and written."""

FP32, TF32 = "fp32", "tf32"
"""Dtypes of ceilings that share a torch dtype: torch.float32, without and with tf32 allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained:
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds.

    `library` multiplied ("MKL", "oneDNN"), where that is known; "" elsewhere.
    """

    size: str
    work: Count
    samples: list[StepSeconds]
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What a device attains with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

    `run` is the id of the run that measured it, where another has taken it over, else "". `threads` are torch's.
    `error` says why there is nothing attained.
    """

    device: str
    operation: str
    dtype: str
    threads: Count
    attained: list[Attained] = field(default_factory=list)
    run: str = ""
    error: str = ""
    fitness: Fitness = field(default_factory=Fitness)
    notes: list[str] = field(default_factory=list)


def wrong_ceiling(found: Ceiling, _: Before) -> str:
    """Return what of a ceiling cannot be: an operation that there is not."""
    where = f"a ceiling of {found.operation} on {found.device}"
    return unknown("an operation", found.operation, OPERATIONS, where)


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingAsked:
    """What a device attains with an `operation` in a `dtype`, as in `Ceiling`, measured for about `seconds`."""

    operation: str
    dtype: str
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingsAsked:
    """To measure each of the `operations` in each of the `dtypes` (none: all that a device has) for about `seconds`."""

    seconds: Seconds = 2.0
    operations: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
