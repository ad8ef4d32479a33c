"""`ampbench doctor`: what this machine and installation can do, what spoils measurements, are stored runs whole."""

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ampbench import __version__
from ampbench.cli.options import DEFAULT_RESULTS, Format, Option
from ampbench.cli.printing import OutputFormat, print_document, print_note, write_files
from ampbench.errors import CASE_FAILED, AmpbenchError, UsageError
from ampbench.records.kinds import CHECK
from ampbench.show.data import json_document, record_data
from ampbench.show.document import Block, Document, Section, as_sentence

if TYPE_CHECKING:
    from ampbench.drive.fitness import Spoiler
    from ampbench.records.case import DeviceDescription, Environment

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")

CheckedResults = Annotated[
    Path | None, Option("--results", metavar="DIR", help="Also check every run file in DIR and below it.")
]


def command(
    *,
    results: CheckedResults = None,
    prove: Annotated[
        bool,
        Option(
            "--prove",
            help="Hold ampbench's numbers on this card, or CPU, against other tools'. 90 s; exit code 1 if one fails.",
        ),
    ] = False,
    format: Format,
) -> int:
    """Say what this machine and installation can do, what would spoil measurements, and what to do about it.

    \b
    Examples:
      ampbench doctor
      ampbench doctor --prove               also written to results/device
      ampbench doctor --results results     exit code 3 if a stored run is damaged
      ampbench doctor --json
    """
    if format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"doctor prints --format table or json, not {format}")
    from ampbench import store
    from ampbench.drive.fitness import device_findings, inspect
    from ampbench.drive.servers import probe

    if prove:
        return _prove(results or DEFAULT_RESULTS, format)
    if results is not None:
        store.check_folder(results)
    watched = cache(inspect)
    checked = cache(lambda: {} if results is None else {str(path): why for path, why in store.check_results(results)})
    environment, problem = None, ""
    try:  # the machine is watched, and files are checked, while the worker imports torch
        environment = probe(meanwhile=lambda: (watched(), checked()))
    except AmpbenchError as error:
        problem = str(error)
    known = [] if environment is None else _known(results or DEFAULT_RESULTS, environment)
    findings = watched() + ([] if environment is None else device_findings(environment))
    findings.sort(key=lambda finding: not finding.grave)
    damaged = [why for why in checked().values() if why]
    unusable = [device for device in environment.devices if device.unusable] if environment else []
    sections = {
        "Unusable devices": [f"torch cannot use {device.type}: {device.reason}" for device in unusable],
        "Installation": _installation(environment, problem),
        "Devices": _devices(environment.devices) if environment else [Block("unknown: only torch can tell")],
        "Known defects": map(as_sentence, known),
        "Fitness to measure": _fitness(findings),
    }
    if results is not None:
        whole = f"{len(checked()) - len(damaged)} of {len(checked())} are whole"
        sections[f"Stored runs in {results}"] = [*(f"damaged: {why}" for why in damaged), whole]
    data = {
        "ampbench": __version__,
        "environment": None if environment is None else record_data(environment),
        "problem": problem or None,
        "findings": [asdict(finding) for finding in findings],
        "known": known,
    } | ({} if results is None else {"results": checked()})
    shown = [section for title, lines in sections.items() if (section := _section(title, lines)).blocks]
    print_document(Document(sections=lambda: shown, data=lambda: data, columns=(), rows=list), format)
    return CASE_FAILED if damaged else 0


def _prove(results: Path, format: OutputFormat) -> int:
    """Print and store what is proved of this machine's device; return 1 unless something holds and nothing fails."""
    from ampbench.cli import proof
    from ampbench.drive.servers import probe

    environment = probe()
    device, proofs = proof.prove(environment)
    data = proof.as_data(device, environment, proofs)
    sections = [_section(device.name or device.type, [each.sentence for each in proofs])]
    print_document(Document(sections=lambda: sections, data=lambda: data, columns=(), rows=list), format)
    path = results / "device" / f"{proof.slug(device.name or device.type)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: json_document(data)})
    print_note(f"stored in {path}")
    outcomes = {each.outcome for each in proofs}
    return 0 if proof.Outcome.OK in outcomes and proof.Outcome.FAILED not in outcomes else 1


def _section(title: str, lines: Iterable[str | Block]) -> Section:
    return Section(title, [line if isinstance(line, Block) else Block(line) for line in lines])


def _known(results: Path, environment: "Environment") -> list[str]:
    """Return in lines what the whole runs of a folder know of an environment."""
    from ampbench.show import study_words
    from ampbench.store import list_runs, runs_with
    from ampbench.studies.check import diagnosis

    runs = runs_with(list_runs(results), lambda header: header.explains == CHECK)
    return study_words.lines(diagnosis(list(runs), environment))


def _fitness(findings: "Sequence[Spoiler]") -> Iterator[str]:
    """Yield what spoils measurements, why, and what to do."""
    for finding in findings:
        yield f"{'!' if finding.grave else '·'} {finding.what}"
        yield f"  why: {finding.why}"
        yield f"  do:  {finding.remedy}"
    if not findings:
        yield "nothing found that would spoil measurements"


def _installation(environment: "Environment | None", problem: str) -> list[str]:
    """Return name and text of everything worth knowing of the installation."""
    from ampbench.core.units import format_bytes

    if environment is None:
        return _aligned({"ampbench": __version__, "python": platform.python_version(), "torch": problem})
    commit = f" ({environment.torch_commit[:10]})" if environment.torch_commit else ""
    builds = {"CUDA": environment.cuda_version, "cuDNN": environment.cudnn_version, "XPU": environment.xpu_version}
    built = ", ".join(f"{name} {version}" for name, version in builds.items() if version)
    machine = f"{environment.host}: {environment.cpu}, {environment.cpu_count} logical CPUs"
    memory = "" if environment.memory_bytes is None else f", {format_bytes(environment.memory_bytes)} of memory"
    packages = {
        "numpy": environment.numpy_version, "torchvision": environment.torchvision_version, **environment.packages,
    }  # fmt: skip
    pairs = {
        "ampbench": __version__,
        "python": environment.python_version,
        "torch": f"{environment.torch_version}{commit}{f', built for {built}' if built else ''}",
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        "compiler": environment.compiler or "none: --path compiled needs a C++ compiler (apt install g++)",
        "threads": f"{environment.threads} (set with --threads); {len(os.sched_getaffinity(0))} CPUs are ours to use",
        "machine": f"{machine}{memory}; {environment.system}",
        **{name: f"not usable: {reason}" for name, reason in environment.unavailable.items()},
        "variables": ", ".join(f"{name}={value}" for name, value in environment.variables.items()),
    }
    return _aligned({name: text for name, text in pairs.items() if text})


def _aligned(pairs: dict[str, str]) -> list[str]:
    width = max(map(len, pairs))
    return [f"{name:{width}}  {text}" for name, text in pairs.items()]


def _devices(devices: "Sequence[DeviceDescription]") -> Iterator[str | Block]:
    """Yield a table of devices and, a line for what is special about each."""
    from ampbench.core.units import format_bytes
    from ampbench.records.labels import emulated_halves, slower

    headers = ("device", *DTYPES, "autocast", "memory", "name")
    rows = [
        [
            device.type, *(_arithmetic(device, dtype) for dtype in DTYPES), device.autocast_dtype or "",
            "" if device.memory_bytes is None else format_bytes(device.memory_bytes), device.name,
        ]
        for device in devices
        if device.available
    ]  # fmt: skip
    yield Block("", headers, rows, whole=headers[:-1])
    for device in devices:
        if not (device.available or device.unusable):
            yield f"{device.type} is not available: {device.reason}"
        if device.available and device.type != "cpu":
            yield f"{device.type} is measured with cudnn.benchmark off, and small networks find their data in its cache"
        if device.available and (emulated := emulated_halves(device)):
            factors = " and ".join(f"{dtype}, {slower(device, dtype)}" for dtype in emulated)
            yield f"{device.type} emulates {factors}: a run measures it only where --precision names it"


def _arithmetic(device: "DeviceDescription", dtype: str) -> str:
    """Return how the device multiplies matrices of a dtype."""
    from ampbench.records.labels import arithmetic

    if dtype == "tf32":
        return "native" if device.tf32 else "none"
    if dtype == "fp64" and not device.float64:
        return "none"
    return arithmetic(device).get(dtype, "native" if dtype in ("fp32", "fp64") else "unknown")
