"""A bf16 margin loss near its margin of 1.7: eager rounds that to 1.703125 as it does the scores; compiled must too."""

import torch

DEVICE = "cpu"


def loss(better: torch.Tensor, worse: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.margin_ranking_loss(better, worse, target, margin=1.7, reduction="none")


better = torch.full((64,), 1.6953125, dtype=torch.bfloat16, device=DEVICE)
inputs = better, torch.zeros_like(better), torch.ones_like(better)
eager = loss(*inputs)[0].item()
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {torch.compile(loss)(*inputs)[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
