"""native_layer_norm returns mean and rstd besides; fake tensors, by which compilers plan, have to know their dtypes."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

DEVICE = "cpu"


def dtypes() -> str:
    """Return the dtypes of the three results."""
    weight = torch.ones(8, dtype=torch.bfloat16, device=DEVICE)
    batch = torch.ones(2, 8, dtype=torch.bfloat16, device=DEVICE)
    return ", ".join(str(one.dtype) for one in torch.native_layer_norm(batch, [8], weight, weight, 1e-5))


expected = f"output, mean and rstd are {dtypes()}"
with FakeTensorMode():
    seen = f"output, mean and rstd are {dtypes()}"

print("expected:", expected)
print("seen:    ", seen)
