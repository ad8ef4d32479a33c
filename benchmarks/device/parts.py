"""The parts of the proof for an accelerator, as data: what each item does, proves, may take and is planned to take.

An item is a function of `asking` or `against`, run in a process of its own. To add one, add a row to a part whose
plan leaves room for it (`SPARE`); a file of `tests/device` needs a row, too. Needs nothing but Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

ASKING, AGAINST = "benchmarks.device.asking", "benchmarks.device.against"

SECONDS = 540
"""What a part may take, all in all: an item that would go beyond is cut off or not run."""
SPARE = 0.2
"""What is planned of a part's items leaves this share of its seconds."""
PACKING = 20
"""Seconds of these that are kept for the summary and for packing."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to prove: `does` ("package.module:function") is given `asked`, and ended after `limit` seconds.

    `planned` are the seconds that it is expected to take on an H200 (docs/device.md says from what); `proves` is told
    in the summary. Where `asked` differs for a rehearsal (`--quick`), `quick` is laid over it.
    """

    name: str
    limit: int
    planned: int
    does: str
    proves: str
    asked: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    quick: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Part:
    """Some items, done in this order after `MACHINE`, without which there is nothing to do, in `seconds` at most."""

    name: str
    proves: str
    items: tuple[Item, ...]
    seconds: int = SECONDS


MACHINE = Item(
    "machine", 120, 15, f"{AGAINST}:machine",
    "Python, torch and packages are there, the device answers; who else uses it, MIG, clocks and power limits",
)  # fmt: skip


def _test(name: str, limit: int, planned: int, proves: str) -> Item:
    return Item(
        f"tests {name}",
        limit,
        planned,
        f"{ASKING}:tests",
        proves,
        {"file": f"tests/device/test_{name}.py"},
    )


def _run(name: str, limit: int, planned: int, proves: str, *arguments: str, quick: tuple[str, ...] = ()) -> Item:
    """Return an item that is `ampbench run`; with --quick, `quick` comes after its arguments and is what counts."""
    return Item(
        name,
        limit,
        planned,
        f"{ASKING}:run",
        proves,
        {"arguments": arguments},
        {"arguments": (*arguments, *quick)},
    )


def _study(name: str, limit: int, planned: int, proves: str, *arguments: str, quick: tuple[str, ...] = ()) -> Item:
    """Return an item that is another verb of ampbench, whose run file is kept and must have no failure."""
    return Item(
        name,
        limit,
        planned,
        f"{ASKING}:verb",
        proves,
        {"arguments": arguments},
        {"arguments": (*arguments, *quick)},
    )


HALVES = ("--precision", "fp32", "--precision", "bf16_autocast", "--precision", "fp16_autocast")
TINY = ("--preset", "tiny")
FEW = ("--blocks", "8")
ONCE = ("--phase", "inference")
LARGE = ("--preset", "large", "--rounds", "1", "--min-run-time", "0.05")

PARTS = (
    Part(
        "tests", "what is tested on an accelerator alone, and that it is there",
        (
            _study("doctor", 60, 10, "the machine is described without an error", "doctor"),
            _test("accelerator", 200, 100, "every workload, precision and phase is measured or skipped with a reason"),
            _test("ceilings_on_device", 90, 35, "ceilings lie below the datasheet, half attains more than fp32"),
            _test("flops_on_device", 130, 75, "operations counted as on the CPU; no case is above the ceilings"),
            _test("convergence_on_device", 60, 30, "every precision trains and learns"),
            _test("input_storage_on_device", 80, 25, "inputs in half; compiled training errs no more than eager"),
            _test("scaler_on_device", 45, 12, "GradScaler's settings train"),
            _run("graphs", 130, 80, "torch.compile with CUDA graphs, where the device has them",
                 "mlp", "transformer_encoder", "--path", "compiled-reduce-overhead", *HALVES, "--preset", "small",
                 "--rounds", "1", quick=(*TINY, "--path", "compiled")),
            _test("scope_on_device", 60, 20, "scopes of autocast: stale weights, memory kept, loss in fp32"),
        ),
    ),
    Part(
        "suite", "the default suite in every precision and both phases, eager, traced and compiled",
        (
            _run("suite large", 240, 140, "the default suite at the preset for accelerators",
                 "--preset", "large", quick=TINY),
            _run("suite small", 120, 70, "the default suite at the preset for CPUs, as it was measured there",
                 "--preset", "small", "--rounds", "2", quick=TINY),
            _run("suite traced", 80, 40, "the default suite, traced and frozen under autocast",
                 "--preset", "large", "--path", "traced", "--phase", "inference", "--rounds", "1", quick=TINY),
            _run("suite compiled", 160, 120, "torch.compile in both phases, with compile times",
                 "mlp", "transformer_encoder", "--path", "eager", "--path", "compiled", *HALVES, "--preset", "large",
                 "--rounds", "1", quick=TINY),
        ),
    ),
    Part(
        "networks", "every network there is, at the large preset in every precision",
        (
            _run("all in inference", 240, 170, "every workload, one round",
                 "all", *LARGE, "--phase", "inference", quick=TINY),
            _run("all in training", 260, 215, "every workload that trains, one round",
                 "all", *LARGE, "--phase", "training", quick=TINY),
        ),
    ),
    Part(
        "truth", "what ampbench says, held against fake tensors, torch's own counts and timers, and the datasheet",
        (
            Item("rules", 90, 40, f"{AGAINST}:rules", "each autocast rule on the device, and on fake tensors of it"),
            Item("casts", 80, 30, f"{AGAINST}:casts", "each cast of a forward pass on the device, and on fake tensors"),
            Item("headroom", 90, 35, f"{AGAINST}:headroom", "magnitudes on the device, and on the CPU",
                 {"workloads": ("mlp", "transformer_encoder", "conv_stack")}, {"workloads": ("mlp",)}),
            Item("memory", 70, 20, f"{AGAINST}:memory", "peaks, and what torch's memory statistics and arithmetic say"),
            Item("time", 80, 30, f"{AGAINST}:times", "times of steps, and those of torch's own Timer and events"),
            Item("ceilings", 80, 40, f"{AGAINST}:ceilings", "what each operation attains, and the datasheet",
                 {"arguments": ("--seconds", "1")},
                 {"arguments": ("--seconds", "300ms", "--dtype", "fp32", "--dtype", "bf16")}),
            _test("launches_on_device", 130, 70, "how busy it is; recorded and compiled steps do what eager ones do"),
            Item("check", 130, 60, f"{ASKING}:check", "known defects of mixed precision in this torch, on this device"),
        ),
    ),
    Part(
        "decisions", "whether a slowdown of 5 % is found, and none where there is none",
        (
            Item("control", 170, 110, f"{ASKING}:control", "the device against itself: false alarms, what can be seen",
                 {"arguments": ("mlp", "transformer_encoder", "conv_stack", *HALVES, *ONCE, "--blocks", "12")},
                 {"arguments": ("mlp", *HALVES[:4], *TINY, *ONCE, *FEW)}),
            Item("slowdown of 5 %", 150, 90, f"{ASKING}:planted", "one layer more in twenty is found, fp32 and bf16",
                 {"changed": 1}, {"changed": 1, "arguments": ("--set", "width=256", "--set", "batch=64", *FEW)}),
            Item("no slowdown", 150, 90, f"{ASKING}:planted", "the same under another name is not called slower",
                 {"changed": 0}, {"changed": 0, "arguments": ("--set", "width=256", "--set", "batch=64", *FEW)}),
        ),
    ),
    Part(
        "training", "whole trainings in fp16 and bf16 as the device computes them, and the page of all of it",
        (
            _study("convergence", 200, 130, "trainings in every precision, judged by held-out data, against fp64",
                   "study", "convergence", quick=("--steps", "20", "--seeds", "2")),
            _study("scaler", 70, 45, "loss scaling in fp16 as the device computes it",
                   "study", "scaler", "mlp", "unet", "--preset", "small", "--steps", "100",
                   quick=(*TINY, "--steps", "10")),
            _study("scope", 60, 25, "the scopes of autocast",
                   "study", "scope", "mlp", "transformer_encoder", "--preset", "small", quick=TINY),
            _study("input storage", 60, 25, "inputs stored in half",
                   "study", "input-storage", "mlp", "transformer_encoder", "--preset", "small", quick=TINY),
            _study("keep-fp32", 50, 30, "which modules to keep in fp32",
                   "explain", "keep-fp32", "transformer_encoder", "--preset", "small", "--max-error", "2e-3",
                   "--max-trials", "12", quick=TINY),
            Item("report", 50, 15, f"{ASKING}:report", "the page of this part's runs"),
        ),
    ),
)  # fmt: skip
"""What `make device` does, part by part."""


def _those(*names: str) -> tuple[Item, ...]:
    found = {item.name: item for part in PARTS for item in part.items}
    return tuple(found[name] for name in names)


CARD = Part(
    "card", "what a person with a card and 20 minutes can send back as one file (docs/xpu.md)",
    _those(
        "doctor", "rules", "casts", "memory", "time", "ceilings", "check", "tests accelerator", "suite small",
        "headroom", "scaler", "tests scope_on_device", "tests input_storage_on_device",
    ),
    seconds=18 * 60,
)  # fmt: skip
"""A part of its own, which `make device` leaves out: the most telling items of the others."""

EVERY = {part.name: part for part in (*PARTS, CARD)}


def table() -> str:
    """Return every item as rows of a Markdown table, as docs/device.md has them: part, item, plan, limit, proof."""
    lines = ["| part | item | planned | limit | proves |", "|---|---|---|---|---|"]
    lines.append(f"| each | {MACHINE.name} | {MACHINE.planned} s | {MACHINE.limit} s | {MACHINE.proves} |")
    for part in PARTS:
        planned = MACHINE.planned + sum(item.planned for item in part.items) + PACKING
        lines.append(f"| **{part.name}** | | **{planned} s** | **{part.seconds} s** | {part.proves} |")
        lines += [f"| | {one.name} | {one.planned} s | {one.limit} s | {one.proves} |" for one in part.items]
    return "\n".join(lines)
