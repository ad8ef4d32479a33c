"""The parts of the proof for an accelerator, as data: what each item does, proves, may take and is planned to take.

An item is a function of `asking` or `against`, run in a process of its own. To add one, add a row to a part whose
plan leaves room for it (`SPARE`); a file of `tests/device` needs a row, too. Needs nothing but Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

ASKING, AGAINST = "benchmarks.device.asking", "benchmarks.device.against"

SECONDS = 540
"""What a part may take, all in all: an item that would go beyond is cut off or not run."""
SPARE = 0.15
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


def _asked(
    by: str, name: str, limit: int, planned: int, proves: str, *arguments: str, quick: tuple[str, ...] = ()
) -> Item:
    """Return an item that asks ampbench `by` a function; with --quick, `quick` comes after the arguments and counts."""
    return Item(
        name,
        limit,
        planned,
        f"{ASKING}:{by}",
        proves,
        {"arguments": arguments},
        {"arguments": (*arguments, *quick)},
    )


_run = partial(_asked, "run")
"""An item that is `ampbench run`."""
_study = partial(_asked, "verb")
"""An item that is another verb of ampbench, whose run file is kept and must have no failure."""


def _passes(name: str, limit: int, planned: int, proves: str, *arguments: str, quick: tuple[str, ...] = ()) -> Item:
    """Return an item that is `ampbench run` for as long as its limit allows, and proves by memory and errors alone."""
    return _asked(
        "passes", name, limit, planned, proves, *arguments, "--budget", "1", "--min-run-time", "0.01", quick=quick
    )


HALVES = ("--precision", "fp32", "--precision", "bf16_autocast", "--precision", "fp16_autocast")
TINY = ("--preset", "tiny")
FEW = ("--rounds", "8")
MORE = ("--rounds", "24")
ONCE = ("--phase", "inference")
LARGE = ("--preset", "large")

PARTS = (
    Part(
        "tests", "what is tested on an accelerator alone, and that it is there",
        (
            _study("doctor", 60, 10, "the machine is described without an error", "doctor"),
            _test("accelerator", 240, 160, "precisions and phases are measured, skipped or failed with a reason"),
            _test("ceilings_on_device", 100, 50, "ceilings lie below the datasheet, half attains more than fp32"),
            _test("flops_on_device", 160, 110, "operations counted as on the CPU; no case is above the ceilings"),
            Item("check", 130, 60, f"{ASKING}:check", "known defects of mixed precision in this torch, on this device"),
        ),
    ),
    Part(
        "suite", "the default suite in every precision and both phases, eager and traced",
        (
            _run("suite large", 300, 190, "the default suite at the preset for accelerators, timed",
                 "--preset", "large", "--budget", "20", quick=TINY),
            _run("sustained", 130, 85, "rounds of seconds: what the device keeps up, with its clock and power",
                 "mlp", "transformer_encoder", *HALVES[:4], *LARGE, "--rounds", "1", quick=TINY),
            _passes("suite traced", 90, 70, "the default suite, traced and frozen under autocast",
                    "--preset", "large", "--path", "traced", *ONCE, quick=TINY),
            _passes("suite small", 90, 70, "the default suite at the preset for CPUs, as it was measured there",
                    "--preset", "small", quick=TINY),
        ),
    ),
    Part(
        "networks", "every network there is, at the large preset in every precision: memory, errors and magnitudes",
        (
            _passes("all in inference", 165, 145, "every workload", "all", *LARGE, *ONCE, quick=TINY),
            _passes("all in training", 225, 205, "every workload that trains", "all", *LARGE, "--phase", "training",
                    quick=TINY),
            Item("headroom", 90, 35, f"{AGAINST}:headroom", "magnitudes on the device, and on the CPU",
                 {"workloads": ("mlp", "transformer_encoder", "conv_stack")}, {"workloads": ("mlp",)}),
        ),
    ),
    Part(
        "truth", "what ampbench says, held against fake tensors, torch's own counts and timers, and the datasheet",
        (
            Item("rules", 90, 40, f"{AGAINST}:rules", "each autocast rule on the device, and on fake tensors of it"),
            Item("casts", 80, 30, f"{AGAINST}:casts", "each cast of a forward pass on the device, and on fake tensors"),
            Item("memory", 70, 20, f"{AGAINST}:memory", "peaks, and what torch's memory statistics and arithmetic say"),
            Item("time", 80, 30, f"{AGAINST}:times", "times of steps, and those of torch's own Timer and events"),
            Item("ceilings", 80, 40, f"{AGAINST}:ceilings", "what each operation attains, and the datasheet",
                 {"arguments": ("--seconds", "1")},
                 {"arguments": ("--seconds", "300ms", "--dtype", "fp32", "--dtype", "bf16")}),
            Item("energy", 50, 20, f"{AGAINST}:energy", "the integral of the power, and the counter of energy"),
            Item("sampling", 60, 35, f"{AGAINST}:sampling", "what reading its sensors costs a step"),
            _test("launches_on_device", 280, 200, "how busy it is; recorded and compiled steps do what eager ones do"),
        ),
    ),
    Part(
        "decisions", "whether a slowdown of 5 % is found, and none where there is none",
        (
            Item("control", 240, 160, f"{ASKING}:control", "the device against itself: false alarms, what can be seen",
                 {"arguments": ("mlp", "transformer_encoder", "--precision", "bf16_autocast", *ONCE, *FEW,
                                "--min-run-time", "0.3")},
                 {"arguments": ("mlp", *HALVES[:4], *TINY, *ONCE, *FEW)}),
            Item("slowdown of 5 %", 290, 210, f"{ASKING}:planted", "one layer more in twenty is found, fp32 and bf16",
                 {"changed": 1}, {"changed": 1, "arguments": ("--set", "width=512", "--set", "batch=256", *MORE)}),
        ),
    ),
    Part(
        "training", "whole trainings in fp16 and bf16 as the device computes them, and the page of all of it",
        (
            _study("training", 200, 130, "trainings in every precision, judged by held-out data, against fp64",
                   "study", "training", quick=("--steps", "20", "--seeds", "2")),
            _study("settings", 70, 45, "loss scaling in fp16 as the device computes it",
                   "study", "training", "mlp", "--preset", "small", "--steps", "100", "--setting", "all",
                   quick=(*TINY, "--steps", "10", "--seeds", "1")),
            _study("scope", 60, 25, "the scopes of autocast",
                   "study", "scope", "mlp", "transformer_encoder", "--preset", "small", quick=TINY),
            _study("input storage", 60, 25, "inputs stored in half",
                   "study", "input-storage", "mlp", "transformer_encoder", "--preset", "small", quick=TINY),
            _study("keep-fp32", 50, 30, "which modules to keep in fp32",
                   "explain", "keep-fp32", "transformer_encoder", "--preset", "small", "--max-error", "2e-3",
                   "--max-trials", "12", quick=TINY),
            Item("report", 50, 15, f"{ASKING}:report", "the page of this part's runs"),
            _test("training_on_device", 60, 30, "every precision trains and learns"),
            _test("input_storage_on_device", 80, 40, "inputs in half; compiled training errs no more than eager"),
            _test("scope_on_device", 60, 20, "scopes of autocast: stale weights, memory kept, loss in fp32"),
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
        "headroom", "settings", "tests scope_on_device", "tests input_storage_on_device",
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
