"""Networks that abort, hang, raise, take all memory: what a worker must survive."""

ODD = """
import os, time, torch

class Mute(Exception):
    def __str__(self):
        raise ValueError

class Odd(torch.nn.Module):
    def __init__(self, kind, told):
        super().__init__()
        self.kind, self.linear = kind, torch.nn.Linear(4, 4)
        self.told, self.forked = told, False

    def child(self):
        "Fork a process in a session of its own and tell its pid"
        pid = os.fork()
        if pid == 0:
            os.setsid()
        else:
            with open(self.told, "w") as file:
                file.write(str(pid))
        return pid

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
        if self.kind in ("kill", "terminate", "hang up") and not os.path.exists(self.told):
            os.kill(os.getpid(), {"kill": 9, "terminate": 15, "hang up": 1}[self.kind])
        if self.kind == "hog":
            keep = []
            while True:
                keep.append(bytearray(os.urandom(1 << 20)) * 64)
        if self.kind == "system exit":
            raise SystemExit(0)
        if self.kind == "own interrupt":
            raise KeyboardInterrupt
        if self.kind == "undecodable":
            raise FileNotFoundError("caf\\udce9.pt")
        if self.kind == "mute":
            raise Mute
        if self.kind == "misnamed":
            raise type("Evil\\n\u2192 take bf16\\x9b31m\\u202e", (RuntimeError,), {})("no\\x9bluck")
        if self.kind == "endless output":
            while True:
                print(("y" * 99 + "\\n") * 100, end="")
        if self.kind == "closes all":
            os.closerange(3, 256)
            time.sleep(1e6)
        if self.kind in ("abort beside a child", "hog in a child", "kills its server"):
            if self.child() == 0:
                keep = [os.urandom(1 << 20) * 64 for _ in range(14 if self.kind == "hog in a child" else 0)]
                time.sleep(1e6)
        if self.kind == "abort beside a child":
            os.abort()
        if self.kind == "hog in a child":
            time.sleep(1e6)
        if self.kind == "kills its server":
            os.kill(os.getppid(), 9)
            time.sleep(1e6)
        if self.kind == "returns twice" and not self.forked:
            self.forked = True
            os.fork()
        if self.kind == "huge":
            torch.empty(1 << 60)
        return self.linear(x)

def net(kind="fine", told=""):
    if kind == "unbuildable":
        os.abort()
    return Odd(kind, told), torch.randn(2, 4)

def unbuildable():
    raise ValueError("no weights here")
"""
"""A file of a user's networks, each of which does to its worker what its `kind` says."""
