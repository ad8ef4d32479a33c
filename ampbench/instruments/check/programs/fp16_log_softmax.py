"""Values near -20000 differ by 520 at most, so that no logarithm of a probability is below -521."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
values = (torch.rand(18, 1, 2, 2, 21, 2) * 520 - 20260).half().to(DEVICE)
infinite = torch.nn.functional.log_softmax(values, dim=2).isinf().sum().item()
expected = "0 of 3024 logarithms of probabilities are infinite"
seen = f"{infinite} of {values.numel()} logarithms of probabilities are infinite"

print("expected:", expected)
print("seen:    ", seen)
