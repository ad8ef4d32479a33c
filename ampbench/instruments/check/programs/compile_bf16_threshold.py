"""Compares bf16 scores with 0.2: eager rounds it to bf16, where the score 0.2001953125 equals it; compiled must too."""

import torch

DEVICE = "cpu"


def above(scores: torch.Tensor) -> torch.Tensor:
    return scores > 0.2


scores = torch.full((64,), 0.2001953125, dtype=torch.bfloat16, device=DEVICE)
eager = above(scores)[0].item()
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {torch.compile(above)(scores)[0].item()}"

print("expected:", expected)
print("seen:    ", seen)
