"""One gradient is infinite, so nothing may change: no weight, no count of steps, unscaled by hand before or not."""

import torch

DEVICE = "cpu"

changed = []
for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
    for by_hand in (False, True):
        weights = [torch.nn.Parameter(torch.ones(2, device=DEVICE)) for _ in range(2)]
        optimizer = make(weights, lr=0.1, fused=True)
        scaler = torch.amp.GradScaler(DEVICE)
        scaler.scale(torch.zeros((), device=DEVICE))
        weights[0].grad = torch.tensor([1.0, float("inf")], device=DEVICE)
        weights[1].grad = torch.ones(2, device=DEVICE)
        if by_hand:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        steps = [state["step"].item() for state in optimizer.state.values() if "step" in state]
        if any(steps) or any(value != 1 for weight in weights for value in weight.tolist()):
            changed.append(make.__name__)
expected = "a skipped step changes nothing"
seen = f"a skipped step changes {', '.join(dict.fromkeys(changed)) or 'nothing'}"

print("expected:", expected)
print("seen:    ", seen)
