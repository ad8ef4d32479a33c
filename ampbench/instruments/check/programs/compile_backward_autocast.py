"""An fp32 layer runs with autocast off within an fp16 region; its gradient, 4 * 16384, fits fp32 and not fp16."""

import torch

DEVICE = "cpu"

head = torch.nn.Linear(4, 1, device=DEVICE)


@torch.compile(backend="aot_eager")
def forward(batch: torch.Tensor) -> torch.Tensor:
    features = batch @ torch.ones(4, 4, device=DEVICE)
    with torch.autocast(DEVICE, enabled=False):
        result: torch.Tensor = head(features.float())
    return result


with torch.autocast(DEVICE, dtype=torch.float16):
    output = forward(torch.ones(1, 4, device=DEVICE))
(output * 16384).sum().backward()
gradient = head.weight.grad
expected = "a gradient of 65536.0"
seen = f"a gradient of {gradient[0, 0].item() if gradient is not None else None}"

print("expected:", expected)
print("seen:    ", seen)
