"""What one step of a real network shows and refuses, and the verdict on a training by its late place."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core.budget import Budget
from ampbench.core.metrics import LATE, LATER
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Answer, Refusal
from ampbench.judge.verdict import LOOKS, TRAINING, Seen, choose, judge, verdicts_of
from ampbench.records.changes import Evidence, Status, Verdict
from ampbench.records.measured import Late, Stop
from ampbench.store import read_run
from ampbench.worker.divergence import References, measure_divergence, measure_late
from ampbench.worker.machine import Cpu
from ampbench.workload import Workload
from tests.judge.test_looks import trained_by, training_row
from tests.stored_runs import make_case, make_divergence, make_round, write_run


def verdicts(
    folder: Path, workload: Workload, *precisions: str, phase: str = "training", late: bool = False
) -> Mapping[str, Verdict]:
    """Return the verdicts on a network by precision, as of a run that measured it here, `late` too."""
    entries: list[Any] = []
    references, cases = References(), []
    for name in ("fp32", *precisions):
        dtype = SHORT_DTYPES[PRECISIONS[name].storage]
        cases.append(make_case(name, phase=phase, input_dtype=dtype, batch_size=None))
        entries.append(measure_divergence(workload, cases[-1], Cpu(), references))
        entries += [measure_late(workload, cases[-1], Cpu(), references)] * late
        entries.append(make_round(cases[-1], 1e-3))
    found = verdicts_of(read_run(write_run(folder, cases, *entries)), Budget())
    return {one.precision: one for one in found.values()}


def trained(module: torch.nn.Module, targets: float = 1.0, loss_scale: float = 1.0, **changes: Any) -> Workload:
    """A regression of 16 features to 4 numbers by SGD, whose loss is `loss_scale` times the mean squared error."""
    torch.manual_seed(0)
    values = {"inputs": torch.randn(32, 16), "targets": targets * torch.randn(32, 4)} | changes
    return Workload(
        module=module,
        loss=lambda output, wanted: loss_scale * torch.nn.functional.mse_loss(output, wanted),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        **values,
    )


class Scaled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / 7e4)


def test_inputs_that_are_infinite_in_fp16_are_refused_where_they_are_given_so(tmp_path: Path) -> None:
    workload = Workload(module=Scaled(16, 4), inputs=7e4 * (1 + torch.rand(32, 16)))
    found = verdicts(tmp_path, workload, "fp16_pure", "fp16_autocast", "bf16_pure", phase="inference")
    assert (found["fp16_pure"].status, found["fp16_pure"].code) == (Status.REFUSED, Refusal.INPUT_RANGE)
    assert {found[name].status for name in ("fp16_autocast", "bf16_pure")} == {Status.OK}


def test_a_loss_scale_that_settles_below_one_is_refused_and_is_no_recipe(tmp_path: Path) -> None:
    found = verdicts(tmp_path, trained(torch.nn.Linear(16, 4), loss_scale=1e7), "fp16_autocast", "bf16_autocast")
    refused = found["fp16_autocast"]
    assert (refused.status, refused.code, refused.limit) == (Status.REFUSED, Refusal.SCALE, 1.0)
    assert refused.number > 1
    assert found["bf16_autocast"].status is Status.OK


@given(st.floats(2.0**-30, 2.0**20), st.floats(2.0**-30, 2.0**20))
def test_the_smallest_scale_of_all_rounds_decides(passed: float, timed: float) -> None:
    found, rounds = trained_by(scaler_scale=passed), [make_round(make_case(), 1e-3, scaler_scale=timed)]
    verdict = judge(Seen(row=training_row("fp16_autocast"), found=found, rounds=rounds), Budget())
    assert (verdict.status is Status.REFUSED) == (min(passed, timed) < 1)


def test_a_scale_that_became_zero_has_a_number() -> None:
    verdict = judge(Seen(row=training_row("fp16_autocast"), found=trained_by(scaler_scale=0.0)), Budget())
    assert (verdict.code, verdict.number) == (Refusal.SCALE, 2.0**149)


def test_what_a_run_did_not_measure_of_a_step_refuses_nothing() -> None:
    verdict = judge(Seen(row=training_row("bf16_master"), found=make_divergence(make_case())), Budget())
    assert verdict.status is not Status.REFUSED


def test_gradients_that_no_optimizer_takes_are_not_compared_at_the_loss_scale(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    workload = replace(
        trained(module), optimizer=lambda parameters: torch.optim.SGD(list(parameters)[:2], lr=0.1, momentum=0.9)
    )
    found = verdicts(tmp_path, workload, "fp16_autocast", "bf16_autocast")
    assert found["fp16_autocast"].status is Status.OK
    assert found["bf16_autocast"].status is Status.OK


GOOD: dict[str, Any] = {"output_nonfinite": 0, "grad_rel_l2": 0.01, "loss_rel_error": 1e-4}


def late_row(
    precision: str, milliseconds: float = 5, at_first: dict[str, Any] | None = None, **late: Any
) -> dict[str, Any]:
    """Return the row of a training with numbers at its first weights and at its late place."""
    columns = {f"{name}{LATER}": (GOOD | late).get(name) for name in LATE}
    return training_row(precision, milliseconds, **(GOOD | (at_first or {}))) | columns


def late_of(batches: int = 1, steps: int = 20, **values: Any) -> Late:
    found = trained_by(**values)
    return Late(case_id=found.case_id, stop=Stop.PASSES, steps=steps, batches=batches, divergence=found)


def judged(row: dict[str, Any], late: Late | None, **found: Any) -> Verdict:
    return judge(Seen(row=row, found=trained_by(**found), late=late), Budget())


def test_every_column_that_judges_a_training_exists_late() -> None:
    same = {"", "input_largest", "target_largest", "skipped_steps"}  # of all batches, or of the record alone
    looks = [look for look in LOOKS if look.phase in ("", TRAINING)]
    assert {name for look in looks for name in (look.column, look.subject)} - same <= {*LATE}


@pytest.mark.parametrize(("batches", "evidence"), [(1, Evidence.BATCHES), (7, Evidence.BATCHES), (8, Evidence.RECIPE)])
def test_evidence_has_the_steps_and_batches_before_the_late_place(batches: int, evidence: Evidence) -> None:
    verdict = judged(late_row("bf16_autocast"), late_of(batches))
    assert (verdict.status, verdict.evidence, verdict.steps, verdict.batches) == (Status.OK, evidence, 20, batches)


def test_a_late_place_outweighs_the_first_weights_where_numbers_are_finite() -> None:
    lost = late_row("bf16_pure", at_first={"loss_rel_error": 0.5})
    assert judged(lost, late_of()).status is Status.OK
    without = judged(lost, Late(case_id="", stop=Stop.FAILED, undefined="a step"))
    assert (without.status, without.code, without.steps) == (Status.REFUSED, Refusal.LOSS, 0)
    late = judged(late_row("bf16_pure", loss_rel_error=0.5), late_of())
    assert (late.status, late.code, late.number, late.steps) == (Status.REFUSED, Refusal.LOSS, 0.5, 20)


def test_numbers_that_are_not_finite_at_the_first_weights_refuse_all_the_same() -> None:
    first = judged(late_row("fp16_pure", at_first={"output_nonfinite": 3}), late_of())
    assert (first.status, first.code, first.steps) == (Status.REFUSED, Refusal.OUTPUTS, 0)


def test_an_answer_names_the_place_of_what_it_refuses() -> None:
    rows = [late_row("fp32", 10), late_row("bf16_autocast", 5, loss_rel_error=0.5)]
    found = {row["case_id"]: trained_by() for row in rows}
    lates = {case_id: late_of(16, 32) for case_id in found}
    (take,) = choose(rows, found, Budget(), lates=lates).values()
    assert take.statement.code is Answer.REFUSED
    assert (take.statement.facts["passed_code"], take.statement.facts["passed_steps"]) == (Refusal.LOSS, 32)
