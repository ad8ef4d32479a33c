"""`ampbench doctor`: describe this machine and installation, find causes of bad measurements, check stored runs."""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from ampbench import __version__, store
from ampbench.cli.options import DEFAULT_RESULTS, Format, Option
from ampbench.cli.printing import OutputFormat, print_document, print_note, write_file
from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import format_bytes
from ampbench.drive.fitness import device_findings, inspect
from ampbench.drive.servers import probe, server_environment
from ampbench.errors import CASE_FAILED, AmpbenchError, UsageError
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.kinds import CHECK
from ampbench.records.labels import arithmetic, emulated_of, slower
from ampbench.records.measured import MATMUL
from ampbench.show import studies
from ampbench.show.document import Block, Document, Section, as_sentence, json_document, record_data
from ampbench.show.wording import spelled
from ampbench.studies.ceilings import datasheet_of
from ampbench.studies.check import diagnosis

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
            help="Compare ampbench's numbers on this card, or CPU, with other tools'. 90 s; exit code 1 if one fails.",
        ),
    ] = False,
    format: Format,
) -> int:
    """Describe this machine and installation, and name causes of bad measurements with their remedies.

    \b
    Examples:
      ampbench doctor
      ampbench doctor --prove               also written to results/device
      ampbench doctor --results results     exit code 3 if a stored run is damaged
      ampbench doctor --json
    """
    if format not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise UsageError(f"doctor prints --format table or json, not {format}")

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
        "Fitness to measure": [
            line
            for finding in findings
            for line in (
                f"{'!' if finding.grave else '·'} {finding.what}",
                f"  why: {finding.why}",
                f"  do:  {finding.remedy}",
            )
        ]
        or ["no cause of bad measurements found"],
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
    filled = [section for title, lines in sections.items() if (section := _section(title, lines)).blocks]
    print_document(Document(sections=lambda: filled, data=lambda: data), format)
    return CASE_FAILED if damaged else 0


def _prove(results: Path, format: OutputFormat) -> int:
    """Print and store the proofs on this machine's device; return 0 if at least one holds and none fails, else 1."""
    environment = probe()
    device, proofs = prove(environment)
    known = {"device": device.type, "name": device.name, "driver": device.driver, "torch": environment.torch_version}
    data = known | {"threads": environment.threads, "proofs": proofs}
    lines = [
        f"{proof['outcome']}: {proof['question']}: "
        + spelled("{reason}" if proof["outcome"] == NOT_ASKED else SENTENCES[proof["question"]], proof["facts"])
        for proof in proofs
    ]
    sections = [_section(device.name or device.type, lines)]
    print_document(Document(sections=lambda: sections, data=lambda: data), format)
    path = results / "device" / f"{re.sub('[^a-z0-9]+', '-', (device.name or device.type).lower()).strip('-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json_document(data))
    print_note(f"stored in {path}")
    outcomes = {proof["outcome"] for proof in proofs}
    return 0 if OK in outcomes and FAILED not in outcomes else 1


def prove(environment: Environment) -> tuple[DeviceDescription, list[dict[str, Any]]]:
    """Return the accelerator of this machine, else its CPU, and for each question the outcome with its facts.

    On a card that torch cannot use, no question can be asked.
    """
    cards = [device for device in environment.devices if device.type != "cpu" and (device.available or device.unusable)]
    device = next(iter(cards), environment.devices[0])
    proofs: list[dict[str, Any]] = []
    try:
        if not device.available:
            raise AmpbenchError(device.reason)
        answers = json.loads(_asked("-m", "ampbench.studies.proof_measure", device.type))
    except AmpbenchError as error:
        answers = {question: {"error": str(error)} for question in JUDGES}
    for question, judge in JUDGES.items():
        answer = answers.get(question, {})
        try:
            if reason := answer.get("error"):
                raise AmpbenchError(reason)
            if answer.get("spread", 0.0) > NOISE:
                raise AmpbenchError(f"times of one loop differ by {answer['spread']:.1%}: leave the machine alone")
            holds, facts = judge(answer, device)
            proofs.append({"question": question, "outcome": OK if holds else FAILED, "facts": {**answer, **facts}})
        except AmpbenchError as error:
            proofs.append({"question": question, "outcome": NOT_ASKED, "facts": {"reason": str(error)}})
    return device, proofs


def _asked(*arguments: str, **variables: str) -> str:
    """Return the last line that a Python process prints; raise `AmpbenchError` with the last line of its errors."""
    command, environment = [sys.executable, "-P", *arguments], server_environment(os.environ, variables, ())
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise AmpbenchError((done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1])
    return done.stdout.splitlines()[-1]


Judged = tuple[bool, dict[str, Any]]
"""Whether an answer holds, and further facts."""


def _time(answer: Mapping[str, Any], _: DeviceDescription) -> Judged:
    seconds = [answer[name] for name in ("ampbench", "timer", "clock")]
    return max(seconds) / min(seconds) - 1 <= APART, {}


def _memory(answer: Mapping[str, Any], device: DeviceDescription) -> Judged:
    plain = int(_asked("-c", PLAIN, device.type, **OWN_MAPPINGS))
    limit = MEMORY_APART.get(device.type, MEMORY_APART[""])
    return abs(answer["ampbench"] - plain) <= limit, {"plain": plain, "limit": limit}


def _precisions(answer: Mapping[str, Any], _: DeviceDescription) -> Judged:
    """Judge the errors of products; name each dtype that the device refuses, with the reason."""
    measured = {dtype: row for dtype, row in answer.items() if "error" not in row}
    texts = [
        f"{name} {row['ampbench']:.1e} ({row['least']:.1e} to {row['most']:.1e})" if name in measured
        else f"{name} refused ({row['error']})"
        for name, row in answer.items()
    ]  # fmt: skip
    holds = all(row["least"] <= row["ampbench"] <= row["most"] for row in measured.values())
    return holds, {"errors": ", ".join(texts)}


def _speed(answer: Mapping[str, Any], device: DeviceDescription) -> Judged:
    """Judge the rate of a product by the card's datasheet, or on a CPU by a loop of torch.mm."""
    peak, against = answer["loop"], "a loop of torch.mm"
    if device.type != "cpu":
        datasheet = datasheet_of(device.name)
        peak, against = datasheet and datasheet.peak(MATMUL, answer["dtype"]), "its datasheet"
        if peak is None:
            raise AmpbenchError(f"ampbench has no datasheet of {device.name}")
    share = answer["ampbench"] / peak
    return LEAST_SHARE <= share <= MOST_SHARE, {"share": share, "against": against}


def _repeatability(_: Mapping[str, Any], device: DeviceDescription) -> Judged:
    """Judge a case against its control in an ordinary run: within 1%, or on a CPU within the interval of its rounds."""
    from ampbench.core.stats import log_t_interval
    from ampbench.judge.rounds import control_ratio

    case = ("--phase", "inference", "--precision", "fp32", "--rounds", "6", "--min-run-time", "200ms", "--json")
    with tempfile.TemporaryDirectory() as folder:
        _asked("-m", "ampbench", "run", "mlp", "--device", device.type, *case, "--results", folder)
        control = control_ratio(store.read_run(store.list_runs(Path(folder))[0]))
    interval = log_t_interval(control.again / control.own) if control is not None else None
    if control is None or interval is None or interval[1] / interval[0] - 1 > WIDEST:
        raise AmpbenchError("rounds of one case are too few or differ too much: leave the machine alone")
    low, high = interval
    holds = abs(control.ratio - 1) <= SAME_APART or (device.type == "cpu" and low <= 1 <= high)
    return holds, {"ratio": control.ratio, "low": low, "high": high}


JUDGES: Mapping[str, Callable[[Mapping[str, Any], DeviceDescription], Judged]] = {
    "time": _time,
    "memory": _memory,
    "precisions": _precisions,
    "speed": _speed,
    "repeatability": _repeatability,
}
"""Judges the answer of `studies.proof_measure` to each question."""
OK, FAILED, NOT_ASKED = "ok", "failed", "could not be asked"
SENTENCES: Mapping[str, str] = {
    "time": (
        "a step takes {ampbench:s} by ampbench, {timer:s} by torch's Timer, {clock:s} by the clock (at most 3% apart)"
    ),
    "memory": "a training step takes {ampbench:B} by ampbench, {plain:B} in a plain script (at most {limit:B} apart)",
    "precisions": "errors of products against fp64: {errors}",
    "speed": "a {size} product in {dtype} reaches {ampbench:FLOP/s}, {share:share} of {against} (50% to 105%)",
    "repeatability": "one case measured twice: {ratio:.4f} times as long (95%: {low:.4f} to {high:.4f})",
}
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
"""Measures the peak memory of the training step of `studies.proof_measure` without ampbench."""
OWN_MAPPINGS = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Makes glibc return freed tensors to the system, so that resident memory has a peak of its own."""
APART, NOISE = 0.03, 0.015
"""The largest relative difference between the tools' times, and between times of one loop that prove anything."""
MEMORY_APART = {"cpu": 8 << 20, "": 2 << 20}
"""The largest difference of peak memory in bytes by device; on a CPU libraries keep some MiB."""
LEAST_SHARE, MOST_SHARE = 0.5, 1.05
"""The least and most of a peak that a large product reaches: clocks may exceed the datasheet, loops are noisy."""
SAME_APART, WIDEST = 0.01, 0.1
"""The largest relative difference of one case from itself, and the widest interval that proves it."""


def _section(title: str, lines: Iterable[str | Block]) -> Section:
    return Section(title, [line if isinstance(line, Block) else Block(line) for line in lines])


def _known(results: Path, environment: Environment) -> list[str]:
    """Return the known defects of an environment, from the runs in a folder, a line each."""
    runs = store.runs_with(store.list_runs(results), lambda header: header.explains == CHECK)
    return studies.lines(diagnosis(list(runs), environment))


def _installation(environment: Environment | None, problem: str) -> list[str]:
    """Return the facts of the installation, a line each."""
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
        "threads": f"{environment.threads} (set with --threads); {len(os.sched_getaffinity(0))} CPUs usable",
        "machine": f"{machine}{memory}; {environment.system}",
        **{name: f"not usable: {reason}" for name, reason in environment.unavailable.items()},
        "variables": ", ".join(f"{name}={value}" for name, value in environment.variables.items()),
    }
    return _aligned({name: text for name, text in pairs.items() if text})


def _aligned(pairs: dict[str, str]) -> list[str]:
    width = max(map(len, pairs))
    return [f"{name:{width}}  {text}" for name, text in pairs.items()]


def _devices(devices: Sequence[DeviceDescription]) -> Iterator[str | Block]:
    """Yield a table of devices and lines about their special traits."""
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
        if device.available and (emulated := emulated_of(device, PRECISIONS)):
            factors = " and ".join(f"{dtype}, {slower(device, dtype)}" for dtype in emulated)
            yield f"{device.type} emulates {factors}: a run measures it only where --precision names it"


def _arithmetic(device: DeviceDescription, dtype: str) -> str:
    """Return how the device multiplies matrices of a dtype: as in "emulated"."""
    if dtype == "tf32":
        return "native" if device.tf32 else "none"
    if dtype == "fp64" and not device.float64:
        return "none"
    return arithmetic(device).get(dtype, "native" if dtype in ("fp32", "fp64") else "unknown")
