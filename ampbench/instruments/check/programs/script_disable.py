"""A scripted function switches autocast off for an exact part; called within a region, that part has to be fp32."""

import torch

DEVICE = "cpu"

SOURCE = """
def exact(given: Tensor) -> Tensor:
    with torch.cpu.amp.autocast(enabled=False):
        return torch.mm(given, given)
"""
given = torch.ones(2, 2, device=DEVICE)
expected = "the scripted product gives torch.float32"
seen = "nothing"
try:
    scripted = torch.jit.CompilationUnit(SOURCE).exact
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        seen = f"the scripted product gives {scripted(given).dtype}"
except RuntimeError as error:
    lacks = f"this torch does not script autocast: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
