"""Exports a product from within an autocast region and runs it outside: its graph must not promise another dtype."""

import torch

DEVICE = "cpu"


class Model(torch.nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch @ batch


batch = torch.ones(2, 2, device=DEVICE)
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    exported = torch.export.export(Model(), (batch,))
promised = next(node for node in exported.graph.nodes if "matmul" in node.name).meta["val"].dtype
expected = f"the graph promises {promised}, the program returns {promised}"
seen = f"the graph promises {promised}, the program returns {exported.module()(batch).dtype}"

print("expected:", expected)
print("seen:    ", seen)
