"""A product is bf16 under autocast; functions of linear algebra without a half kernel need autocast to cast it back."""

import torch

DEVICE = "cpu"
NAMES = ("inv", "det", "slogdet", "cholesky", "svd", "qr", "eigh", "lu_factor", "solve", "lstsq", "matrix_exp")

raising = []
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    matrix = torch.mm(torch.eye(4, device=DEVICE), torch.eye(4, device=DEVICE))
    for name in NAMES:
        try:
            getattr(torch.linalg, name)(*[matrix] * (2 if name in {"solve", "lstsq"} else 1))
        except RuntimeError as error:
            raising.append(name)
            print(name, "raises", str(error).splitlines()[0])
expected = f"none of {len(NAMES)} raises"
seen = f"{', '.join(raising) or 'none'} of {len(NAMES)} raises"

print("expected:", expected)
print("seen:    ", seen)
