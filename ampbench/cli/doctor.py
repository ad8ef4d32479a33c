"""`ampbench doctor`: what this machine and installation can do, what spoils measurements, are stored runs whole."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ampbench import __version__
from ampbench.cli.options import DEFAULT_RESULTS, Format, Option
from ampbench.cli.printing import OutputFormat, print_document
from ampbench.errors import CASE_FAILED, AmpbenchError, UsageError
from ampbench.records.kinds import CHECK
from ampbench.show.data import record_data

if TYPE_CHECKING:
    from ampbench.drive.fitness import Spoiler
    from ampbench.records.case import DeviceDescription, Environment
    from ampbench.show.document import Block, Section

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")

CheckedResults = Annotated[
    Path | None, Option("--results", metavar="DIR", help="Also check every run file in DIR and below it.")
]


def command(
    *,
    results: CheckedResults = None,
    format: Format,
) -> int:
    """Say what this machine and installation can do, what would spoil measurements, and what to do about it.

    \b
    Examples:
      ampbench doctor
      ampbench doctor --results results     exit code 3 if a stored run is damaged
      ampbench doctor --json
    """
    if format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"doctor prints --format table or json, not {format}")
    from ampbench.drive.fitness import device_findings, inspect
    from ampbench.show.document import Document
    from ampbench.store import check_folder

    if results is not None:
        check_folder(results)

    # once each, and first while the worker imports torch
    watched, checked = cache(inspect), cache(partial(_check, results))

    def meanwhile() -> None:
        watched()
        checked()

    environment, problem = _probe(meanwhile)
    findings = watched() + ([] if environment is None else device_findings(environment))
    findings.sort(key=lambda finding: not finding.grave)
    known = [] if environment is None else _known(results or DEFAULT_RESULTS, environment)
    stored = checked()

    def sections() -> "list[Section]":
        own = _sections(environment, problem, findings, known)
        return own if stored is None else [*own, _stored_section(results, stored)]

    document = Document(
        sections=sections,
        data=lambda: _document(environment, problem, findings, known, stored),
        columns=(),
        rows=list,
    )
    print_document(document, format)
    return CASE_FAILED if stored and any(stored.values()) else 0


def _probe(meanwhile: Callable[[], object]) -> "tuple[Environment | None, str]":
    """Return the environment of a worker, or why there is none; `meanwhile` is done while that starts."""
    from ampbench.drive.servers import probe

    try:
        return probe(meanwhile=meanwhile), ""
    except AmpbenchError as error:
        return None, str(error)


def _check(results: Path | None) -> dict[str, str | None] | None:
    """Return what is wrong with each file of a folder, if there is one."""
    from ampbench import store

    return None if results is None else {str(path): problem for path, problem in store.check_results(results)}


def _document(
    environment: "Environment | None",
    problem: str,
    findings: "list[Spoiler]",
    known: list[str],
    stored: Mapping[str, str | None] | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "ampbench": __version__,
        "environment": None if environment is None else record_data(environment),
        "problem": problem or None,
        "findings": [asdict(finding) for finding in findings],
        "known": known,
    }
    if stored is not None:
        document["results"] = stored
    return document


def _known(results: Path, environment: "Environment") -> list[str]:
    """Return in lines what the whole runs of a folder know of an environment."""
    from ampbench.show import study_words
    from ampbench.store import list_runs, runs_with
    from ampbench.studies.check import diagnosis

    runs = runs_with(list_runs(results), lambda header: header.explains == CHECK)
    return study_words.lines(diagnosis(list(runs), environment))


def _sections(
    environment: "Environment | None",
    problem: str,
    findings: "list[Spoiler]",
    known: list[str],
) -> "list[Section]":
    from ampbench.show.document import Block, Section, as_sentence

    if environment is None:
        installation = {"ampbench": __version__, "python": platform.python_version(), "torch": problem}
        devices = [Block("unknown: only torch can tell")]
    else:
        installation = _installation(environment)
        devices = [_device_table(environment), *map(Block, _device_remarks(environment))]
    width = max(map(len, installation))
    sections = [
        Section("Installation", [Block(f"{name:{width}}  {text}") for name, text in installation.items()]),
        Section("Devices", devices),
    ]
    if known:
        sections.append(Section("Known defects", [Block(as_sentence(line)) for line in known]))
    lines = [
        line
        for finding in findings
        for line in (
            f"{'!' if finding.grave else '·'} {finding.what}", f"  why: {finding.why}", f"  do:  {finding.remedy}",
        )
    ]  # fmt: skip
    spoilers = map(Block, lines or ["nothing found that would spoil measurements"])
    return [*sections, Section("Fitness to measure", list(spoilers))]


def _stored_section(results: Path | None, stored: Mapping[str, str | None]) -> "Section":
    from ampbench.show.document import Block, Section

    problems = [problem for problem in stored.values() if problem]
    lines = [
        *(f"damaged: {problem}" for problem in problems),
        f"{len(stored) - len(problems)} of {len(stored)} are whole",
    ]
    return Section(f"Stored runs in {results}", list(map(Block, lines)))


def _installation(environment: "Environment") -> dict[str, str]:
    """Return name and text of everything worth knowing of the installation."""
    from ampbench.core.units import format_bytes

    commit = f" ({environment.torch_commit[:10]})" if environment.torch_commit else ""
    builds = {"CUDA": environment.cuda_version, "cuDNN": environment.cudnn_version, "XPU": environment.xpu_version}
    built = ", ".join(f"{name} {version}" for name, version in builds.items() if version)
    machine = f"{environment.host}: {environment.cpu}, {environment.cpu_count} logical CPUs"
    memory = "" if environment.memory_bytes is None else f", {format_bytes(environment.memory_bytes)} of memory"
    pairs = {
        "ampbench": __version__,
        "python": environment.python_version,
        "torch": f"{environment.torch_version}{commit}{f', built for {built}' if built else ''}",
        "torchvision": environment.torchvision_version or "",
        **environment.packages,
        "numpy": environment.numpy_version,
        "compiler": environment.compiler or "none: --path compiled needs a C++ compiler (apt install g++)",
        "threads": f"{environment.threads} (set with --threads); {len(os.sched_getaffinity(0))} CPUs are ours to use",
        "machine": f"{machine}{memory}; {environment.system}",
    }
    for name, reason in environment.unavailable.items():
        pairs[name] = f"not usable: {reason}"
    if environment.variables:
        pairs["variables"] = ", ".join(f"{name}={value}" for name, value in environment.variables.items())
    return {name: text for name, text in pairs.items() if text}


def _device_table(environment: "Environment") -> "Block":
    from ampbench.core.units import format_bytes
    from ampbench.show.document import Block

    rows = []
    for device in environment.devices:
        arithmetic = [_capability(device, dtype) for dtype in DTYPES]
        memory = "" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        rows.append([device.type, *arithmetic, device.autocast_dtype or "", memory, device.name])
    headers = ("device", *DTYPES, "autocast", "memory", "name")
    return Block("", headers, rows, whole=headers[:-1])


def _capability(device: "DeviceDescription", dtype: str) -> str:
    """Return how the device multiplies matrices of a dtype."""
    from ampbench.records.labels import arithmetic

    if not device.available:
        return "–"
    if dtype == "tf32":
        return "native" if device.tf32 else "none"
    if dtype == "fp64" and not device.float64:
        return "none"
    return arithmetic(device).get(dtype, "native" if dtype in ("fp32", "fp64") else "unknown")


def _device_remarks(environment: "Environment") -> list[str]:
    """Return the devices that are absent, and the half dtypes that the others emulate."""
    from ampbench.records.labels import emulated_halves, slower

    remarks = []
    for device in environment.devices:
        if not device.available:
            remarks.append(f"{device.type} is not available: {device.reason}")
        elif emulated := emulated_halves(device):
            factors = " and ".join(f"{dtype}, {slower(device, dtype)}" for dtype in emulated)
            remarks.append(f"{device.type} emulates {factors}: a run measures it only where --precision names it")
    return remarks
