"""Trainings as a study stores them, with final metrics that a test chooses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampbench.records.case import Case
from ampbench.records.kinds import CONVERGENCE
from ampbench.records.measured import Score
from ampbench.records.run import Entry
from ampbench.store import StoredRun, gathered
from ampbench.studies.convergence import CONTROL, REFERENCE, ConvergenceAsked, Drift, Training
from tests.stored_runs import make_case, make_header

DECISIONS = 800
STEPS = 300


def case_of(precision: str, **changes: Any) -> Case:
    stored = {"fp16_pure": "fp16", "bf16_pure": "bf16"}.get(precision, "fp32")
    fields = {"workload": "digits", "family": "data", "parameters": {"channels": 8}, "batch_size": 32}
    return make_case(precision, phase="training", input_dtype=stored, **fields | changes)


def training(
    case: Case, final: float | None, seed: int = 0, arm: str = "", *, first: float = 0.1, **changes: Any
) -> Training:
    """Return a training that ends with the accuracy `final`; None: it gave up before."""
    scores = [Score(step=0, loss=2.3, correct=round(first * DECISIONS), decisions=DECISIONS)]
    if final is not None:
        scores.append(Score(step=STEPS, loss=0.1, correct=round(final * DECISIONS), decisions=DECISIONS))
    apart = None if case.precision == "fp32" and arm == "" else 1e-3
    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "seed": seed,
        "arm": arm,
        "steps": STEPS,
        "losses": [2.3 / (1 + step / 20) for step in range(STEPS if final is not None else 15)],
        "held_out": True,
        "scores": scores,
        "drift": [
            Drift(step=step, from_fp32=apart and apart * step, from_fp64=None if arm == REFERENCE else 2e-3 * step)
            for step in (1, 10, 100, STEPS)
        ],
        "ended_at": None if final is not None else 14,
        "weights_digest": f"weights{seed}",
        "inputs_digest": f"inputs{seed}",
        "seconds": 12.3,
        "skipped_steps": 1 if case.precision == "fp16_autocast" else None,
        "scaler_scale": 65536.0 if case.precision == "fp16_autocast" else None,
    }
    if final is None:
        fields["losses"] = [*fields["losses"][:-1], None]
    return Training(**fields | changes)


def study(
    finals: Mapping[str, Sequence[float | None]], *, seeds: int = 3, asked: int | None = None, **changes: Any
) -> StoredRun:
    """Return a run with trainings whose final accuracies are `finals`, by precision, "control" and "fp64"."""
    arms = {"control": ("fp32", CONTROL), "fp64": ("fp32", REFERENCE)}
    header = make_header(explains=CONVERGENCE, asked=ConvergenceAsked(steps=STEPS, seeds=asked or seeds))
    entries: list[Entry] = []
    for name, values in finals.items():
        precision, arm = arms.get(name, (name, ""))
        case = case_of(precision)
        entries += [case, *(training(case, final, seed, arm, **changes) for seed, final in enumerate(values))]
    return gathered(Path("run.jsonl"), header, entries)


GOOD = [0.975, 0.98, 0.9725]
"""Accuracies of three seeds."""


def moved(by: Sequence[int], finals: Sequence[float] = GOOD) -> list[float]:
    """Return accuracies that differ from others by so many decisions."""
    return [final + each / DECISIONS for final, each in zip(finals, by, strict=True)]


WHOLE = {
    "fp32": GOOD,
    "control": moved([1, -1, 0]),
    "fp64": moved([0, 1, -1]),
    "fp16_autocast": moved([1, 0, -1]),
    "bf16_autocast": moved([0, -1, 1]),
    "fp16_pure": [None, None, None],
    "bf16_pure": moved([-11, -12, -13]),
}
"""A study with a precision that explodes and one that ends 1.5 points lower."""
