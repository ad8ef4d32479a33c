"""An autocast object that a model holds gets another dtype after the model was compiled; the next call must see it."""

import torch

DEVICE = "cpu"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.region = torch.autocast(DEVICE, dtype=torch.bfloat16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        with self.region:
            return batch @ batch


model = Model()
compiled = torch.compile(model, backend="eager")
batch = torch.ones(2, 2, device=DEVICE)
first = compiled(batch).dtype
model.region.fast_dtype = torch.float16
expected = "torch.bfloat16 at first, then torch.float16"
seen = f"{first} at first, then {compiled(batch).dtype}"

print("expected:", expected)
print("seen:    ", seen)
