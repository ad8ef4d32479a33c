"""Shrinks an image of ones with antialiasing, for which a device may have no kernel of half precision."""

import torch

DEVICE = "cpu"

found = []
for dtype in (torch.float16, torch.bfloat16):
    image = torch.ones(1, 1, 8, 8, device=DEVICE, dtype=dtype)
    try:
        small = torch.nn.functional.interpolate(image, (4, 4), mode="bilinear", antialias=True)
        found.append(f"{small.mean().item():.1f}")
    except NotImplementedError as error:
        found.append(f"NotImplementedError: {str(error).splitlines()[0]}")
expected = "fp16: 1.0; bf16: 1.0"
seen = f"fp16: {found[0]}; bf16: {found[1]}"

print("expected:", expected)
print("seen:    ", seen)
