"""Inputs stored in half: the saving, and whether anything is lost.

Either each op casts the input to half anyway, or an op would read it in fp32: the trace shows which. Whether the step's
numbers change is measured (`StoragePass.identical`).
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec

from ampbench.core.precisions import AUTOCAST
from ampbench.core.statement import Severity, Statement, state
from ampbench.core.units import UNDEFINED
from ampbench.records import Builds, Count, ErrorSize, Magnitude, Seconds, StepSeconds
from ampbench.records.case import Case
from ampbench.records.kinds import INPUT_STORAGE
from ampbench.records.measured import Fitness
from ampbench.records.wire import Task
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Study, Table, asks, compared_steps, info, step_seconds


class InputUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The use of a floating input: the first `operation` that takes it, in `module` ("": the network itself).

    `read_in_fp32` is the first op that reads it in fp32 ("": each op casts it to half, so that nothing is lost).
    """

    name: str
    operation: str = ""
    module: str = ""
    read_in_fp32: str = ""


class StoredInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A step of a case whose floating inputs are stored in `dtype` ("fp32", "bf16").

    `stored_bytes` are those of all inputs of a batch, `copy_samples` the seconds of copying them from host to device
    (empty: no copy). `samples[b]` are seconds per step of build `b`, in turns with the other dtype. Errors are against
    fp64 with the fp32 inputs; None: undefined. `error` is the first line of the step's error with such inputs.
    """

    dtype: str
    stored_bytes: Count
    copy_samples: list[StepSeconds] = []
    casts: Count | None = None
    cast_bytes: Count | None = None
    samples: Builds = []
    peak_bytes: Count | None = None
    output_rel_l2: ErrorSize | None = None
    loss_abs_error: Magnitude | None = None
    grad_rel_l2: ErrorSize | None = None
    error: str = ""


class StoragePass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A case with inputs in fp32 and with inputs stored in half.

    `identical`: outputs, loss and gradients are the same to the last bit (None: the step does not run with inputs in
    half); `repeatable`: those of fp32 inputs are, when the step is run twice. `exact`: half holds the inputs exactly.
    """

    case_id: str
    uses: list[InputUse] = []
    full: StoredInputs
    low: StoredInputs
    identical: bool | None
    repeatable: bool
    exact: bool
    fitness: Fitness = Fitness()
    notes: list[str] = []


class StorageAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To measure a case fed inputs stored in half for about `seconds`."""

    seconds: Annotated[Seconds, asks("Timing per case", seconds=True)] = 4.0


class Storage(StrEnum):
    """What storing inputs in half comes to."""

    RAISES = "storage-raises"
    SAME = "storage-same"
    LOST = "storage-lost"
    UNREPEATABLE = "storage-unrepeatable"
    EXACT = "storage-exact"


FREE, LOSSY, UNUSED = "nothing lost", "information lost", "not used"
"""The effect on an input: each op casts it to half anyway; an op would read it in fp32; no op reads it."""


def situation(use: InputUse) -> str:
    """Return the situation of an input: `FREE`, `LOSSY` or `UNUSED`."""
    if not use.operation:
        return UNUSED
    return LOSSY if use.read_in_fp32 else FREE


def _short_op(operation: str) -> str:
    return operation.removeprefix("aten.") or UNDEFINED


def conclusions(case: Case, record: StoragePass) -> Iterator[Statement]:
    """Yield whether anything is lost, by bits and by errors, then the change of a step's time."""
    low = record.low
    if low.error:
        yield state(Storage.RAISES, dtype=low.dtype, error=low.error)
        return
    values = "outputs, loss and gradients" if case.phase == "training" else "outputs"
    facts: dict[str, float | str | None] = {"dtype": low.dtype, "what": values}
    if record.identical:
        lossy = any(situation(use) == LOSSY for use in record.uses)
        facts |= {"held": (lossy and record.exact) or None, "commutes": (lossy and not record.exact) or None}
        yield info(Storage.SAME, **facts)
    else:
        for name in ("output_rel_l2", "loss_abs_error", "grad_rel_l2"):
            facts |= {name: getattr(low, name), f"{name}_fp32": getattr(record.full, name)}
        code = Storage.UNREPEATABLE if not record.repeatable else Storage.EXACT if record.exact else Storage.LOST
        yield state(code, "", Severity.PROBLEM if code is Storage.LOST else Severity.INFO, **facts)
    yield from compared_steps(record.full.samples, low.samples, record.fitness)


class Stored(NamedTuple):
    """A way of storing the inputs of a pass, and whether that kept the bits of the step with fp32 inputs."""

    inputs: StoredInputs
    identical: bool | None


STORED: Sequence[Column[Stored]] = (
    Column("dtype", lambda row: row.inputs.dtype, "inputs in"),
    Column("stored_bytes", lambda row: row.inputs.stored_bytes, "stored", "B", rare=True),
    Column("copy_seconds", lambda row: min(row.inputs.copy_samples, default=None), "copy", "s", rare=True),
    Column("casts", lambda row: row.inputs.casts, "casts", "whole", rare=True),
    Column("cast_bytes", lambda row: row.inputs.cast_bytes, "moved", "B", rare=True),
    Column("seconds", lambda row: step_seconds(row.inputs.samples), "step", "s", rare=True),
    Column("peak_memory_bytes", lambda row: row.inputs.peak_bytes, "peak", "B", rare=True),
    Column("output_rel_l2", lambda row: row.inputs.output_rel_l2, "output error", "error", rare=True),
    Column("loss_abs_error", lambda row: row.inputs.loss_abs_error, "absolute loss error", "error", rare=True),
    Column("grad_rel_l2", lambda row: row.inputs.grad_rel_l2, "gradient error", "error", rare=True),
    Column("identical", lambda row: row.identical),
    Column("reason", lambda row: row.inputs.error),
)
INPUTS: Sequence[Column[InputUse]] = (
    Column("input", lambda use: use.name, "input"),
    Column("operation", lambda use: use.operation, "first op", said=lambda use: _short_op(use.operation)),
    Column("module", lambda use: use.module, "module"),
    Column(
        "read_in_fp32", lambda use: use.read_in_fp32, "read in fp32 by",
        said=lambda use: _short_op(use.read_in_fp32),
    ),
    Column("situation", situation, "comes to"),
)  # fmt: skip


STUDY: Study[StorageAsked, StoragePass] = Study(
    kind=INPUT_STORAGE,
    help="""\
Feed each network inputs in fp32 and inputs stored in half: what that saves, and whether anything is lost.

Tells apart an input whose first op accepts half (a cast is saved, the results are the same to the last bit) from
one whose op autocast runs in fp32 or promotes (information is lost). Workloads of token ids are skipped.

\b
Examples:
  ampbench study input-storage model.py:make
  ampbench study input-storage mlp transformer_encoder --phase inference
  ampbench study input-storage mlp --precision bf16_autocast,fp16_autocast
""",
    doing="comparing",
    asked=StorageAsked,
    task=Task(INPUT_STORAGE, StorageAsked, StoragePass, "ampbench.studies.input_storage_measure:measure_storage"),
    selects=Selects(one_phase=False, among=AUTOCAST),
    title="Inputs stored in half",
    tables=(
        Table(
            "stored", STORED,
            lambda record: [Stored(record.full, record.repeatable), Stored(record.low, record.identical)],
            "Side by side",
            "errors against fp64 with the inputs as given in fp32, relative but for the loss; moved: the "
            "bytes that casts read and write",
        ),
        Table(
            "inputs", INPUTS, lambda record: record.uses, "What becomes of each input",
            "read in fp32 by: the first op without a cast",
        ),
    ),
    conclusions=conclusions,
)  # fmt: skip
