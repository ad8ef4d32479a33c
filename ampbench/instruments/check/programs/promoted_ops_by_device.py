"""Ops of a fp32 tensor and a bf16 one, of which autocast takes the wider dtype on CUDA; without that they raise."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

DEVICE = "cpu"

single, single_row = torch.ones(3, 3, device=DEVICE), torch.ones(3, device=DEVICE)
half, half_row = single.to(torch.bfloat16), single_row.to(torch.bfloat16)
cube = torch.ones(2, 3, 3, device=DEVICE)
OPS: dict[str, Callable[[], torch.Tensor]] = {
    "dot": lambda: torch.dot(single_row, half_row),
    "vdot": lambda: torch.vdot(single_row, half_row),
    "cross": lambda: torch.cross(single, half, dim=1),
    "tensordot": lambda: torch.tensordot(single, half, 1),
    "bilinear": lambda: F.bilinear(half, single, cube),
    "addcdiv": lambda: torch.addcdiv(single, half, single),
    "atan2": lambda: torch.atan2(single, half),
}
wrong = []
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    for name, op in OPS.items():
        try:
            wrong += [name] if op().dtype != torch.float32 else []
        except RuntimeError as error:
            wrong.append(name)
            print(name, "raises", str(error).splitlines()[0])
expected = f"all {len(OPS)} ops give torch.float32"
seen = f"{', '.join(wrong)} do not" if wrong else expected

print("expected:", expected)
print("seen:    ", seen)
