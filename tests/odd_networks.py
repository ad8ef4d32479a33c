"""Networks that abort, hang, raise, take all memory: what a worker must survive."""

ODD = """
import os, time, torch

class Odd(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear = kind, torch.nn.Linear(4, 4)

    def forward(self, x):
        if self.kind == "abort":
            os.abort()
        if self.kind == "sleep":
            time.sleep(1e6)
        if self.kind == "raise":
            raise RuntimeError("no luck\\ntoday")
        if self.kind == "exit":
            print("my last words", flush=True)
            os._exit(3)
        if self.kind == "kill":
            os.kill(os.getpid(), 9)
        if self.kind == "hog":
            keep = []
            while True:
                keep.append(bytearray(os.urandom(1 << 20)) * 64)
        if self.kind == "huge":
            torch.empty(1 << 60)
        return self.linear(x)

def net(kind="fine"):
    if kind == "unbuildable":
        os.abort()
    return Odd(kind), torch.randn(2, 4)

def unbuildable():
    raise ValueError("no weights here")
"""
"""A file of a user's networks, each of which does to its worker what its `kind` says."""
