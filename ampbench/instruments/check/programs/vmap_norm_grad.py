"""A model with BatchNorm ran under autocast; vmap asks for one gradient per sample, which a loop over them gives."""

import torch
from torch import nn

DEVICE = "cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(DEVICE)
with torch.autocast(DEVICE, dtype=torch.float16):
    output = model(torch.randn(8, 4, device=DEVICE)).squeeze()


def gradient_of(chosen: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the chosen outputs by the first weight."""
    return torch.autograd.grad(output, list(model.parameters()), grad_outputs=chosen, retain_graph=True)[0]


samples = torch.eye(8, dtype=output.dtype, device=DEVICE)
print("a loop gives", torch.stack([gradient_of(sample) for sample in samples]).shape)
expected = "vmap gives torch.Size([8, 4, 4])"
try:
    seen = f"vmap gives {torch.vmap(gradient_of)(samples).shape}"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"

print("expected:", expected)
print("seen:    ", seen)
