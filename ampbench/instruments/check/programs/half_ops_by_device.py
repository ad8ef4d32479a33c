"""Products and recurrent cells that give bf16 under autocast on CUDA; here each is given fp32 tensors."""

from collections.abc import Callable

import torch

DEVICE = "cpu"

square, vector, row = torch.ones(4, 4, device=DEVICE), torch.ones(4, device=DEVICE), torch.ones(1, 4, device=DEVICE)
gates = {count: torch.ones(4 * count, 4, device=DEVICE) for count in (1, 3, 4)}
OPS: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: torch.mm(square, square),
    "mv": lambda: torch.mv(square, vector),
    "addmv": lambda: torch.addmv(vector, square, vector),
    "addr": lambda: torch.addr(square, vector, vector),
    "rnn_tanh_cell": lambda: torch.rnn_tanh_cell(row, row, gates[1], gates[1]),
    "gru_cell": lambda: torch.gru_cell(row, row, gates[3], gates[3]),
    "lstm_cell": lambda: torch.lstm_cell(row, [row, row], gates[4], gates[4])[0],
}
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    singles = [name for name, op in OPS.items() if op().dtype != torch.bfloat16]
expected = f"all {len(OPS)} ops give torch.bfloat16"
seen = f"not {', '.join(singles)}" if singles else expected

print("expected:", expected)
print("seen:    ", seen)
