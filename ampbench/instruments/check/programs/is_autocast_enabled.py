"""Libraries ask torch.is_autocast_enabled() without an argument whether they have to cast; here within a region."""

import torch

DEVICE = "cpu"

with torch.autocast(DEVICE, dtype=torch.bfloat16):
    answer, by_device = torch.is_autocast_enabled(), torch.is_autocast_enabled(DEVICE)
expected = f"is_autocast_enabled() is {by_device}"
seen = f"is_autocast_enabled() is {answer}"

print("expected:", expected)
print("seen:    ", seen)
