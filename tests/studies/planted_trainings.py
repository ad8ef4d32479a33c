"""Trainings as a study stores them, with final metrics that a test chooses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampbench.records.case import Case
from ampbench.records.kinds import TRAINING
from ampbench.records.measured import Score
from ampbench.records.run import Entry
from ampbench.store import StoredRun, gathered
from ampbench.studies.training import CONTROL, REFERENCE, SETTINGS, UNSCALED, GradientLook, Training, TrainingAsked
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
    fields: dict[str, Any] = {
        "case_id": case.case_id,
        "seed": seed,
        "arm": arm,
        "steps": STEPS,
        "losses": [2.3 / (1 + step / 20) for step in range(STEPS if final is not None else 15)],
        "scores": scores,
        "fits": fits(0.1) if final is not None else fits(0.1)[:1],
        "ended_at": None if final is not None else 14,
        "weights_digest": f"weights{seed}",
        "inputs_digest": f"inputs{seed}",
        "scales": [(0, 65536.0), (1, 32768.0)] if case.precision == "fp16_autocast" else [],
    }
    if final is None:
        fields["losses"] = [*fields["losses"][:-1], None]
    return Training(**fields | changes)


def fits(end: float, begin: float = 2.3) -> list[Score]:
    """Return what is read of the training batches at the beginning and the end."""
    return [Score(step=0, loss=begin), Score(step=STEPS, loss=end)]


def scaled(ends: Mapping[str, float | None], begin: float = 1.0, *, apart: float = 1e-3, **changes: Any) -> StoredRun:
    """Return a run with settings of GradScaler whose training losses end there (None: weights were not finite).

    "fp32" and its arms end as "fp32" does, each seed a little `apart`.
    """
    settings = [name for name in ends if name != "fp32"]
    header = make_header(explains=TRAINING, asked=TrainingAsked(steps=STEPS, seeds=3, setting=settings))
    fp32, fp16 = case_of("fp32"), case_of("fp16_autocast")
    starts = [(fp32, ""), (fp32, CONTROL), (fp32, REFERENCE), *((fp16, setting) for setting in settings)]
    entries: list[Entry] = [fp32, fp16]
    for case, arm in starts:
        setting = arm in settings
        end = ends[arm if setting else "fp32"]
        for seed in range(3):
            fields: dict[str, Any] = {"scores": [], "looks": [LOOK] if setting else []}
            if setting and arm != UNSCALED:
                fields["scales"] = [(0, SETTINGS[arm].get("init_scale", 65536.0))]
            at = 1.0 if end is None else end
            fields |= {"fits": fits(at * (1 + apart * (seed + 0.1 * (arm == CONTROL))), begin)}
            own = changes if setting else {}
            entries.append(training(case, None if end is None else 1.0, seed, arm, **fields | own))
    return gathered(Path("run.jsonl"), header, entries)


LOOK = GradientLook(step=0, nonzero=100, flushed=40, rel_l2=1e-3)


def study(
    finals: Mapping[str, Sequence[float | None]], *, seeds: int = 3, asked: int | None = None, **changes: Any
) -> StoredRun:
    """Return a run with trainings whose final accuracies are `finals`, by precision, "control" and "fp64"."""
    arms = {"control": ("fp32", CONTROL), "fp64": ("fp32", REFERENCE)}
    header = make_header(explains=TRAINING, asked=TrainingAsked(steps=STEPS, seeds=asked or seeds))
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
