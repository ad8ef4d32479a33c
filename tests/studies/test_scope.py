"""Scopes of autocast: what training in each comes to, and what is concluded, never a doubtful cost."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from msgspec import structs
from torch import nn

from ampbench.core.statement import Statement
from ampbench.records.case import Case
from ampbench.records.casts import Cast, CastTrace, Operation, WeightUse
from ampbench.studies.scope import (
    FORWARD,
    FORWARD_AND_LOSS,
    SCOPES,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    Scope,
    ScopeAsked,
    ScopePass,
    ScopeRun,
    conclusions,
)
from ampbench.studies.scope_measure import Loop, measure_scopes, split_by_step
from ampbench.worker.machine import Cpu
from ampbench.worker.step import NO_DROPOUT
from ampbench.workload import Workload
from tests.stored_runs import make_case
from tests.studies.planted_scopes import CASE, run, scope_pass, timed
from tests.studies.working import at_work


def about(found: ScopePass) -> dict[str, dict[str, Statement]]:
    """What is concluded by scope and, in order, by code (and what of, where an error is named)."""
    by: dict[str, dict[str, Statement]] = {}
    for each in conclusions(CASE, found):
        by.setdefault(each.subject, {})[f"{each.code} {each.facts.get('what', '')}".strip()] = each
    return by


def test_each_scope_shows_its_costs_and_the_recommended_one_none_of_them() -> None:
    by = about(scope_pass())
    assert {scope: list(codes) for scope, codes in by.items()} == {
        FORWARD_AND_LOSS: [Scope.RECOMMENDED],
        FORWARD: [f"{Scope.ERROR} loss"],
        WITH_BACKWARD: [Scope.TIME, Scope.CASTS, Scope.PEAK],
        WHOLE_LOOP: [Scope.STALE, Scope.KEEPS, Scope.TIME, f"{Scope.ERROR} update"],
        UNCACHED_LOOP: [Scope.CASTS],
    }
    assert by[WHOLE_LOOP][Scope.STALE].facts == {"step": 2, "weights": 6}
    assert by[WITH_BACKWARD][Scope.TIME].facts["ratio"] == pytest.approx(1.25)


@pytest.mark.parametrize(
    "samples",
    [timed(1.0), timed(1.002), [[1e-3 * (2 if build % 2 else 0.5)] for build in range(8)], timed(2.0)[:4], []],
    ids=["same", "within rounding", "noisy", "too few builds", "not timed"],
)
def test_no_difference_in_time_is_claimed_that_is_not_certain(samples: list[list[float]]) -> None:
    found = about(scope_pass(uncached=run(UNCACHED_LOOP, samples=samples)))
    assert list(found[UNCACHED_LOOP]) == [Scope.FREE]


def test_growth_is_told_instead_of_what_is_kept_and_is_the_median() -> None:
    grown = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[100, 300, 500, 700])))[UNCACHED_LOOP]
    assert grown[Scope.GROWS].facts == {"growth": 200}
    once = about(scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[0, 100, 100, 100])))[UNCACHED_LOOP]
    assert once[Scope.KEEPS].facts == {"kept": 100}


def test_what_a_scope_raises_is_all_that_is_said_of_it_and_others_stand_by_themselves() -> None:
    broken = run(FORWARD_AND_LOSS, error="RuntimeError: unsafe", samples=[], casts=[], dtypes={})
    found = about(scope_pass(best=broken))
    assert list(found[FORWARD_AND_LOSS]) == [Scope.RAISES]
    assert list(found[FORWARD]) == [Scope.FREE]
    assert list(found[WHOLE_LOOP]) == [Scope.STALE, Scope.KEEPS]
    forward = about(scope_pass(forward=structs.replace(broken, scope=FORWARD)))[FORWARD]
    assert forward[Scope.RAISES].facts == {"error": "RuntimeError: unsafe"}


STEPS = 4


class Quick(Cpu):
    """Collecting garbage takes longer than all that is timed here."""

    def release(self) -> None:
        pass


def case(precision: str = "bf16_autocast", **changes: Any) -> Case:
    return make_case(precision, phase="training", **changes)


def measure(workload: Workload, planned: Case | None = None, steps: int = STEPS) -> ScopePass:
    found = measure_scopes(at_work(workload, planned or case(), Quick()), ScopeAsked(steps=steps, seconds=0.02))
    assert msgspec.json.decode(msgspec.json.encode(found), type=ScopePass) == found
    assert [run.scope for run in found.scopes] == list(SCOPES)
    return found


def by_scope(found: ScopePass) -> dict[str, ScopeRun]:
    return {run.scope: run for run in found.scopes}


def classifier(module: nn.Module, inputs: torch.Tensor, classes: int, lr: float) -> Workload:
    return Workload(
        module=module,
        inputs=inputs,
        targets=torch.randint(0, classes, inputs.shape[:1]),
        loss=F.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
    )


def mlp() -> Workload:
    torch.manual_seed(0)
    return classifier(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(16, 16), 4, 0.5)


def convolutional() -> Workload:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, 4))
    return classifier(module, torch.randn(8, 3, 12, 12), 4, 0.5)


@pytest.mark.parametrize("make", [mlp, convolutional])
def test_around_the_whole_loop_weights_are_stale_and_elsewhere_they_are_not(make: Callable[[], Workload]) -> None:
    workload = make()
    before = {name: value.clone() for name, value in workload.module.state_dict().items()}
    found = measure(workload)
    runs = by_scope(found)
    best, whole = runs[FORWARD_AND_LOSS], runs[WHOLE_LOOP]
    cast = whole.stale_weights[1]
    assert cast > 0
    assert whole.stale_weights == [0] + [cast] * (STEPS - 1)
    assert whole.casts[1:] == [whole.casts[0] - cast] * (STEPS - 1)
    assert {each.error for each in runs.values()} == {""}
    for each in (each for each in runs.values() if each is not whole):
        assert (each.stale_weights, len(set(each.casts))) == ([0] * STEPS, 1)
    assert best.update_rel_l2 is not None
    assert whole.update_rel_l2 is not None
    assert whole.update_rel_l2 > 2 * best.update_rel_l2
    assert found.notes == ([NO_DROPOUT] if make is convolutional else [])
    assert all(torch.equal(before[name], value) for name, value in workload.module.state_dict().items())


class Watching(torch.optim.SGD):
    """Notes whether autocast, and its cache, is on when it is at work."""

    seen: list[tuple[bool, bool]]

    def step(self, *given: Any, **named: Any) -> Any:
        self.seen.append((torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()))
        return super().step(*given, **named)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (FORWARD, [True, False, False, False]),
        (FORWARD_AND_LOSS, [True, True, False, False]),
        (WITH_BACKWARD, [True, True, True, False]),
        (WHOLE_LOOP, [True, True, True, True]),
        (UNCACHED_LOOP, [True, True, True, True]),
        ("fp64", [False, False, False, False]),
    ],
)
def test_autocast_is_on_in_the_scope_and_nowhere_else(scope: str, expected: list[bool]) -> None:
    seen: dict[str, list[bool]] = {"forward": [], "loss": [], "backward": []}
    Watching.seen = []

    def note(what: str) -> None:
        seen[what].append(torch.is_autocast_enabled("cpu"))

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            note("forward")
            out: torch.Tensor = self.linear(x)
            out.register_hook(lambda _: note("backward"))
            return out

    def loss(output: torch.Tensor) -> torch.Tensor:
        note("loss")
        return output.float().square().mean()

    workload = Workload(
        module=Noting(), inputs=torch.randn(2, 4), loss=loss, optimizer=lambda parameters: Watching(parameters, lr=0.1)
    )
    loop = Loop(workload, case(), Cpu(), scope, 2)
    loop.run()
    seen["optimizer"] = [on for on, _ in Watching.seen]
    assert [set(seen[what]) for what in ("forward", "loss", "backward", "optimizer")] == [{on} for on in expected]
    assert {cached for _, cached in Watching.seen} == {scope != UNCACHED_LOOP}
    assert not torch.is_autocast_enabled("cpu")
    assert all(parameter.grad is None for parameter in loop.step.module.parameters())


def only_within_autocast(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if output.dtype is not torch.float64 and not torch.is_autocast_enabled("cpu"):
        raise RuntimeError("no loss\nwithout autocast")
    return F.cross_entropy(output, targets)


def test_what_a_scope_raises_is_its_finding_and_the_others_are_measured() -> None:
    workload = dataclasses.replace(mlp(), loss=only_within_autocast)
    found = measure(workload, steps=2)
    forward, *others = found.scopes
    assert forward.error.startswith("RuntimeError: no loss (in the loss, test_scope.py, line ")
    assert forward.casts == forward.samples == []
    assert all(run.casts and run.samples and not run.error for run in others)


def test_a_trace_is_split_where_steps_begin() -> None:
    def cast(index: int) -> Cast:
        return Cast(index=index, what="weight", from_dtype="fp32", to_dtype="bf16", elements=2, bytes_read=8,
                    bytes_written=4, tensor=index)  # fmt: skip

    def use(operation: int, made: int | None, name: str = "w") -> WeightUse:
        return WeightUse(name=name, operation=operation, status="cast", cast=made)

    trace = CastTrace(
        ops=[Operation(index=index, name="aten.mm") for index in range(9)],
        casts=[cast(0), cast(3), cast(4)],
        weights=[use(1, 0), use(1, None, "norm"), use(3, 0), use(4, 0), use(5, 4, "other"), use(7, 4, "other")],
    )
    found = split_by_step(trace, [0, 3, 6])
    assert found == {"casts": [1, 2, 0], "cast_bytes": [12, 24, 0], "stale_weights": [0, 1, 1]}
