"""Networks that a watch cannot look into everywhere go through origin and headroom, or are said in a note or a row."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor

from ampbench.records.case import Case
from ampbench.studies.headroom import RangesAsked
from ampbench.studies.headroom_measure import UNREAD, UNSEEN, measure_ranges
from ampbench.trace.ledger import trace_casts
from ampbench.worker.machine import Cpu
from ampbench.worker.memory import count_flops
from ampbench.worker.origins import measure_origin
from ampbench.worker.step import COMPILED
from ampbench.workload import Workload
from tests.studies.working import at_work

MakeCase = Callable[..., Case]


@torch.library.custom_op("ampbench_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_autograd(lambda _, gradient: gradient * 2)


class Custom(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(super().forward(x))


class Branching(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 16)
        self.below = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x.sum() > 0, self.below, lambda given: given.sin(), (x,))
        return super().forward(x)


class Looping(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = torch.zeros((), dtype=torch.int64), x
        _, x = while_loop(lambda turn, _: turn < 3, lambda turn, given: (turn + 1, given.sin()), begin)
        return super().forward(x)


class Attending(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return flex_attention(*3 * [x.reshape(1, 1, -1, 16)]).reshape(x.shape)


def subclassed() -> nn.Module:
    layer = nn.Linear(16, 16)
    layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach().clone()))
    return layer


def compiled_in_place() -> nn.Module:
    layer = nn.Linear(16, 16)
    layer.compile(backend="eager")
    return layer


PARTS: dict[str, Callable[[], nn.Module]] = {
    "custom op": lambda: Custom(16, 16),
    "cond": Branching,
    "while_loop": lambda: Looping(16, 16),
    "flex_attention": lambda: Attending(16, 16),
    "subclass": subclassed,
    "compiled": lambda: torch.compile(nn.Linear(16, 16), backend="eager"),
    "compiled in place": compiled_in_place,
}
NOTES = {
    "subclass": {UNREAD, "aten"},
    "compiled": {COMPILED},
    "compiled in place": {COMPILED},
    "cond": {UNSEEN},
    "flex_attention": {"torch compiles"},
}
"""What notes begin with, of those parts that are not seen inside in some phase."""


def with_part(part: str) -> Workload:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 16), PARTS[part](), nn.Linear(16, 4))
    return Workload(module=network, inputs=torch.rand(4, 16), loss=lambda output: output.float().square().mean())


def noted(notes: list[str], part: str) -> bool:
    return all(note.startswith(tuple(said.partition(":")[0] for said in NOTES.get(part, ()))) for note in notes)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.slow] * (part == "while_loop")) for part in PARTS]
)
def test_it_goes_through_origin_and_headroom(part: str, case: MakeCase) -> None:
    phase = "inference" if part == "flex_attention" else "training"  # flex_attention has no backward pass on a CPU
    origin = measure_origin(with_part(part), case("bf16_autocast", phase), Cpu(), ablate=True)
    rows: dict[str, Any] = {row.module: row for row in origin.modules}
    assert all(row.own_rel_l2 and (row.kept_rel_l2 or row.note) for row in rows.values())
    assert rows.keys() == {"0", "1._orig_mod" if part == "compiled" else "1", "2"}
    assert origin.output_rel_l2
    headroom = measure_ranges(at_work(with_part(part), case("fp32", phase)), RangesAsked(precisions=["bf16_autocast"]))
    (low,) = headroom.low_runs
    assert [row.module for row in low.modules] == list(rows)
    assert low.error == ""
    assert {row.module for row in headroom.magnitudes} >= {"0"}
    assert noted([*origin.notes, *headroom.notes, *low.notes], part)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["cond", "while_loop", "flex_attention"])
def test_an_operator_that_is_given_functions_is_one_op_and_gives_what_it_gives_untraced(part: str) -> None:
    network, x = PARTS[part](), torch.ones(4, 16)
    with torch.no_grad():
        plain = network(x)
        assert count_flops(lambda: network(x)) is None
        with trace_casts(network) as seen:
            assert torch.equal(network(x), plain)
    assert f"higher_order.{part}" in {op.name for op in seen.ops}
