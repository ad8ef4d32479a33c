"""What each switch that ampbench sets does to a step: measured with and without it, in turns, for twelve kinds of step.

`python -m benchmarks.self.switches` prints the table of `docs/performance.md`, in about four minutes on two cores.
A step is what a user writes, in plain torch, in a process that sets nothing; beside it runs one with one of `SWITCHES`.
Where in memory a network lies decides more than most switches do (docs/statistics.md), so each turn builds it anew at
another place, and what is compared are the fastest of several builds.
"""

import ctypes
import gc
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import IO

import torch
from torch import nn

from ampbench.core.precisions import PRECISIONS
from ampbench.records.wire import FORKING_VARIABLES, SERVER_VARIABLES
from ampbench.show.document import markdown_table
from ampbench.worker.machine import precision_flags
from ampbench.worker.memory import keep_freed_memory
from ampbench.worker.timing import Placement

TURNS, SECONDS = 15, 0.03
"""How often two processes take turns at a step, each built anew, and for how long at a time."""
PARTS = 3
"""The turns are told in so many parts, each worth its fastest build: how far these are apart is the doubt."""

SWITCHES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        **{name: {name: value} for name, value in (SERVER_VARIABLES | FORKING_VARIABLES).items()},
        **{
            name: {"SWITCH": name}
            for name in ("heap kept", "forked", "gc.freeze", "own group", "precision flags", "placement", "no_grad")
        },
    }
)
"""The switches by name: the environment that sets each. "no_grad" is what a user may hold instead of inference mode."""

Step = Callable[[], object]


def _conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def _unet() -> nn.Module:
    down = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1))
    return nn.Sequential(*down, nn.ReLU(), nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(), nn.Conv2d(16, 4, 1))


class _Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.lstm(x)[0]
        return output


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True), 2)


def _trained(
    module: nn.Module, inputs: torch.Tensor, optimizer: type[torch.optim.Optimizer], bf16: bool = False
) -> Step:
    chosen = optimizer(module.parameters(), lr=1e-4)  # type: ignore[call-arg]

    def step() -> None:
        chosen.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            loss = module(inputs).float().square().mean()
        loss.backward()
        chosen.step()

    return step


def _called(module: nn.Module, inputs: torch.Tensor, bf16: bool = False) -> Step:
    module.eval()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            module(inputs)

    return step


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
KINDS: Mapping[str, Callable[[], Step]] = MappingProxyType(
    {
        "MLP, training, SGD": lambda: _trained(_mlp(), torch.randn(16, 784), SGD),
        "MLP, training, Adam": lambda: _trained(_mlp(), torch.randn(16, 784), ADAM),
        "MLP, training, AdamW, bf16 autocast": lambda: _trained(_mlp(), torch.randn(16, 784), ADAMW, bf16=True),
        "convolutions, inference": lambda: _called(_conv(), torch.randn(4, 3, 32, 32)),
        "convolutions, training, SGD": lambda: _trained(_conv(), torch.randn(4, 3, 32, 32), SGD),
        "small linear, inference": lambda: _called(nn.Linear(64, 64), torch.randn(4, 64)),
        "large linear, inference": lambda: _called(nn.Linear(1024, 1024), torch.randn(64, 1024)),
        "transformer, inference, bf16 autocast": lambda: _called(_encoder(), torch.randn(2, 32, 128), bf16=True),
        "transformer, training, AdamW": lambda: _trained(_encoder(), torch.randn(2, 32, 128), ADAMW),
        "U-Net, training, Adam": lambda: _trained(_unet(), torch.randn(2, 3, 64, 64), ADAM),
        "embedding, training, SGD": lambda: _trained(nn.Embedding(5000, 64), torch.arange(256), SGD),
        "LSTM, inference": lambda: _called(_Lstm(), torch.randn(4, 16, 64)),
    }
)


class Process:
    """A process that runs steps: a user's, or one with a switch."""

    def __init__(self, variables: Mapping[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.self.switches", "steps"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env={**os.environ, **variables},
        )  # fmt: skip

    def ask(self, kind: str) -> float:
        """Build the step of `kind` and return its seconds: the fastest sample."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(kind, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def ratios(kind: str, without: Process, with_it: Process) -> list[float]:
    """Return how many times as long a step takes with a switch, in each of the `PARTS`; the first turn warms up."""
    sides = [without, with_it]
    took: dict[Process, list[float]] = {side: [] for side in sides}
    for turn in range(TURNS + 1):
        for side in sides if turn % 2 else reversed(sides):
            took[side].append(side.ask(kind))
    fastest = {side: [min(took[side][1 + part :: PARTS]) for part in range(PARTS)] for side in sides}
    return sorted(ours / theirs for ours, theirs in zip(fastest[with_it], fastest[without], strict=True))


def table() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each switch with what it does to each kind of step, in %: the middle of the parts, and their ends."""
    for switch, variables in SWITCHES.items():
        placed = {"PLACED": "1"}
        without, with_it = Process({} if switch == "placement" else placed), Process({**variables, **placed})
        try:
            cells = {}
            for kind in KINDS:
                low, middle, high = ratios(kind, without, with_it)
                mark = "!" if low > 1.02 or high < 1 / 1.02 else ""
                cells[kind] = f"{percent(middle)}{mark} ({percent(low)}, {percent(high)})"
            yield switch, cells
        finally:
            without.close()
            with_it.close()


def percent(ratio: float) -> str:
    """Return how much longer a step takes, in per cent."""
    return f"{100 * (ratio - 1):+.0f}"


def main() -> None:
    """Print the table as Markdown: a row for each kind of step, a column for each switch."""
    columns = dict(table())
    rows = [[kind, *(cells[kind] for cells in columns.values())] for kind in KINDS]
    print(markdown_table(["step", *columns], rows))


def _serve(requests: IO[str], switch: str) -> None:
    """Answer each kind of step on a line of its own with the seconds that it takes."""
    torch.set_num_threads(1)
    if switch == "heap kept":
        keep_freed_memory()
    if switch == "gc.freeze":
        gc.collect()
        gc.freeze()
    if switch == "own group":
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, 9)
        Path("/proc/self/oom_score_adj").write_text("1000")
    placement = Placement(random.Random(os.getpid()))
    with precision_flags(PRECISIONS["fp32"]) if switch == "precision flags" else nullcontext():
        for line in requests:
            kind = line.strip()
            if os.environ.get("PLACED"):
                placement.move()
            torch.manual_seed(0)
            step = KINDS[kind]()
            with _mode(kind, switch):
                step()
                print(_fastest(step), flush=True)
            del step


def _mode(kind: str, switch: str) -> AbstractContextManager[object]:
    if "training" in kind:
        return nullcontext()
    return torch.no_grad() if switch == "no_grad" else torch.inference_mode()


def _fastest(step: Step) -> float:
    """Return the CPU seconds of a step: the fastest of the samples of about a millisecond that fit `SECONDS`.

    A step has one thread, and CPU time leaves out what other work on the machine took.
    """
    begun = time.perf_counter()
    step()
    count = max(1, math.ceil(1e-3 / (time.perf_counter() - begun)))
    fastest, end = math.inf, begun + SECONDS
    while fastest == math.inf or time.perf_counter() < end:
        start = time.thread_time()
        for _ in range(count):
            step()
        fastest = min(fastest, (time.thread_time() - start) / count)
    return fastest


@contextmanager
def _forked(switch: str) -> Iterator[bool]:
    """Yield whether this process is the one that serves: with the switch "forked", the child of one that waits."""
    child = os.fork() if switch == "forked" else 0
    yield child == 0
    if child:
        os.waitpid(child, 0)


if __name__ == "__main__":
    if sys.argv[1:] == ["steps"]:
        with _forked(os.environ.get("SWITCH", "")) as serves:
            if serves:
                _serve(sys.stdin, os.environ.get("SWITCH", ""))
    else:
        main()
