"""Softmax of fp16 values, in fp32 and rounded then, is what softmax in fp16 gives where that is computed in fp32."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
values = torch.randn(512, 64).half().to(DEVICE)
rounded = torch.softmax(values, dim=-1, dtype=torch.float32).half()
differ = (torch.softmax(values, dim=-1) != rounded).sum().item()
expected = "0 of 32768 probabilities differ"
seen = f"{differ} of {values.numel()} probabilities differ"

print("expected:", expected)
print("seen:    ", seen)
