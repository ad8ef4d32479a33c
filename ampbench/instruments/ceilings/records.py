"""What a study of ceilings stores: what a device attains, and what a worker is asked for that."""

from typing import Annotated

import msgspec

from ampbench.records.bounds import Count, Seconds, StepSeconds, one_of
from ampbench.records.measured import MULTIPLYING, Fitness

COPY, READ = MOVING = "copy", "read"
OPERATIONS = (*MULTIPLYING, *MOVING)
"""What ceilings are measured with: those that multiply in FLOP/s, the others in bytes per second, read and written."""

FP32, TF32 = "fp32", "tf32"
"""Dtypes of ceilings that share a torch dtype: torch.float32, without and with tf32 allowed."""


class Attained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What one `size` ("1024x1024x1024") attained: `work` FLOPs or bytes in each of `samples` seconds.

    `library` multiplied ("MKL", "oneDNN"), where that is known; "" elsewhere.
    """

    size: str
    work: Count
    samples: list[StepSeconds]
    library: str = ""


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with one `operation`, one of `OPERATIONS`, in one dtype ("bf16"; "tf32"), over sizes.

    `run` is the id of the run that measured it, where another has taken it over, else "". `threads` are torch's.
    `error` says why there is nothing attained.
    """

    device: str
    operation: Annotated[str, one_of(*OPERATIONS)]
    dtype: str
    threads: Count
    attained: list[Attained] = []
    run: str = ""
    error: str = ""
    fitness: Fitness = Fitness()
    notes: list[str] = []


class CeilingAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What a device attains with an `operation` in a `dtype`, as in `Ceiling`, measured for about `seconds`."""

    operation: str
    dtype: str
    seconds: Seconds


class CeilingsAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To measure each of the `operations` in each of the `dtypes` (none: all that a device has) for about `seconds`."""

    seconds: Seconds = 2.0
    operations: list[str] = []
    dtypes: list[str] = []
