"""What a study of stored inputs stores: a step fed in fp32 and in half, and what a worker is asked for that."""

from typing import Annotated

import msgspec

from ampbench.records.bounds import Count, ErrorSize, Magnitude, Seconds, StepSeconds, one_of
from ampbench.records.measured import Fitness

ACCEPTED, TO_FP32, PROMOTED, TO_LOW, UNTOUCHED = USES = (
    "accepted",
    "cast to fp32",
    "promoted",
    "cast to low",
    "untouched",
)
"""What the first op that takes an input stored in half does to it. `TO_LOW`: it casts it all the same, from another
half; `UNTOUCHED`: no op of the step takes it."""


class InputUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What becomes of a floating input stored in half: the first `operation` that takes it, and what that does.

    `use` is one of `USES`, `module` the path of the module that the op belongs to ("": the network itself).
    `read_in_fp32` is the first op that reads the input in fp32 where it is stored in fp32 ("": each op casts it to
    half, so that it loses nothing by being stored in half).
    """

    name: str
    operation: str = ""
    module: str = ""
    use: Annotated[str, one_of(*USES)]
    read_in_fp32: str = ""


class StoredInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A step of a case whose floating inputs are stored in `dtype` ("fp32", "bf16").

    `stored_bytes` are those of all inputs of a batch, `copy_samples` the seconds that copying them from host to device
    takes (empty: they are one). `samples[b]` are seconds per step of build `b`, in turns with the other dtype. Errors
    are against fp64 with the inputs as they were given in fp32; None: undefined. `error` is the first line of
    what the step raised with such inputs; then nothing but the bytes is known.
    """

    dtype: str
    stored_bytes: Count
    copy_samples: list[StepSeconds] = []
    casts: Count | None = None
    cast_bytes: Count | None = None
    samples: list[list[StepSeconds]] = []
    peak_bytes: Count | None = None
    output_rel_l2: ErrorSize | None = None
    loss_abs_error: Magnitude | None = None
    grad_rel_l2: ErrorSize | None = None
    error: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` where a build has no samples."""
        if not all(self.samples):
            raise ValueError("a build without samples")


class StoragePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case fed inputs in fp32 and inputs stored in half.

    `identical`: outputs, loss and gradients are the same to the last bit (None: the step does not run with inputs in
    half); `repeatable`: those of fp32 inputs are, when the step is run twice. `exact`: the inputs lose nothing by being
    stored in half.
    """

    case_id: str
    uses: list[InputUse] = []
    full: StoredInputs
    low: StoredInputs
    identical: bool | None
    repeatable: bool
    exact: bool
    memory_source: str | None = None
    fitness: Fitness = Fitness()
    notes: list[str] = []


class StorageAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To measure a case fed inputs stored in half for about `seconds`."""

    seconds: Seconds
