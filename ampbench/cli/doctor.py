"""`ampbench doctor`: what this machine and installation can do, what spoils measurements, are stored runs whole."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampbench import __version__
from ampbench.cli.options import Format, Json, OutputFormat, chosen_format
from ampbench.errors import AmpbenchError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ampbench.records.environments import DeviceDescription, Environment
    from ampbench.running.fitness import Finding

DAMAGED = 3
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")

CheckedResults = Annotated[
    Path | None, typer.Option("--results", help="Also check every stored file of this results folder.")
]


def command(
    results: CheckedResults = None,
    format: Format = OutputFormat.TABLE,
    json: Json = False,
) -> int:
    """Say what this machine and installation can do, what would spoil measurements, and what to do about it.

    \b
    Examples:
      ampbench doctor
      ampbench doctor --results results     exit code 3 if a stored run is damaged
      ampbench doctor --json
    """
    chosen = chosen_format(format, json)
    if chosen not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"doctor prints --format table or json, not {chosen}")
    if results is not None and not results.is_dir():
        raise UsageError(f"there is no results folder {results}")
    from ampbench.running.fitness import inspect

    environment, problem = _probe()
    findings = inspect()
    stored = None if results is None else _check(results)

    if chosen is OutputFormat.JSON:
        from ampbench.cli.printing import print_text
        from ampbench.cli.tables import json_document

        print_text(json_document(_document(environment, problem, findings, stored)))
    else:
        from ampbench.cli.printing import make_console, print_block

        console = make_console()
        for section in _sections(environment, problem, findings, results, stored):
            print_block(console, section)
    return DAMAGED if stored and any(stored.values()) else 0


def _probe() -> "tuple[Environment | None, str]":
    """Return the environment of a worker, or why there is none."""
    from ampbench.running.environment import probe

    try:
        return probe(), ""
    except AmpbenchError as error:
        return None, str(error)


def _check(results: Path) -> dict[str, str | None]:
    from ampbench import store

    return {str(path): problem for path, problem in store.check_results(results)}


def _document(
    environment: "Environment | None", problem: str, findings: "list[Finding]", stored: Mapping[str, str | None] | None
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "ampbench": __version__,
        "environment": None if environment is None else asdict(environment),
        "problem": problem or None,
        "findings": [asdict(finding) for finding in findings],
    }
    return document if stored is None else document | {"results": stored}


def _sections(
    environment: "Environment | None",
    problem: str,
    findings: "list[Finding]",
    results: Path | None,
    stored: Mapping[str, str | None] | None,
) -> "list[RenderableType]":
    from rich.padding import Padding
    from rich.text import Text

    def title(text: str) -> Text:
        return Text(f"\n{text}", style="bold")

    sections: list[RenderableType] = [Text("Installation", style="bold")]
    if environment is None:
        versions = {"ampbench": __version__, "python": platform.python_version(), "torch": problem}
        sections += [_pairs(versions), title("Devices"), Padding(Text("unknown: only torch can tell"), (0, 0, 0, 2))]
    else:
        sections += [
            _pairs(_installation(environment)),
            title("Devices"),
            Padding(_device_table(environment), (0, 0, 0, 2)),
        ]
        sections += [Padding(Text(line), (0, 0, 0, 2)) for line in _device_remarks(environment)]
    sections.append(title("Fitness to measure"))
    if not findings:
        sections.append(Padding(Text("nothing found that would spoil measurements"), (0, 0, 0, 2)))
    for finding in findings:
        sections.append(Text.assemble(("  ! " if finding.grave else "  · ", "bold"), finding.what, no_wrap=False))
        sections.append(Padding(Text(f"why: {finding.why}", style="dim"), (0, 0, 0, 4)))
        sections.append(Padding(Text(f"do:  {finding.remedy}"), (0, 0, 0, 4)))
    if stored is not None:
        sections.append(title(f"Stored runs in {results}"))
        damaged = [said for said in stored.values() if said]
        sections += [Padding(Text(f"damaged: {said}", style="red"), (0, 0, 0, 2)) for said in damaged]
        sections.append(Padding(Text(f"{len(stored) - len(damaged)} of {len(stored)} are whole"), (0, 0, 0, 2)))
    return sections


def _installation(environment: "Environment") -> dict[str, str]:
    """Return name and text of everything worth knowing of the installation."""
    from ampbench.units import format_bytes

    commit = f" ({environment.torch_commit[:10]})" if environment.torch_commit else ""
    builds = {"CUDA": environment.cuda_version, "cuDNN": environment.cudnn_version, "XPU": environment.xpu_version}
    built = ", ".join(f"{name} {version}" for name, version in builds.items() if version)
    memory = "" if environment.memory_bytes is None else f", {format_bytes(environment.memory_bytes)} of memory"
    pairs = {
        "ampbench": __version__,
        "python": environment.python_version,
        "torch": f"{environment.torch_version}{commit}{f', built for {built}' if built else ''}",
        "torchvision": environment.torchvision_version or "",
        "numpy": environment.numpy_version,
        "compiler": environment.compiler or "none: --path compiled needs a C++ compiler (apt install g++)",
        "threads": f"{environment.threads} (set with --threads); {len(os.sched_getaffinity(0))} CPUs are ours to use",
        "machine": f"{environment.host}: {environment.cpu}, {environment.cpu_count} CPUs{memory}; {environment.system}",
    }
    for name, reason in environment.unavailable.items():
        pairs[name] = f"not usable: {reason}"
    if environment.variables:
        pairs["variables"] = ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    return {name: text for name, text in pairs.items() if text}


def _pairs(pairs: Mapping[str, str]) -> "RenderableType":
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in pairs.items():
        table.add_row(f"  {name}", text)
    return table


def _device_table(environment: "Environment") -> "RenderableType":
    from ampbench.cli.listings import listing_table
    from ampbench.units import format_bytes

    rows = []
    for device in environment.devices:
        row = {"device": device.type, "name": device.name, "autocast": device.autocast_dtype}
        row["memory"] = "" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        rows.append(row | {dtype: _capability(device, dtype) for dtype in DTYPES})
    return listing_table(rows, ("device", *DTYPES, "autocast", "memory", "name"))


def _capability(device: "DeviceDescription", dtype: str) -> str:
    """Return how the device multiplies matrices of a dtype."""
    from ampbench.notes import arithmetic

    if not device.available:
        return "–"
    if dtype == "tf32":
        return "native" if device.tf32 else "none"
    if dtype == "fp64" and not device.float64:
        return "none"
    return arithmetic(device).get(dtype, "native" if dtype in ("fp32", "fp64") else "unknown")


def _device_remarks(environment: "Environment") -> list[str]:
    from ampbench.notes import arithmetic

    remarks = []
    for device in environment.devices:
        if not device.available:
            remarks.append(f"{device.type} is not available: {device.reason}")
        emulated = [dtype for dtype, kind in arithmetic(device).items() if kind == "emulated"]
        if device.available and emulated:
            remarks.append(
                f"{device.type} emulates {' and '.join(emulated)}: slower than fp32, and its time says nothing about a "
                "device that has the instructions"
            )
    return remarks
