"""Only index 0 has a probability, so it alone may be drawn; a random number that is 0 in fp16 lets another one win."""

import torch

DEVICE = "cpu"

probabilities = torch.zeros(1 << 20, device=DEVICE, dtype=torch.float16)
probabilities[0] = 1.0
drawn = []
for seed in (20, 103):
    torch.manual_seed(seed)
    drawn.append(torch.multinomial(probabilities, 1).item())
expected = "the indices drawn are [0, 0], the only one that has a probability"
seen = f"the indices drawn are {drawn}{'' if any(drawn) else ', the only one that has a probability'}"

print("expected:", expected)
print("seen:    ", seen)
