"""Verdicts, losses and weights of trainings as tables, and a frame with a row per training."""

import pytest
from msgspec import structs

from ampbench.core.units import UNDEFINED
from ampbench.instruments.convergence.learning import learned
from ampbench.instruments.convergence.records import Training
from ampbench.instruments.convergence.show import TRAININGS, conclusions, learned_section, losses, trainings
from ampbench.show.document import Section, records
from tests.instruments.convergence.planted_trainings import GOOD, STEPS, WHOLE, case_of, study


def section(everything: bool = False) -> Section:
    (one,) = learned(study(WHOLE))
    return learned_section(one, everything=everything)


def table(section: Section, title: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table by precision; of several with one, the last."""
    (block,) = [block for block in section.blocks if block.title == title]
    return {row[0]: dict(zip(block.headers, row, strict=True)) for row in block.rows}


def test_a_section_says_what_was_trained_and_first_what_to_do():
    found = section()
    assert found.title == "digits[channels=8]/b32 · cpu · 300 steps · 3 seeds"
    assert (
        found.blocks[0].title
        == "fp16_autocast and bf16_autocast train as fp32 does, within half a point of accuracy and 5% of the training "
        "loss."
    )
    assert [block.title for block in found.blocks if block.rows] == [
        "At the end",
        "At the end, training loss",
        "Training loss",
        "Weights",
    ]


def test_each_precision_has_its_numbers_and_its_verdict():
    rows = table(section(), "At the end")
    assert rows["bf16_pure"] == {
        "precision": "bf16_pure", "accuracy": "96.08%", "SD": "0.44", "against fp32": "-1.50",
        "90% interval": "-1.65 to -1.35", "verdict": "regressed", "skipped steps": UNDEFINED, "time": "12.3 s",
    }  # fmt: skip
    assert (rows["fp32"]["against fp32"], rows["fp32"]["verdict"]) == (UNDEFINED, "")
    assert rows["control"]["against fp32"] == "+0.00"
    assert (rows["fp16_pure"]["accuracy"], rows["fp16_autocast"]["skipped steps"]) == (UNDEFINED, "3")


def test_the_training_loss_at_the_end_is_told_beside_fp32s():
    stored = study(WHOLE)
    for one in stored.several_of(Training)[case_of("bf16_pure").case_id]:
        one.losses[225:] = [2.5 * loss for loss in one.losses[225:]]
    (one,) = learned(stored)
    rows = table(learned_section(one), "At the end, training loss")
    late = sum(2.3 / (1 + step / 20) for step in range(225, 300)) / 75
    assert rows["bf16_pure"] == {
        "precision": "bf16_pure", "loss": f"{2.5 * late:.4g}", "times fp32's": "2.50",
        "90% interval": "2.50 to 2.50", "verdict": "worse",
    }  # fmt: skip
    assert (rows["fp32"]["times fp32's"], rows["fp32"]["verdict"]) == (UNDEFINED, "")
    assert (rows["bf16_autocast"]["times fp32's"], rows["bf16_autocast"]["verdict"]) == ("1.00", "no worse")
    assert rows["fp16_pure"]["loss"] == UNDEFINED


def test_losses_are_means_over_parts_of_the_training():
    rows = table(section(), "Training loss")
    mean = sum(2.3 / (1 + step / 20) for step in range(50)) / 50
    assert rows["fp32"]["1–50"] == f"{mean:#.4g}"
    assert set(list(rows["fp16_pure"].values())[1:]) == {UNDEFINED}


@pytest.mark.parametrize(
    ("steps", "every", "seen", "expected"),
    [
        (1, 1, [2.0], ["2.000"]),
        (3, 1, [3.0, 2.0, 1.0], ["3.000", "2.000", "1.000"]),
        (600, 100, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], ["6.000", "5.000", "4.000", "3.000", "2.000", "1.000"]),
        (600, 400, [6.0, 1.0], ["6.000", "6.000", "6.000", "6.000", "1.000", "1.000"]),
        (600, 150, [4.0, 3.0, 2.0, 1.0], ["4.000", "3.500", "3.000", "2.000", "1.500", "1.000"]),
        (600, 100, [6.0, None], ["6.000", *[UNDEFINED] * 5]),
        (600, 100, [6.0, 5.0], ["6.000", "5.000", *[UNDEFINED] * 4]),
    ],
)
def test_losses_fit_trainings_of_any_length(steps: int, every: int, seen: list[float | None], expected: list[str]):
    stored = study({"fp32": GOOD[:1]}, seeds=1)
    rows = stored.several_of(Training)[case_of("fp32").case_id]
    rows[0] = structs.replace(rows[0], steps=steps, every=every, losses=seen, scores=[])
    (block,) = losses(learned(stored)[0])
    assert list(block.rows[0][1:]) == expected


def test_weights_are_told_at_a_few_steps_and_at_the_end_from_fp64():
    rows = table(section(), "Weights")
    assert list(rows["control"]) == ["precision", "step 1", "step 10", "step 100", "step 300", "from fp64"]
    assert (rows["control"]["step 300"], rows["control"]["from fp64"]) == ("3.0e-01", "6.0e-01")
    assert rows["fp32"]["step 300"] == UNDEFINED


def test_each_seed_is_listed_only_when_all_is_asked_for():
    rows = table(section(everything=True), "Each seed")
    assert rows["fp16_pure"]["ended"] == "loss not finite from step 15"
    assert (rows["fp16_autocast"]["scale"], rows["bf16_pure"]["seed"]) == ("65536", "2")


def test_notes_are_told_once():
    (one,) = learned(study(WHOLE, notes=["dropout is off"]))
    assert [block.title for block in learned_section(one).blocks].count("Dropout is off.") == 1


def test_columns_of_numbers_stand_to_the_right():
    found = {header for block in section().blocks for header in block.numbers}
    assert {"accuracy", "time", "step 300", "1–50", "from fp64"} <= found
    assert not {"precision", "verdict"} & found


def test_there_is_a_row_per_training_with_that_of_fp32_beside_it():
    rows = {(row["precision"], row["seed"]): row for row in records(TRAININGS, trainings(learned(study(WHOLE))))}
    assert len(rows) == 3 * len(WHOLE)
    row = rows["bf16_pure", 0]
    assert (row["metric_value"], row["fp32_value"], row["correct"]) == (769 / 800, 0.975, 769)
    broken = rows["fp16_pure", 1]
    assert (broken["ended_at"], broken["reason"]) == (14, "loss not finite from step 15")
    assert broken["metric_value"] is broken["from_fp32"] is broken["scaler_scale"] is None
    assert rows["fp64", 2]["arm"] == "reference"


def test_verdicts_are_plain_rows():
    (one,) = learned(study(WHOLE))
    rows = {row["precision"]: row for row in records(conclusions(one.metric), one.rows)}
    assert rows["fp32"]["verdict"] is None
    assert rows["fp16_pure"] | {"case_id": ""} == {
        "precision": "fp16_pure", "case_id": "", "seeds": 3, "mean": None, "sd": None, "difference": None, "low": None,
        "high": None, "verdict": "regressed", "reason": "loss not finite from step 15 in 3 of 3 seeds",
        "seeds_needed": None, "weights_from_fp32": None, "weights_from_fp64": None, "skipped_steps": None,
        "seconds": pytest.approx(12.3), "training_loss": None, "training_loss_ratio": None, "training_loss_low": None,
        "training_loss_high": None, "training_loss_verdict": "regressed",
        "training_loss_reason": "loss not finite from step 15 in 3 of 3 seeds", "trains_as_fp32": False,
        "way_rel_l2": None, "way_kept": None, "way_slope": None,
    }  # fmt: skip
    assert all(isinstance(each, Training) for row in one.rows for each in row.trainings)
    assert one.steps == STEPS
