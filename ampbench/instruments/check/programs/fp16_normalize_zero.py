"""Normalizes a vector of zeros; the default eps of 1e-12 is 0 in fp16, which does not keep 0 from dividing 0."""

import torch

DEVICE = "cpu"

result = torch.nn.functional.normalize(torch.zeros(1, 3, device=DEVICE, dtype=torch.float16))
expected = "a vector of zeros is normalized to [0.0, 0.0, 0.0]"
seen = f"a vector of zeros is normalized to {result[0].tolist()}"

print("expected:", expected)
print("seen:    ", seen)
