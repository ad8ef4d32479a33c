"""`ampbench doctor --prove`: five numbers of ampbench, each against a number that is not ampbench's."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ampbench.drive.servers import server_environment
from ampbench.records.case import DeviceDescription, Environment
from ampbench.show.wording import spelled

PLAIN = """
import sys, torch
device = sys.argv[1]
def status(name):
    return 1024 * int(open("/proc/self/status").read().split(f"{name}:")[1].split()[0])
def train(size):
    layers = torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, size)
    network, batch = torch.nn.Sequential(*layers).to(device), torch.randn(size, size).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()
train(64)
before = status("VmRSS") if device == "cpu" else torch.accelerator.memory_allocated()
train(2048)
print((status("VmHWM") if device == "cpu" else torch.accelerator.max_memory_allocated()) - before)
"""
"""The script that measures the peak memory of the training step of `studies.proof_measure`, without ampbench."""
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Makes glibc return freed tensors to the system, so that resident memory has a peak of its own."""
APART = 0.03
"""The largest relative difference of times that measure the same."""
NOISE = 0.015
"""Times of one loop that differ by more than half of `APART` prove nothing."""
MEMORY_APART = {"cpu": 8 << 20, "": 2 << 20}
"""The largest difference of peak memory in bytes, on a CPU and on other devices: libraries keep some MiB on a CPU."""
LEAST_SHARE, MOST_SHARE = 0.5, 1.05
"""The shares of a peak that a large product reaches; of a loop on a CPU also what its fastest run may miss."""
SAME_APART = 0.01
WIDEST = 0.1
"""An interval of a ratio that is wider proves nothing."""


MEASURED = ("times", "memory", "products", "rate")
"""The questions that `studies.proof_measure` answers."""


class Outcome(StrEnum):
    """What came of a question."""

    OK = "ok"
    FAILED = "failed"
    NOT_ASKED = "could not be asked"


class Question(StrEnum):
    """What is proved."""

    TIME = "time"
    MEMORY = "memory"
    PRODUCTS = "precisions"
    RATE = "speed"
    SAME = "repeatability"


SENTENCES: Mapping[Question, str] = {
    Question.TIME: (
        "a step takes {ampbench:s} by ampbench, {timer:s} by torch's Timer, {clock:s} by the clock (at most 3% apart)"
    ),
    Question.MEMORY: (
        "a training step takes {ampbench:B} by ampbench, {plain:B} in a plain script (at most {limit:B} apart)"
    ),
    Question.PRODUCTS: "errors of products against fp64: {errors}",
    Question.RATE: "a {size} product in {dtype} reaches {ampbench:FLOP/s}, {share:share} of {against} (50% to 105%)",
    Question.SAME: "one case measured twice: {ratio:.4f} times as long{low:if| (95%: |.4f|}{high:if| to |.4f|)}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The outcome of a question with the numbers that decided, or the reason why it could not be asked."""

    question: Question
    outcome: Outcome
    facts: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        asked = self.outcome is not Outcome.NOT_ASKED
        said = spelled(SENTENCES[self.question], self.facts) if asked else self.facts["reason"]
        return f"{self.outcome}: {self.question}: {said}"


def prove(environment: Environment) -> tuple[DeviceDescription, list[Proof]]:
    """Return the accelerator of this machine, else its CPU, and what came of each question about it.

    A card that torch cannot use is not passed over: nothing can be asked of it.
    """
    cards = [device for device in environment.devices if device.type != "cpu" and (device.available or device.unusable)]
    device = next(iter(cards), environment.devices[0])
    if not device.available:
        return device, [_unasked(question, device.reason) for question in Question]
    line, problem = _asked("-m", "ampbench.studies.proof_measure", device.type)
    answers = json.loads(line) if line else {name: {"error": problem} for name in MEASURED}
    return device, [
        _time(answers["times"]),
        _memory(answers["memory"], device.type),
        _products(answers["products"]),
        _rate(answers["rate"], device),
        _same(device.type),
    ]


def _asked(*arguments: str, variables: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the last line that a Python process prints, or "" and the last line of its errors."""
    environment = server_environment(os.environ, variables or {}, ())
    done = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode == 0:
        return done.stdout.splitlines()[-1], ""
    return "", (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]


def _unasked(question: Question, reason: str) -> Proof:
    return Proof(question=question, outcome=Outcome.NOT_ASKED, facts={"reason": reason})


def _judged(question: Question, holds: bool, **facts: Any) -> Proof:
    return Proof(question=question, outcome=Outcome.OK if holds else Outcome.FAILED, facts=facts)


def _noise(found: Mapping[str, Any]) -> str:
    """Return why nothing was proved by times of a loop: they failed, or they differ from themselves."""
    if "error" in found or found["spread"] <= NOISE:
        return str(found.get("error", ""))
    return f"times of one loop differ by {found['spread']:.1%}: leave the machine alone and try again"


def _time(found: Mapping[str, Any]) -> Proof:
    if reason := _noise(found):
        return _unasked(Question.TIME, reason)
    seconds = [found[name] for name in ("ampbench", "timer", "clock")]
    return _judged(Question.TIME, max(seconds) / min(seconds) - 1 <= APART, **found)


def _memory(found: Mapping[str, Any], type: str) -> Proof:
    line, problem = _asked("-c", PLAIN, type, variables=OWN_MAPPINGS)
    if problem := found.get("error", problem):
        return _unasked(Question.MEMORY, problem)
    limit, plain = MEMORY_APART.get(type, MEMORY_APART[""]), int(line)
    return _judged(Question.MEMORY, abs(found["ampbench"] - plain) <= limit, **found, plain=plain, limit=limit)


def _products(found: Mapping[str, Any]) -> Proof:
    """Judge the errors of products; a dtype that the device refuses is named with its reason and judges nothing."""
    if "error" in found:
        return _unasked(Question.PRODUCTS, str(found["error"]))
    measured = {dtype: row for dtype, row in found.items() if "error" not in row}
    texts = [
        f"{dtype} {row['ampbench']:.1e} ({row['least']:.1e} to {row['most']:.1e})" for dtype, row in measured.items()
    ]
    texts += [f"{dtype} refused ({found[dtype]['error']})" for dtype in found.keys() - measured.keys()]
    holds = all(row["least"] <= row["ampbench"] <= row["most"] for row in measured.values())
    return _judged(Question.PRODUCTS, holds, **found, errors=", ".join(texts))


def _rate(found: Mapping[str, Any], device: DeviceDescription) -> Proof:
    """Judge the rate of a product by the datasheet of a card, or on a CPU by a loop of torch.mm."""
    from ampbench.records.measured import MATMUL
    from ampbench.studies.ceilings import datasheet_of

    if "error" in found:
        return _unasked(Question.RATE, found["error"])
    peak, against = found["loop"], "a loop of torch.mm"
    if device.type != "cpu":
        datasheet = datasheet_of(device.name)
        peak, against = datasheet and datasheet.peak(MATMUL, found["dtype"]), "its datasheet"
        if peak is None:
            return _unasked(Question.RATE, f"ampbench has no datasheet of {device.name}")
    elif reason := _noise(found):
        return _unasked(Question.RATE, reason)
    share = found["ampbench"] / peak
    return _judged(Question.RATE, LEAST_SHARE <= share <= MOST_SHARE, **found, share=share, against=against)


def _same(type: str) -> Proof:
    """Judge a case against its control in an ordinary run: within 1%, or on a CPU within the interval of its rounds."""
    measured, problem = _repeated(type)
    if measured is None:
        return _unasked(Question.SAME, problem or "the run ended before its rounds")
    ratio, low, high = measured
    if high / low - 1 > WIDEST:
        return _unasked(Question.SAME, f"rounds of one case differ too much (95%: {low:.4g} to {high:.4g} times)")
    holds = abs(ratio - 1) <= SAME_APART or (type == "cpu" and low <= 1 <= high)
    return _judged(Question.SAME, holds, ratio=ratio, low=low, high=high)


def _repeated(type: str) -> tuple[tuple[float, float, float] | None, str]:
    """Return the ratio of a case to itself with its 95% interval over rounds, or None and the reason."""
    from ampbench.core.stats import log_t_interval
    from ampbench.judge.rounds import control_ratio
    from ampbench.store import list_runs, read_run

    case = ("--device", type, "--phase", "inference", "--precision", "fp32", "--rounds", "6", "--min-run-time", "200ms")
    with tempfile.TemporaryDirectory() as folder:
        _, problem = _asked("-m", "ampbench", "run", "mlp", *case, "--json", "--results", folder)
        control = next((control_ratio(read_run(path)) for path in list_runs(Path(folder))), None)
    if control is None or len(control.own) != len(control.again):
        return None, problem
    interval = log_t_interval(control.again / control.own)
    return (None, problem) if interval is None else ((control.ratio, *interval), "")


def slug(name: str) -> str:
    """Return the name of a device as the name of a file: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def as_data(device: DeviceDescription, environment: Environment, proofs: list[Proof]) -> dict[str, Any]:
    """Return everything that was proved, with the device, its driver and its torch, as JSON has them."""
    return {
        "device": device.type,
        "name": device.name,
        "driver": device.driver,
        "torch": environment.torch_version,
        "threads": environment.threads,
        "proofs": [asdict(proof) for proof in proofs],
    }
