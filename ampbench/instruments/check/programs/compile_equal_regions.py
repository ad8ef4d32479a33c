"""A model makes its autocast object anew before each call; three that are equal need one graph, not three."""

from collections.abc import Callable
from typing import Any

import torch

DEVICE = "cpu"

graphs: list[torch.fx.GraphModule] = []


def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    graphs.append(graph)
    return graph.forward


class Model(torch.nn.Module):
    region = torch.autocast(DEVICE, dtype=torch.bfloat16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with self.region:
            return batch @ batch


model = Model()
compiled = torch.compile(model, backend=counting)
for _ in range(3):
    model.region = torch.autocast(DEVICE, dtype=torch.bfloat16)
    compiled(torch.ones(2, 2, device=DEVICE))
expected = "1 graph compiled for 3 equal regions"
seen = f"{len(graphs)} graph{'s' * (len(graphs) > 1)} compiled for 3 equal regions"

print("expected:", expected)
print("seen:    ", seen)
