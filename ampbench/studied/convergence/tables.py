"""Trainings as a frame, and verdicts on them as plain rows."""

from typing import Any

import pandas as pd

from ampbench.precisions import BASELINE
from ampbench.store import StoredRun
from ampbench.studied.convergence.learning import Learned, learned
from ampbench.studied.convergence.metric import final_drift, final_score, trouble

COUNTS = ("seed", "steps", "correct", "decisions", "ended_at", "skipped_steps")
"""The columns of `training_frame` that are whole numbers, where there is one."""

_NUMBERS = (
    "metric_value",
    "fp32_value",
    "loss",
    "from_fp32",
    "from_fp64",
    "way_rel_l2",
    "way_kept",
    "scaler_scale",
    "seconds",
)


def training_frame(stored: StoredRun) -> pd.DataFrame:
    """Return a row per training: case, seed and arm, how it ended, and fp32's metric of the same seed.

    Columns: case_id, workload, device, precision ("control" and "fp64" for the arms of fp32), arm, seed, steps, metric
    ("accuracy", "loss"), held_out, metric_value, fp32_value, loss (of the last score), correct, decisions, from_fp32,
    from_fp64 (of the weights, at the end), way_rel_l2, way_kept (of the way, at the end), schedule, ended_at (from 0,
    as in the records), reason (why there is no value; its steps count from 1), scaler_scale, skipped_steps, seconds.
    None or NaN where undefined.
    """
    rows: list[list[Any]] = []
    for one in learned(stored):
        own = {each.seed: each for row in one.rows if row.name == BASELINE for each in row.trainings}
        for row in one.rows:
            for each in row.trainings:
                score, drift, fp32 = final_score(each), final_drift(each), own.get(each.seed)
                rows.append(
                    [row.case_id, one.workload, one.device, row.name, row.arm, each.seed, each.steps, one.metric.name,
                     each.held_out, one.metric.final(each), one.metric.final(fp32) if fp32 else None,
                     score.loss if score else None, score.correct if score else None,
                     score.decisions if score else None, drift.from_fp32 if drift else None,
                     drift.from_fp64 if drift else None, drift.way_rel_l2 if drift else None,
                     drift.way_kept if drift else None, each.schedule, each.ended_at, trouble(each, one.metric),
                     each.scaler_scale, each.skipped_steps, each.seconds]
                )  # fmt: skip
    columns = ["case_id", "workload", "device", "precision", "arm", "seed", "steps", "metric", "held_out"]
    columns += ["metric_value", "fp32_value", "loss", "correct", "decisions", "from_fp32", "from_fp64", "way_rel_l2"]
    columns += ["way_kept", "schedule", "ended_at", "reason", "scaler_scale", "skipped_steps", "seconds"]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)
    return frame.astype(dict.fromkeys(_NUMBERS, float))


def verdict_rows(one: Learned) -> list[dict[str, Any]]:
    """Return what was concluded of each precision, and of the arms of fp32, as plain values."""
    return [
        {
            "precision": row.name,
            "case_id": row.case_id,
            "seeds": len(row.trainings),
            "mean": row.mean,
            "sd": row.sd,
            "difference": row.difference,
            "low": row.low,
            "high": row.high,
            "verdict": row.verdict.value if row.verdict is not None else None,
            "reason": row.reason or None,
            "seeds_needed": row.seeds_needed,
            "weights_from_fp32": row.from_fp32,
            "weights_from_fp64": row.from_fp64,
            "skipped_steps": row.skipped_steps,
            "seconds": row.seconds,
            "training_loss": row.loss,
            "training_loss_ratio": row.loss_ratio,
            "training_loss_low": row.loss_low,
            "training_loss_high": row.loss_high,
            "training_loss_verdict": row.loss_verdict.value if row.loss_verdict is not None else None,
            "training_loss_reason": row.loss_reason or None,
            "trains_as_fp32": row.trains,
            "way_rel_l2": row.way.error if row.way is not None else None,
            "way_kept": row.way.kept if row.way is not None else None,
            "way_slope": row.way.slope if row.way is not None else None,
        }
        for row in one.rows
    ]
