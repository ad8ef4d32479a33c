"""A vector is as similar to itself as can be; its length, 67882, is beyond fp16, though, and dividing by it gives 0."""

import torch

DEVICE = "cpu"

vector = torch.full((1, 512), 3000.0, device=DEVICE, dtype=torch.float16)
similarity = torch.nn.functional.cosine_similarity(vector, vector)
expected = "the cosine of a vector and itself is 1.00"
seen = f"the cosine of a vector and itself is {similarity.item():.2f}"

print("expected:", expected)
print("seen:    ", seen)
