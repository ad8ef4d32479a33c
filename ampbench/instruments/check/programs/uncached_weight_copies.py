"""Uses a weight eight times with the cache off, and counts the copies in bf16 that are kept for backward."""

import torch

DEVICE = "cpu"

weight = torch.nn.Parameter(torch.ones(4, 4, device=DEVICE))
saved: list[torch.Tensor] = []


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """Note a tensor that backward will need."""
    saved.append(tensor)
    return tensor


output = torch.ones(2, 4, device=DEVICE, requires_grad=True)
hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
with hooks, torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
    for _ in range(8):
        output = torch.nn.functional.linear(output, weight)
copies = len({tensor.data_ptr() for tensor in saved if tensor.shape == weight.shape and tensor.dtype != weight.dtype})
expected = "8 uses keep 1 copy of the weight"
seen = f"8 uses keep {copies} cop{'y' if copies == 1 else 'ies'} of the weight"

print("expected:", expected)
print("seen:    ", seen)
