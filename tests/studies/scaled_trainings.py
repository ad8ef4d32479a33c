"""Trainings with settings of GradScaler, made up: losses fall from 1 to what is asked for, some gradients flush."""

from typing import Any

from ampbench.records.case import Case
from ampbench.records.ranges import GRADIENT, FirstNonfinite, Magnitudes
from ampbench.records.run import ScalerSetting
from ampbench.studies.scaler import GradientLook, ScalerRun
from tests.stored_runs import make_case

CASE = make_case("fp16_autocast", workload="net", parameters={}, phase="training", batch_size=None)
STEPS = 40
OVERFLOW = FirstNonfinite(operation="aten.mm", module="head", phase="forward", step=0, inputs_largest=300.0)
VALUES = Magnitudes(
    module="", kind="", what=GRADIENT, elements=100, zeros=10, largest=1.5, lowest=-30, counts=[*[2] * 15, *[4] * 15]
)  # fmt: skip


def falling(end: float) -> list[float | None]:
    """Return losses that fall from 1 to `end` in the first half, and stay there."""
    return [1.0 + (end - 1.0) * min(step / (STEPS / 2), 1.0) for step in range(STEPS)]


def run(name: str, end: float = 0.2, flushed: int = 0, **changes: Any) -> ScalerRun:
    """Return a training of `CASE` whose loss ends at `end`, with `flushed` of 100 gradients at zero."""
    enabled = name not in ("fp32", "no scaling")
    look = GradientLook(step=0, scale=1.0, elements=120, nonzero=100, flushed=flushed, nonfinite=0, rel_l2=1e-3)
    fields: dict[str, Any] = {
        "case_id": CASE.case_id,
        "setting": ScalerSetting(name=name, enabled=enabled),
        "precision": "fp32" if name == "fp32" else "fp16_autocast",
        "steps": STEPS,
        "losses": falling(end),
        "scales": [65536.0] * STEPS if enabled else [],
        "looks": [] if name == "fp32" else [look],
        "fp32_gradients": VALUES,
        "gradients": None if name == "fp32" else VALUES,
        "weights_digest": "aa",
    }
    return ScalerRun(**fields | changes)


def collapsed(name: str, loss: float | None) -> ScalerRun:
    """Return a training whose scale fell until it was given up; `loss` is that of each step."""
    scales = [2.0 ** (16 - step) for step in range(25)]
    return run(name, losses=[loss] * 25, scales=scales, skipped=list(range(25)), first_nonfinite=OVERFLOW, looks=[])


def runs(*others: ScalerRun) -> list[ScalerRun]:
    return [run("fp32"), *others]


def case(**changes: Any) -> Case:
    return make_case("fp16_autocast", workload="net", parameters={}, phase="training", batch_size=None, **changes)
