"""Models enter autocast by the device type of their input, also to switch it off; with meta tensors that is "meta"."""

import torch

DEVICE = "cpu"

given = torch.ones(2, 2, device="meta")
expected = "a region that is switched off can be entered"
try:
    with torch.autocast(given.device.type, enabled=False):
        seen = "a region that is switched off can be entered"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
