"""Passes of the study of input storage as frames: a row per dtype that inputs are stored in, a row per input."""

import pandas as pd

from ampbench.beside import step_seconds
from ampbench.records.studies import StoragePass
from ampbench.studied.input_storage.sentences import situation

_NUMBERS = (
    "stored_bytes", "copy_seconds", "casts", "cast_bytes", "seconds", "peak_memory_bytes",
    "output_rel_l2", "loss_abs_error", "grad_rel_l2",
)  # fmt: skip
COLUMNS = ["dtype", *_NUMBERS, "identical", "repeatable", "exact", "reason"]


def storage_frame(found: StoragePass) -> pd.DataFrame:
    """Return a row per dtype that the inputs are stored in.

    Columns: dtype; stored_bytes, copy_seconds (the fastest), casts, cast_bytes, seconds (of a step, the median over
    builds), peak_memory_bytes, output_rel_l2, loss_abs_error, grad_rel_l2: NaN where undefined; identical (to the bits
    of fp32 inputs; None: not known), repeatable, exact, reason (why it has no numbers).
    """
    rows = [
        [stored.dtype, stored.stored_bytes, min(stored.copy_samples, default=None), stored.casts,
         stored.cast_bytes, step_seconds(stored.samples), stored.peak_bytes, stored.output_rel_l2,
         stored.loss_abs_error, stored.grad_rel_l2, same, found.repeatable, exact, stored.error]
        for stored, same, exact in ((found.full, found.repeatable, True), (found.low, found.identical, found.exact))
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype(dict.fromkeys(_NUMBERS, float) | {"identical": object})


def uses_frame(found: StoragePass) -> pd.DataFrame:
    """Return a row per floating input: input, operation, module, use, read_in_fp32, situation."""
    rows = [[use.name, use.operation, use.module, use.use, use.read_in_fp32, situation(use)] for use in found.uses]
    return pd.DataFrame(rows, columns=["input", "operation", "module", "use", "read_in_fp32", "situation"])
