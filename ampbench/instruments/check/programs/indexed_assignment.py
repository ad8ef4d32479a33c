"""An embedding stays fp32 under autocast and a Linear gives bf16: rows of the one are replaced by rows of the other."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
embedding = torch.nn.Embedding(4, 8, device=DEVICE)
project = torch.nn.Linear(8, 8, device=DEVICE)
places = torch.tensor([0, 2], device=DEVICE)
expected = "the rows are replaced"
with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
    tokens = embedding(torch.tensor([0, 1, 2, 3], device=DEVICE))
    try:
        tokens[places] = project(torch.ones(2, 8, device=DEVICE))
        seen = "the rows are replaced"
    except RuntimeError as error:
        seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
