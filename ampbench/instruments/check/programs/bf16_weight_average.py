"""Averages a bf16 model that has moved from 1.0 to 2.0; each update of the average is rounded away."""

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DEVICE = "cpu"

model = torch.nn.Linear(1, 1, bias=False, device=DEVICE, dtype=torch.bfloat16)
torch.nn.init.constant_(model.weight, 1.0)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
average.update_parameters(model)
torch.nn.init.constant_(model.weight, 2.0)
for _ in range(1000):
    average.update_parameters(model)
right = 2 - 0.999**1000
reached = average.state_dict()["module.weight"].item()
good = abs(reached - right) < 0.05
expected = f"1000 updates take the average from 1.0 to about {right:.2f}"
seen = f"1000 updates take the average from 1.0 to {reached:.2f}"

print("expected:", expected)
print("seen:    ", seen)
