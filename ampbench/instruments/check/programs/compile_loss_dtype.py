"""Takes a bf16 loss with fp32 weights by eager and by the compiler's decompositions: both must give the same dtype."""

import torch

DEVICE = "cpu"


def loss(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy(probabilities, labels, weight=weights)


probabilities = torch.full((4,), 0.5, dtype=torch.bfloat16, device=DEVICE)
labels = torch.ones(4, dtype=torch.bfloat16, device=DEVICE)
weights = torch.ones(4, device=DEVICE)
eager = loss(probabilities, labels, weights).dtype
compiled = torch.compile(loss, backend="aot_eager_decomp_partition")(probabilities, labels, weights).dtype
expected = f"eager {eager}, compiled {eager}"
seen = f"eager {eager}, compiled {compiled}"

print("expected:", expected)
print("seen:    ", seen)
