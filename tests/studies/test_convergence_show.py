"""Trainings as tables and curves: what was concluded of each precision, a row per training, means over seeds."""

import pytest
from msgspec import structs

from ampbench.records.changes import ChangeStatus
from ampbench.report.material import material_of
from ampbench.show.document import records
from ampbench.show.page import Part
from ampbench.show.studies import section
from ampbench.store import StoredRun
from ampbench.studies.convergence import (
    CONTROL,
    REFERENCE,
    STUDY,
    WORKLOADS,
    Drift,
    Learns,
    Training,
    Trouble,
    learned,
    trainings,
)
from tests.report.materials import part_of
from tests.report.studied_runs import BF16, FP16_PURE, FP32, convergence_run, trained
from tests.report.studied_runs import training as on_page
from tests.stored_runs import make_case
from tests.studies.planted_trainings import STEPS, WHOLE, case_of, study

TABLES = {table.key: table for table in STUDY.tables}


def rows(key: str, stored: StoredRun) -> list[dict[str, object]]:
    (one,) = learned(stored)
    return records(TABLES[key].columns_of(one), TABLES[key].rows(one))


def cells(stored: StoredRun, title: str, everything: bool = False) -> dict[str, dict[str, str]]:
    """The rows of a table for people, by precision; of several with one, the last."""
    (one,) = learned(stored)
    blocks = {block.title: block for block in section(STUDY, None, one, everything=everything).blocks}
    return {row[0]: dict(zip(blocks[title].headers, row, strict=True)) for row in blocks[title].rows}


def test_each_precision_has_its_numbers_and_its_verdicts() -> None:
    stored = study(WHOLE)
    for one in stored.several_of(Training)[case_of("bf16_autocast").case_id]:
        one.losses[225:] = [2.5 * loss for loss in one.losses[225:]]
    found = {row["precision"]: row for row in rows("precisions", stored)}
    broken = {name: value for name, value in found["fp16_pure"].items() if value is not None}
    assert broken == {
        "precision": "fp16_pure", "case_id": case_of("fp16_pure").case_id, "seeds": 3, "seconds": pytest.approx(12.3),
        "verdict": ChangeStatus.REGRESSED, "reason": Learns.BROKE, "training_loss_verdict": ChangeStatus.REGRESSED,
        "training_loss_reason": Learns.BROKE, "trains_as_fp32": False,
    }  # fmt: skip
    assert found["fp32"]["verdict"] is None
    assert (found["bf16_pure"]["difference"], found["bf16_pure"]["reason"]) == (pytest.approx(-0.015), Learns.SCORE)
    assert found["bf16_autocast"]["training_loss_ratio"] == pytest.approx(2.5)
    shown = cells(stored, "At the end")
    assert shown["bf16_pure"] == {
        "precision": "bf16_pure", "accuracy": "96.08%", "SD": "0.44", "against fp32": "-1.50",
        "90% interval": "-1.65 to -1.35", "verdict": "regressed", "skipped steps": "–", "time": "12.3 s",
    }  # fmt: skip
    assert cells(stored, "Training loss at the end")["bf16_autocast"]["90% interval"] == "2.50 to 2.50"
    assert cells(stored, "Weights at the end")["control"] == {
        "precision": "control", "from fp32": "3.0e-01", "from fp64": "6.0e-01"
    }  # fmt: skip


def test_there_is_a_row_per_training_with_that_of_fp32_beside_it() -> None:
    found = {(row["precision"], row["seed"]): row for row in rows("trainings", study(WHOLE))}
    assert len(found) == 3 * len(WHOLE)
    row, broken = found["bf16_pure", 0], found["fp16_pure", 1]
    assert (row["metric_value"], row["fp32_value"], row["correct"]) == (769 / 800, 0.975, 769)
    assert (broken["ended_at"], broken["ended"], broken["ended_step"]) == (14, Trouble.LOSS, 15)
    assert broken["metric_value"] is broken["from_fp32"] is broken["scaler_scale"] is None
    assert found["fp64", 2]["arm"] == "reference"
    assert cells(study(WHOLE), "Each seed", everything=True)["fp16_pure"]["ended"] == "loss not finite from step 15"


def test_a_workload_has_its_metric_margins_and_seeds() -> None:
    (row,) = records(WORKLOADS, learned(study(WHOLE)))
    assert (row["metric"], row["margin"], row["held_out"], row["decisions"]) == ("accuracy", 0.005, True, 800)
    assert (row["steps"], row["seeds"], row["seeds_asked"], row["learns"]) == (STEPS, [0, 1, 2], 3, True)


def test_notes_are_told_once_and_each_seed_only_when_all_is_asked_for() -> None:
    (one,) = learned(study(WHOLE, notes=["dropout is off"]))
    titles = [block.title for block in section(STUDY, None, one).blocks]
    assert titles.count("Dropout is off.") == 1
    assert "Each seed" not in titles
    assert len(trainings(one)) == 3 * len(WHOLE)


def drawn(*runs: StoredRun) -> Part:
    part = part_of("convergence", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def curve(part: Part, chart: str, series: str) -> dict[float, float | None]:
    return {row["step"]: row["value"] for row in part.datasets[chart] if row["series"] == series}


def test_losses_are_means_over_seeds_and_end_with_the_first_seed_that_does() -> None:
    ended = on_page(BF16, 1, ended_at=9, losses=[2.0] * 9)
    part = drawn(convergence_run(on_page(), on_page(arm=CONTROL), on_page(BF16, 0), ended, cases=(FP32, BF16)))
    assert {row["series"] for row in part.datasets["studies-losses"]} == {"fp32", "bf16_autocast"}
    assert max(curve(part, "studies-losses", "bf16_autocast")) <= 9
    long = structs.replace(on_page(losses=[1.0, None, 3.0]), steps=30, every=10)
    losses = curve(drawn(convergence_run(long, cases=(FP32,))), "studies-losses", "fp32")
    assert (losses[10], losses[11], losses[30]) == (1.0, None, 3.0)


def test_weights_drift_beside_what_rounding_alone_does() -> None:
    part = drawn(convergence_run(*trained()))
    names = list(dict.fromkeys(row["series"] for row in part.datasets["studies-drift"]))
    assert names == ["control", "fp64", "bf16_autocast"]
    control = on_page(arm=CONTROL, drift=[Drift(step=0, from_fp32=1e-8), Drift(step=1, from_fp32=1e-7)])
    own, reference = on_page(drift=[Drift(step=1, from_fp64=2e-7)]), on_page(arm=REFERENCE)
    part = drawn(convergence_run(own, control, reference, cases=(FP32,)))
    assert curve(part, "studies-drift", "control") == {1: 1e-7}
    assert curve(part, "studies-drift", "fp64") == {1: 2e-7}
    colours = part.charts[-1].spec["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(colours["domain"], colours["range"], strict=True))["fp64"] == "var(--dtype-fp64)"


def test_of_two_studies_of_a_workload_the_newer_is_shown_unless_it_lacks_a_precision() -> None:
    old = {"run": "older", "started_at": "2026-01-01T00:00:00Z"}
    older = convergence_run(*trained(), **old)
    assert [one.name for one in drawn(older, convergence_run(*trained())).details] == ["digits"]
    part = drawn(older, convergence_run(on_page(end=0.1), cases=(FP32,)))
    assert sorted(one.name for one in part.details) == ["digits · older", "digits · study-convergence"]
    older = convergence_run(on_page(), cases=(FP32,), **old)
    assert [one.name for one in drawn(older, convergence_run(*trained())).details] == ["digits"]


def test_workloads_in_which_a_precision_fails_come_first() -> None:
    other = make_case("fp32", workload="other", phase="training")
    found = [on_page(other, seed, arm) for seed in range(3) for arm in ("", CONTROL)]
    part = drawn(convergence_run(*found, *trained(), cases=(other, FP32, BF16, FP16_PURE)))
    assert [one.name for one in part.details] == ["digits", "other"]
    assert part.said[0].startswith("Of 2 workloads, 1 ")
    part = drawn(convergence_run(cases=(FP32,)))
    assert part.charts == []
    assert [one.name for one in part.untold] == ["digits fp32"]
