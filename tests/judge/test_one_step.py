"""What one step of a real network shows, and refuses: values out of range, loss scales, statistics, rows alike."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ampbench.core.budget import Budget
from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.core.statement import Hint, Refusal
from ampbench.judge.verdict import Seen, judge, takes_of, verdicts_of
from ampbench.records.changes import Status, Verdict
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
    (take,) = takes_of(read_run(next(tmp_path.rglob("*.jsonl"))), Budget()).values()
    assert Hint.SCALE not in {hint.code for hint in take.hints}


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
