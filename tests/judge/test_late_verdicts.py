"""The verdict on a training by its late place."""

from typing import Any

import pytest

from ampbench.core.budget import Budget
from ampbench.core.metrics import LATE, LATER
from ampbench.core.statement import Answer, Refusal
from ampbench.judge.verdict import LOOKS, TRAINING, Seen, choose, judge
from ampbench.records.changes import Evidence, Status, Verdict
from ampbench.records.measured import Late, Stop
from tests.judge.test_looks import trained_by, training_row

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
