"""Runs of studies, made up: a field that a test does not care about has a value."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampbench.records.case import Case, DeviceDescription, Environment
from ampbench.records.kinds import CEILINGS, INPUT_STORAGE, SCOPE, TRAINING
from ampbench.records.measured import CONV, MATMUL, Score
from ampbench.records.run import Entry
from ampbench.store import StoredRun, gathered
from ampbench.studies.ceilings import COPY, Attained, Ceiling
from ampbench.studies.input_storage import InputUse, StoragePass, StoredInputs
from ampbench.studies.scope import SCOPES, WHOLE_LOOP, ScopePass, ScopeRun
from ampbench.studies.training import CONTROL, REFERENCE, SETTINGS, GradientLook, Training
from tests.stored_runs import make_case, make_header

FP32, BF16, FP16, FP16_PURE = (
    make_case(name, workload="digits", phase="training")
    for name in ("fp32", "bf16_autocast", "fp16_autocast", "fp16_pure")
)
STEPS = 300


def training(case: Case = FP32, seed: int = 0, arm: str = "", end: float = 0.2, correct: int = 330, **changes: Any):
    """Return a training of `STEPS` steps, its loss falling from 2.3 to about `end`, `correct` of 360 right at last."""
    losses = [
        end + (2.3 - end) * math.exp(-step / 60) * (1 + 0.05 * math.sin(7 * step + seed)) for step in range(STEPS)
    ]
    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "seed": seed,
        "arm": arm,
        "steps": STEPS,
        "losses": losses,
        "scores": [
            Score(step=0, loss=2.3, correct=36, decisions=360),
            Score(step=STEPS, loss=end, correct=correct + seed, decisions=360),
        ],
        "fits": [Score(step=0, loss=2.3), Score(step=STEPS, loss=end)],
        "weights_digest": f"w{seed}",
        "inputs_digest": f"i{seed}",
    }
    return Training(**fields | changes)


def trained(seeds: int = 3) -> list[Training]:
    """Return trainings in which bf16 does as fp32 does and pure fp16 explodes."""
    found = []
    for seed in range(seeds):
        found += [training(seed=seed), training(seed=seed, arm=CONTROL), training(seed=seed, arm=REFERENCE)]
        found += [training(BF16, seed, end=0.21)]
        found += [training(FP16_PURE, seed, ended_at=40 + seed, losses=[2.3 - step / 100 for step in range(40)],
                           scores=[Score(step=0, loss=2.3, correct=36, decisions=360)])]  # fmt: skip
    return found


def scaled(setting: str, **changes: Any) -> list[Training]:
    """Return the trainings of a setting of GradScaler, one a seed, without held-out data."""
    return [training(FP16, seed, **{"arm": setting, "scores": []} | changes) for seed in range(3)]


def scalings() -> list[Training]:
    """Return trainings of a network whose gradients flush without a scale, and whose scale comes down at first."""
    look = GradientLook(step=0, nonzero=2000, flushed=900, rel_l2=0.7)
    fine = GradientLook(step=0, nonzero=2000, flushed=2, rel_l2=1e-3)
    unscaled, default, _, high, _ = SETTINGS
    arms = [training(seed=seed, arm=arm, scores=[]) for arm in ("", CONTROL, REFERENCE) for seed in range(3)]
    return [
        *arms,
        *scaled(unscaled, end=1.9, looks=[look]),
        *scaled(default, looks=[fine], scales=[(0, 65536.0)]),
        *scaled(high, looks=[fine], scales=[(step, 2.0 ** (24 - step)) for step in range(7)], nonfinite={"fc": 6}),
    ]


def scoped(case: Case = BF16, steps: int = 8, **changes: Any) -> ScopePass:
    """Return a pass in which the whole loop reads stale weights and keeps their copies."""
    runs = []
    for place, scope in enumerate(SCOPES):
        stale = scope == WHOLE_LOOP
        runs.append(
            ScopeRun(
                scope=scope,
                casts=[20 + place] * steps,
                cast_bytes=[1 << 20] * steps,
                stale_weights=[0, *([4 if stale else 0] * (steps - 1))],
                samples=[[1e-3 * (1 + place / 20 + build / 1000)] * 3 for build in range(8)],
                peak_bytes=[5 << 20] * steps,
                alive_bytes=[(1 << 18) * (step + 1) if stale else 0 for step in range(steps)],
                dtypes={"output": "bf16", "loss": "fp32" if place else "bf16", "gradients": "fp32"},
                output_rel_l2=2e-3,
                loss_rel_error=5e-4 * (1 if place else 9),
                grad_rel_l2=3e-3,
                update_rel_l2=0.01,
            )
        )
    fields: dict[str, Any] = {"case_id": case.case_id, "steps": steps, "scopes": runs}
    return ScopePass(**fields | changes)


def stored(case: Case = BF16, lossy: bool = False, **changes: Any) -> StoragePass:
    """Return a pass whose first op takes inputs in half as they are or, `lossy`, casts them back to fp32."""
    use = InputUse(
        name="input 0",
        operation="aten.native_layer_norm" if lossy else "aten.addmm",
        module="first",
        read_in_fp32="aten.native_layer_norm" if lossy else "",
    )

    def inputs(dtype: str, size: int, casts: int, error: float) -> StoredInputs:
        return StoredInputs(dtype=dtype, stored_bytes=size, casts=casts, cast_bytes=casts * size, output_rel_l2=error,
                            samples=[[1e-3 + build * 1e-6] * 3 for build in range(8)])  # fmt: skip

    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "uses": [use],
        "full": inputs("fp32", 1 << 20, 9, 2e-3),
        "low": inputs("bf16", 1 << 19, 10 if lossy else 8, 4e-3 if lossy else 2e-3),
        "identical": not lossy,
        "repeatable": True,
        "exact": False,
    }
    return StoragePass(**fields | changes)


def ceiling(operation: str, dtype: str, *rates: float, device: str = "cpu", **changes: Any) -> Ceiling:
    """Return a ceiling that attained `rates` in sizes that grow."""
    attained = [
        Attained(size=f"{256 << place}", work=10 ** (8 + place), samples=[10 ** (8 + place) / rate] * 3)
        for place, rate in enumerate(rates)
    ]
    return Ceiling(
        **{"device": device, "operation": operation, "dtype": dtype, "threads": 2, "attained": attained} | changes
    )


CEILING_RUN = (
    ceiling(MATMUL, "fp32", 4e10, 8e10, 1.1e11),
    ceiling(MATMUL, "bf16", 1e11, 4e11, 8e11),
    ceiling(MATMUL, "fp16", 2e9, 3e9),
    ceiling(MATMUL, "fp64", error="not asked for"),
    ceiling(CONV, "fp32", 9e10, 1.9e11),
    ceiling(CONV, "bf16", 2e11, 6e11),
    ceiling(COPY, "fp32", 4e10, 2e10),
    ceiling(COPY, "bf16", 4.1e10, 2e10),
)


def _run(explains: str, cases: Sequence[Case], entries: Sequence[Entry], **header: Any) -> StoredRun:
    made = make_header(**{"run": f"study-{explains}", "explains": explains} | header)
    return gathered(Path(f"runs/{made.run}.jsonl"), made, [*cases, *entries])


def training_run(*found: Training, cases: Sequence[Case] = (), **header: Any) -> StoredRun:
    """Return a run of trainings, with the settings of GradScaler that they have."""
    settings = [setting for setting in SETTINGS if any(each.arm == setting for each in found)]
    asked = {"steps": STEPS, "seeds": 3, "setting": settings}
    cases = cases or ((FP32, FP16) if settings else (FP32, BF16, FP16_PURE))
    return _run(TRAINING, cases, found, **{"asked": asked} | header)


def scope_run(*found: ScopePass, cases: Sequence[Case] = (BF16,), **header: Any) -> StoredRun:
    return _run(SCOPE, cases, found, **header)


def storage_run(*found: StoragePass, cases: Sequence[Case] = (BF16,), **header: Any) -> StoredRun:
    return _run(INPUT_STORAGE, cases, found, **header)


def ceilings_run(*found: Ceiling, device: str = "AMD EPYC", **header: Any) -> StoredRun:
    """Return a run of ceilings of a device of that name."""
    type = found[0].device if found else "cpu"
    known = make_header().environment
    environment = Environment(
        host=known.host, system=known.system, cpu=known.cpu, cpu_count=2, python_version=known.python_version,
        torch_version=known.torch_version, numpy_version=known.numpy_version, threads=2,
        devices=[DeviceDescription(type=type, available=True, name=device)],
    )  # fmt: skip
    return _run(CEILINGS, (), found, **{"environment": environment} | header)
