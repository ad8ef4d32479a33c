"""Of the recurrent networks, RNN and LSTM give bf16 under autocast; GRU is of the same kind, and should, too."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
gru = torch.nn.GRU(8, 8, device=DEVICE)
with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
    output, _ = gru(torch.ones(3, 1, 8, device=DEVICE))
expected = "the GRU gives torch.bfloat16"
seen = f"the GRU gives {output.dtype}"

print("expected:", expected)
print("seen:    ", seen)
