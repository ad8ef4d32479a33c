"""Scopes of autocast as frames: a row for each scope, a row for each step and scope."""

from typing import Any

import pandas as pd

from ampbench.records.studies import ScopePass
from ampbench.studied.scope.sentences import comparisons

_PEAK = "peak_memory_bytes"
_RUN_FIELDS = ("output_rel_l2", "loss_abs_error", "grad_rel_l2")
_OWN_FIELDS = (
    "first_casts", "later_casts", "first_cast_bytes", "later_cast_bytes", "stale_weights", "seconds", "kept_bytes",
    "growth_bytes", "loss_rel_error",
)  # fmt: skip
_TYPED = ("output", "loss", "gradients")
_ENDS = {"": "value", "_low": "low", "_high": "high"}
_NUMBERS = [
    *_OWN_FIELDS,
    _PEAK,
    *(f"ratio{end}" for end in _ENDS),
    *_RUN_FIELDS,
    "update_rel_l2",
    "first_loss",
    "last_loss",
]
COLUMNS = ["scope", "reason", *_NUMBERS, *(f"{what}_dtype" for what in _TYPED)]


def scope_frame(found: ScopePass) -> pd.DataFrame:
    """Return a row per scope: the numbers of its `Comparison` and of its run, NaN where undefined.

    `ratio`, `ratio_low` and `ratio_high` are times against the recommended scope, `first_loss` and `last_loss` those of
    the first and the last step.
    """
    rows: list[dict[str, Any]] = []
    for one in comparisons(found):
        run, ratio = one.run, one.ratio
        row: dict[str, Any] = {"scope": run.scope, "reason": run.error or None}
        row |= {name: getattr(one, name) for name in _OWN_FIELDS} | {_PEAK: one.peak_bytes}
        row |= {f"ratio{end}": ratio and getattr(ratio, name) for end, name in _ENDS.items()}
        row |= {f"{what}_dtype": run.dtypes.get(what) for what in _TYPED}
        row |= {name: getattr(run, name) for name in _RUN_FIELDS} | {"update_rel_l2": run.update_error}
        row |= {
            "first_loss": run.losses[0] if run.losses else None,
            "last_loss": run.losses[-1] if run.losses else None,
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object).astype(dict.fromkeys(_NUMBERS, float))


def loss_frame(found: ScopePass) -> pd.DataFrame:
    """Return a row per step and scope: step (from 1), scope, loss and that of the fp64 step, NaN where undefined."""
    rows = [
        [step, run.scope, loss, found.reference_losses[step - 1] if found.reference_losses else None]
        for run in found.scopes
        for step, loss in enumerate(run.losses, start=1)
    ]
    frame = pd.DataFrame(rows, columns=["step", "scope", "loss", "reference_loss"], dtype=object)
    return frame.astype({"loss": float, "reference_loss": float})
