"""Studies of loss scaling as frames: a row for each training."""

from collections.abc import Sequence

import pandas as pd

from ampbench.records.studies import ScalerRun
from ampbench.studied.scaler.outcomes import outcomes

COUNTS = ("growth_interval", "steps", "done", "skipped_steps", "skipped_first", "correct", "decisions")
"""The columns of whole numbers."""

COLUMNS = (
    "setting", "precision", "enabled", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "steps",
    "done", "skipped_steps", "skipped_first", "last_scale", "flushed_share", "grad_rel_l2", "loss", "lag", "excess",
    "held_out_loss", "correct", "decisions", "state", "reason",
)  # fmt: skip


def scaling_frame(runs: Sequence[ScalerRun]) -> pd.DataFrame:
    """Return a row per training of a case, in their order.

    Columns: setting, precision, enabled, init_scale, growth_factor, backoff_factor, growth_interval, steps, done (steps
    that were taken or skipped), skipped_steps, skipped_first (before the first that was taken), last_scale,
    flushed_share, grad_rel_l2, loss (mean of the last quarter), lag, excess, held_out_loss, correct, decisions (of the
    score), state, reason (the error that a step raised): see `Outcome`. NaN where undefined; the scaler's own
    parameters are, too, where it has none.
    """
    rows = []
    for one in outcomes(runs):
        run, setting, score = one.run, one.run.setting, one.run.score
        own = (setting.init_scale, setting.growth_factor, setting.backoff_factor, setting.growth_interval)
        rows.append(
            [setting.name, run.precision, setting.enabled, *(own if setting.enabled else (None,) * len(own)), run.steps,
             len(run.losses), len(run.skipped) if setting.enabled else None,
             one.skipped_first if setting.enabled else None, run.scales[-1] if run.scales else None, one.flushed,
             one.grad_rel_l2, one.loss, one.lag, one.excess,
             *((score.loss, score.correct, score.decisions) if score else (None,) * 3), one.state, run.error]
        )  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    numbers = [name for name in COLUMNS if name not in ("setting", "precision", "enabled", "state", "reason")]
    return frame.astype(dict.fromkeys(numbers, float))
