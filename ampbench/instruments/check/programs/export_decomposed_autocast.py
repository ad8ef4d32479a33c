"""Exports an einsum in an autocast region; taking the exported program apart must not change the dtype it returns."""

import torch

DEVICE = "cpu"


class Model(torch.nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return torch.einsum("ij,jk->ik", batch, batch)


batch = torch.ones(2, 2, device=DEVICE)
exported = torch.export.export(Model(), (batch,))
decomposed = exported.run_decompositions()
eager = Model()(batch).dtype
expected = f"eager {eager}, exported {eager}, decomposed {eager}"
seen = f"eager {eager}, exported {exported.module()(batch).dtype}, decomposed {decomposed.module()(batch).dtype}"

print("expected:", expected)
print("seen:    ", seen)
