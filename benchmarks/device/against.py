"""Items that hold what ampbench says against something else: fake tensors, torch's own counts and timers, the CPU.

The device is reached here as a user reaches it, not through `worker/machine`, where that is what is held to account.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import platform
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.benchmark import Timer

from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import format_bytes, format_seconds
from ampbench.records.case import Case
from ampbench.records.casts import CastPass, Tracing, plain_name
from ampbench.records.measured import ATTENTION, CONV
from ampbench.records.ranges import RangePass
from ampbench.records.rules import DTYPES, short_name
from ampbench.records.run import Selection
from ampbench.studies.casts import Casts, stood_for
from ampbench.studies.casts_measure import measure_casts, trace_absent
from ampbench.studies.ceilings import COPY, Ceiling, bandwidth, datasheet_of, share
from ampbench.studies.rules import compare_rules, unobserved
from ampbench.studies.rules_measure import probe_rules
from ampbench.trace.dtypes import is_present
from ampbench.worker import cells
from ampbench.worker.environment import read_environment
from ampbench.worker.machine import Device, open_device, precision_flags
from ampbench.worker.memory import measure_memory
from ampbench.worker.sources import build_workload
from ampbench.worker.step import TrainingStep, build_step
from ampbench.worker.telemetry import NoSourceError, Sampler, Source, mean_power, open_source
from ampbench.worker.timing import time_build
from ampbench.workload import Workload
from benchmarks.device.asking import asked
from benchmarks.device.running import Found, Given, NotHereError
from benchmarks.self.sampling import cost

NEEDED = ("numpy", "pandas", "scipy", "msgspec", "click", "rich", "packaging", "jinja2", "markupsafe", "vl_convert",
          "pytest")  # fmt: skip
"""What the items import, beside torch."""
WITHIN = 0.1
"""How far times by events may lie off on a device."""
TIMED = ("mlp", "transformer_encoder", "conv_stack")
TIMED_IN = ("fp32", "bf16_autocast")


def machine(given: Given) -> Found:
    """Tell what is there; it passes where all packages are, and the device can be used."""
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    facts = {"Python": platform.python_version(), "torch": str(torch.__version__), "system": platform.platform()}
    if is_present(given.device):
        ones = torch.ones(64, 64, device=given.device)
        facts["a product"] = "right" if bool(((ones @ ones) == 64).all()) else "wrong"
    if given.device != "cpu" and is_present(given.device):
        module = torch.get_device_module(given.device)
        with contextlib.suppress(Exception):
            facts |= {name: str(getattr(module.get_device_properties(), name)) for name in ("name", "total_memory")}
        with contextlib.suppress(Exception):
            facts["free memory"] = format_bytes(torch.accelerator.get_memory_info()[0])
    facts |= _nvidia() if given.device == "cuda" else {}
    here = is_present(given.device) and facts["a product"] == "right"
    said = [f"torch {facts['torch']}, Python {facts['Python']}"]
    said.append(facts.get("name", given.device) if here else f"no {given.device} that torch can use{_why(given)}")
    if lacking:
        said.append(f"not installed, and not among the wheels: {', '.join(lacking)} (make device-wheels)")
    if others := facts.get("other processes"):
        said.append(f"others use the device: {others}")
    return Found(here and not lacking, "; ".join(said), ("what", "is"), list(facts.items()))


def _why(given: Given) -> str:
    described = read_environment().device(given.device)
    return f": {described.reason}" if described is not None and described.reason else ""


def _nvidia() -> dict[str, str]:
    """Return what nvidia-smi says of the first GPU and of who uses it; {} without it."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {"nvidia-smi": "not there"}
    wanted = ("driver_version", "mig.mode.current", "power.limit", "power.max_limit", "clocks.sm", "clocks.max.sm",
              "temperature.gpu", "clocks_throttle_reasons.active")  # fmt: skip
    facts = {}
    for name in wanted:
        facts[name] = _line([program, f"--query-gpu={name}", "--format=csv,noheader", "--id=0"])
    others = _line([program, "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader", "--id=0"])
    return facts | {"other processes": others}


def _line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not told: {error}"
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else "not told"


ASKING = ("trace.dtypes", "trace.rules", "studies.casts_measure", "studies.rules_measure")
"""The modules that ask whether a device is here, before they take fake tensors in its place."""


@contextlib.contextmanager
def hidden(device: str) -> Iterator[None]:
    """Within, ampbench takes a device for absent, as on a machine without it, so that fake tensors stand in for it."""

    def is_here(name: str) -> bool:
        return name != device and is_present(name)

    with contextlib.ExitStack() as held:
        for module in ASKING:
            held.enter_context(patch(f"ampbench.{module}.is_present", is_here))
        yield


def _needs(given: Given) -> None:
    if not is_present(given.device):
        raise NotHereError(f"there is no {given.device} here")


def rules(given: Given) -> Found:
    """Probe autocast's rules on the device and on fake tensors of it; it passes where no rule differs."""
    _needs(given)
    dtypes = DTYPES[:1] if given.quick else DTYPES
    seen = probe_rules(given.device, dtypes)
    with hidden(given.device):
        fake = probe_rules(given.device, dtypes)
    changes = compare_rules(fake, seen)
    differ = [one for one in changes if one.field in ("observed", "registered")]
    blind = unobserved(seen, fake)
    tried = sum(one.observed is not None for one in seen.observations)
    said = (
        f"{tried} of {len(seen.observations)} ops and dtypes observed on {given.device}; {len(differ)} rules differ "
        f"from those on fake tensors, {len(blind)} are not seen on these"
    )
    rows = [[short_name(one.op), " ".join(one.dtypes), one.field, one.before, one.after] for one in [*changes, *blind]]
    return Found(tried > 0 and not differ, said, ("op", "autocast to", "of", "fake tensors", given.device), rows)


def _planned(given: Given, workloads: Sequence[str], precisions: Sequence[str], **more: Any) -> list[Any]:
    """Return planned cases, in inference unless `more` says else, without those that are skipped."""
    selection = Selection(
        workloads=list(workloads), precisions=list(precisions), devices=[given.device],
        preset="tiny" if given.quick else "small", **{"phases": ["inference"], **more},
    )  # fmt: skip
    return [planned for planned in cells.plan_cells(selection) if not planned.skip]


def _built(planned: Any) -> tuple[Workload, Case]:
    case = planned.case
    size = {} if case.batch_size is None else {"batch_size": case.batch_size}
    return build_workload(planned.source, dict(case.parameters) | size, 0), case


CAST_IN = ("mlp", "conv_stack", "simple_conv", "transformer_encoder", "decoder_lm", "gru", "unet")


def casts(given: Given) -> Found:
    """Trace the casts of a forward pass on the device and on fake tensors; it passes where these are the same.

    What fused kernels of the device do not cast, and fake tensors take apart, is told but no fault (`stood_for`).
    """
    _needs(given)
    rows, differ, total = [], 0, 0
    for planned in _planned(given, CAST_IN, ("fp16_autocast", "bf16_autocast")):
        workload, case = _built(planned)
        called = f"{case.workload} {case.precision}"
        seen = _casts(measure_casts(workload, case, Tracing(time=False)))
        try:
            with hidden(given.device):
                stood = trace_absent(workload, case, Tracing(time=False))
        except Exception as error:  # noqa: BLE001 - fake tensors refuse what they cannot stand in for
            rows.append([called, "", "fake tensors refuse", str(error)[:200], ""])
            continue
        fake, told = _casts(stood), stood_for(stood.trace, given.device)
        known = [f"{each.facts['name']} is taken apart" for each in told if each.code is Casts.APART]
        total += sum(seen.values())
        for what in sorted(seen.keys() | fake.keys()):
            if seen[what] != fake[what]:
                differ += not known
                rows.append([called, " ".join(what), str(fake[what]), str(seen[what]), "; ".join(known)])
    said = f"{total} casts on {given.device}; {differ} kinds of cast are not as many on fake tensors"
    headers = ("case", "cast (of, from, to, for)", "fake tensors", given.device, "known of")
    return Found(total > 0 and not differ, said, headers, rows)


def _casts(found: CastPass) -> Counter[tuple[str, ...]]:
    """Return how often which cast was made: of what, from and to which dtype, for which op."""
    names = {one.index: plain_name(one.name) for one in found.trace.ops}
    return Counter(
        (one.what, one.from_dtype, one.to_dtype, names.get(one.operation, "") if one.operation is not None else "")
        for one in found.trace.casts
    )


def headroom(given: Given, workloads: Sequence[str]) -> Found:
    """Watch magnitudes on the device and on the CPU; it passes where they agree, which fp32's roundings leave.

    The largest |x| of each module and kind are to agree within 1 %, of updates within 10 %: Adam's first steps divide
    by gradients, however small.
    """
    _needs(given)
    arguments = ["explain", "headroom", *workloads, "--preset", "tiny" if given.quick else "small", "--precision",
                 "fp16_autocast", "--phase", "training"]  # fmt: skip
    _, _, here = asked(given, *arguments)
    _, _, there = asked(dataclasses.replace(given, device="cpu"), *arguments)
    if not (here and there):
        return Found(False, "nothing was stored")
    found, expected = _largest(here[0].of(RangePass)), _largest(there[0].of(RangePass))
    rows, compared = [], 0
    for key, other in expected.items():
        mine = found.get(key)
        compared += 1
        allowed = 0.1 if "update" in key else 0.01
        if mine is None or not math.isclose(mine, other, rel_tol=allowed, abs_tol=1e-30):
            rows.append([*key, f"{other:.6g}", "missing" if mine is None else f"{mine:.6g}"])
    said = f"{compared} largest magnitudes compared with the CPU's, {len(rows)} differ"
    return Found(compared > 0 and not rows, said, ("network", "module", "of", "name", "CPU", given.device), rows)


def _largest(passes: Any) -> dict[tuple[str, ...], float]:
    return {
        (case_id.split("/")[0], one.module, one.what, one.name): one.largest
        for case_id, found in passes.items()
        for one in found.magnitudes
        if one.largest is not None
    }


def memory(given: Given) -> Found:
    """Hold peaks against torch's own statistics of the same step, and against bytes counted by hand."""
    _needs(given)
    device, rows, wrong = open_device(given.device), [], 0
    for name, size, found in _by_hand(given.device):
        near = abs(found - size) <= 0.02 * size + 4096
        wrong += not near
        rows.append([name, format_bytes(size), format_bytes(found), "" if near else "differs"])
    for planned in _planned(given, TIMED, TIMED_IN, phases=["inference", "training"]):
        if given.device == "cpu":
            continue
        workload, case = _built(planned)
        with precision_flags(PRECISIONS[case.precision]):
            told = measure_memory(workload, case, device).peak_bytes
            counted = _torchs_peak(workload, case, device)
        near = told is not None and abs(told - counted) <= 0.02 * counted + (1 << 20)
        wrong += not near
        rows.append([case.case_id, format_bytes(counted), format_bytes(told or 0), "" if near else "differs"])
    return Found(
        bool(rows) and not wrong,
        f"{len(rows)} peaks held against torch's statistics or bytes counted by hand, {wrong} differ",
        ("what", "torch or by hand", "ampbench", ""),
        rows,
    )


def _by_hand(type: str) -> Iterator[tuple[str, int, int]]:
    """Yield bytes by arithmetic and as measured: of a product of 2048 x 2048 numbers in each dtype."""
    size = 2048
    for precision, width in (("fp32", 4), ("bf16_pure", 2)):
        torch.manual_seed(0)
        workload = Workload(module=torch.nn.Linear(size, size, bias=False), inputs=torch.randn(size, size))
        case = Case(
            workload="product", family="user", precision=precision, device=type, phase="inference", path="eager",
            batch_size=None, input_dtype="fp32" if width == 4 else "bf16", memory_format="contiguous",
        )  # fmt: skip
        with precision_flags(PRECISIONS[precision]):
            found = measure_memory(workload, case, open_device(type)).peak_bytes
        yield f"a product in {precision}: weights, inputs, outputs", 3 * size * size * width, found or 0
        if type == "cpu":
            return  # its allocation record is exact once in a process


def _torchs_peak(workload: Workload, case: Case, device: Device) -> int:
    """Return the peak of a warmed-up step above what was there before, by `memory_stats` of torch's module."""
    module = torch.get_device_module(device.type)
    for last in (False, True):
        device.release()
        module.synchronize()
        before = module.memory_stats()["allocated_bytes.all.current"]
        step = build_step(workload, case, device)
        if isinstance(step, TrainingStep):
            step.settle_scaler()
        with step.mode():
            step.run()
            if isinstance(step, TrainingStep):
                step.optimizer.zero_grad(set_to_none=True)
                step.loss = None
            module.synchronize()
            module.reset_peak_memory_stats()
            step.run()
        module.synchronize()
        peak = module.memory_stats()["allocated_bytes.all.peak"] - before
        del step
        if last:
            return int(peak)
    raise AssertionError


def times(given: Given) -> Found:
    """Hold steps' times against torch's events by hand, with those of torch.utils.benchmark's Timer beside.

    On a CPU there are no events, and its Timer is told and judges nothing: what else runs there takes turns with both.
    """
    _needs(given)
    device, rows, wrong = open_device(given.device), [], 0
    for planned in _planned(given, TIMED, TIMED_IN):
        workload, case = _built(planned)
        with precision_flags(PRECISIONS[case.precision]):
            step = build_step(workload, case, device)
            with step.mode():
                step.run()
                mine = min(time_build(step.run, device, budget_seconds=0.4, max_samples=40, warm=True).samples)
                timer = Timer("run()", globals={"run": _waited(step.run, device)}, num_threads=torch.get_num_threads())
                theirs = min(timer.blocked_autorange(min_run_time=0.4).times)
                events = None if given.device == "cpu" else _by_events(step.run, given.device)
            del step
        near = events is None or abs(events / mine - 1) <= WITHIN
        wrong += not near
        shown = [format_seconds(value) if value is not None else "–" for value in (mine, theirs, events)]
        rows.append([case.case_id, *shown, "" if near else "differs"])
    held = "told, not judged: a CPU has no events" if given.device == "cpu" else f"{wrong} differ by over {WITHIN:.0%}"
    return Found(
        bool(rows) and not wrong,
        f"{len(rows)} steps; {held}",
        ("case", "ampbench", "Timer, waiting after each step", "events by hand", ""),
        rows,
    )


def _waited(run: Callable[[], Any], device: Device) -> Callable[[], None]:
    """Return what Timer is to run: it synchronises CUDA itself, after a block, but no other device."""

    def call() -> None:
        run()
        device.synchronize()

    return call


def _by_events(run: Callable[[], Any], type: str) -> float:
    """Return the fastest of several samples of steps in a row, by the events of torch's module of the device."""
    module, count, seconds = torch.get_device_module(type), 20, []
    for _ in range(10):
        start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
        module.synchronize()
        start.record()
        for _ in range(count):
            run()
        end.record()
        module.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / count)
    return min(seconds)


COUNTED_SECONDS = 6.0
"""For how long energy is counted: NVML's power is a mean over a second, which at both ends belongs to before."""


def energy(given: Given) -> Found:
    """Hold the integral of the power under load against what NVML's counter of energy gained in the same time.

    The counter (nvmlDeviceGetTotalEnergyConsumption, in mJ, since the driver was loaded) is read here, not by ampbench,
    which is to be within `WITHIN` of it. On an Intel GPU power comes from such a counter in the first place.
    """
    _needs(given)
    if given.device != "cuda":
        raise NotHereError(f"the power of {given.device} is not told, or is what a counter of energy gained")
    try:
        source = open_source(given.device)
    except NoSourceError as error:
        raise NotHereError(str(error)) from None
    nvml = importlib.import_module("pynvml")
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
    device, factor = open_device("cuda"), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def load(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            device.seconds(lambda: factor @ factor, 50)

    load(2.0)
    try:
        return _counted(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, source, load)
    except nvml.NVMLError as error:
        raise NotHereError(f"NVML has no counter of energy here: {error}") from None


def _counted(joules: Callable[[], float], source: Source, load: Callable[[float], None]) -> Found:
    """Hold the mean power that a source tells under a load against what a counter of `joules` gained."""
    with Sampler(source) as sampler:
        before, began = joules(), time.perf_counter()
        load(COUNTED_SECONDS)
        after, ended = joules(), time.perf_counter()
    power = mean_power(sampler.readings, [(began, ended)])
    counted = (after - before) / (ended - began)
    if power is None or counted <= 0:
        told = "not told" if power is None else f"{power:.0f} W"
        return Found(False, f"power: {told}; by the counter: {counted:.0f} W")
    said = f"{power:.0f} W by {len(sampler.readings)} readings, {counted:.0f} W by the counter"
    return Found(abs(power / counted - 1) <= WITHIN, f"{said}: {power / counted - 1:+.1%}")


MOST_COST = 1.01
"""A step may take so many times as long while sensors are read beside it."""


def sampling(given: Given) -> Found:
    """Time steps with and without the thread that reads sensors; it passes where it certainly costs no more than 1 %.

    On a CPU a made-up sensor is read, and what it costs is told and judges nothing: it has no sensors of its own.
    """
    _needs(given)
    sizes = (64, 512) if given.device == "cpu" else (64, 4096)
    rows, costly, least = [], 0, 1.0
    for size in sizes:
        try:
            ratio, low, high, share = cost(given.device, size, seconds=0.5)
        except NoSourceError as error:
            raise NotHereError(str(error)) from None
        costly += high > MOST_COST
        least = max(least, high)
        rows.append([f"{size} x {size}", f"{ratio:.4f}", f"{low:.4f} to {high:.4f}", f"{share:.2%}"])
    said = f"a step takes {max(float(row[1]) for row in rows):.4f} times as long, at most {least:.4f}"
    if given.device == "cpu":
        said += "; told, not judged: a CPU's sensor is made up"
    return Found(
        given.device == "cpu" or not costly,
        said,
        ("products of", "times as long", "95% interval", "readings' share of the time"),
        rows,
    )


def ceilings(given: Given, arguments: Sequence[str]) -> Found:
    """Measure ceilings; it passes where none is above the datasheet's peak, and products reach a tenth of theirs.

    Convolutions may be above: Winograd's algorithm does with fewer operations than are counted. Attention may be far
    below: not every device has a kernel of it for every dtype.
    """
    code, _, runs = asked(given, "study", "ceilings", *arguments)
    found = [one for run in runs for one in run.every(Ceiling)]
    errors = [[one.operation, one.dtype, one.error, ""] for one in found if one.error]
    if not found or errors or code:
        said = f"exit code {code}, {len(errors)} could not be measured"
        return Found(False, said, ("operation", "dtype", "error", ""), errors)
    device = runs[0].header.environment.device(given.device)
    name = device.name if device else given.device
    promised = datasheet_of(name)
    if promised is None:
        raise NotHereError(f"{len(found)} ceilings measured; no datasheet of {name} is known to hold them against")
    shares = [(one, share(one, promised)) for one in found]
    high = [one for one, value in shares if value is not None and one.operation != CONV and value > 1.05]
    low = [one for one, value in shares if value is not None and one.operation not in (ATTENTION, CONV) and value < 0.1]
    moved = bandwidth(found, given.device)
    slow = [] if moved is None or moved > 0.3 * 1e9 * promised.memory else [COPY]
    rows = [[one.operation, one.dtype, f"{value:.0%}" if value is not None else "–", name] for one, value in shares]
    said = f"{len(found)} ceilings; {len(high)} above the datasheet of {name}, {len(low) + len(slow)} far below"
    return Found(not (high or low or slow), said, ("operation", "dtype", "share of the peak", "datasheet"), rows)
