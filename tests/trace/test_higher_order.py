"""Operators that are given functions (`torch.cond`, loops) run under every trace as one op each."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention

from ampbench.trace.errors import watch_errors
from ampbench.trace.ledger import trace_casts
from ampbench.trace.nonfinite import find_nonfinite
from ampbench.trace.ranges import watch_ranges
from ampbench.worker.memory import count_flops


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


TRACES: dict[str, Callable[[torch.nn.Module], AbstractContextManager[Any]]] = {
    "casts": trace_casts,
    "nonfinite": find_nonfinite,
    "errors": lambda network: watch_errors(network, "bf16_autocast"),
    "ranges": watch_ranges,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("network", "operator"),
    [(Branching(), "cond"), (Looping(16, 16), "while_loop"), (Attending(16, 16), "flex_attention")],
    ids=["cond", "while_loop", "flex_attention"],
)
@pytest.mark.parametrize("trace", TRACES)
def test_a_network_with_it_gives_what_it_gives_untraced(trace: str, network: torch.nn.Module, operator: str) -> None:
    x = torch.ones(4, 16)
    with torch.no_grad():
        plain = network(x)
        assert count_flops(lambda: network(x)) is None
        with TRACES[trace](network) as seen:
            assert torch.equal(network(x), plain)
    if trace == "casts":
        assert f"higher_order.{operator}" in {op.name for op in seen.ops}
