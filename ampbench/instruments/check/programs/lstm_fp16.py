"""An LSTM runs under autocast to fp16: it has a kernel for that dtype, or has to stay in fp32."""

import torch

DEVICE = "cpu"

torch.manual_seed(0)
lstm = torch.nn.LSTM(8, 8, device=DEVICE)
expected = "the LSTM runs"
try:
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.float16):
        output, _ = lstm(torch.ones(3, 1, 8, device=DEVICE))
    print("it gives", output.dtype)
    seen = "the LSTM runs"
except RuntimeError as error:
    seen = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"

print("expected:", expected)
print("seen:    ", seen)
