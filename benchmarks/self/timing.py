"""Does the harness time what a bare loop times, does it repeat, and what does a round cost beyond its own work?"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from msgspec import structs

from ampbench.core.stats import round_value
from ampbench.core.units import format_seconds
from ampbench.drive.servers import ServerChannel
from ampbench.records.case import Case, WorkloadSource
from ampbench.records.wire import ROUND, RoundAsked, ask
from ampbench.worker.machine import Cpu
from ampbench.worker.step import Step, build_step
from ampbench.workload import Workload
from ampbench.workloads.index import WORKLOADS
from ampbench.workloads.index import source as builtin_source

PRECISIONS = ("fp32", "bf16_autocast", "bf16_pure", "fp16_autocast")


def _case(source: WorkloadSource, precision: str) -> Case:
    return Case(
        workload=source.name, family="user", precision=precision, device="cpu", phase="inference", path="eager",
        batch_size=None, input_dtype="bf16" if precision == "bf16_pure" else "fp32", memory_format="contiguous",
    )  # fmt: skip


def against_bare_loop(repetitions: int = 600) -> dict[str, float]:
    """Return, for steps of about 20 us, 1 ms and 100 ms, the harness' time over a bare loop's, on the same build.

    The bare loop calls the network under inference_mode between two readings of the clock. Repetitions and their order
    alternate; the result is the median of the paired ratios.
    """
    torch.set_num_threads(1)
    shapes = {"20 us": (1, 96, 50), "1 ms": (64, 640, 1), "100 ms": (2048, 1024, 1)}
    ratios = {}
    with torch.inference_mode():
        for name, (batch, width, count) in shapes.items():
            module = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
            workload = Workload(module=module, inputs=torch.randn(batch, width))
            source = WorkloadSource(name="net", family="user", module="", function="", builtin=False)
            step = build_step(workload, _case(source, "fp32"), Cpu())
            network, inputs = step.module, step.data.batches[0]

            def bare(network: torch.nn.Module = network, inputs: torch.Tensor = inputs, count: int = count) -> float:
                start = time.perf_counter()
                for _ in range(count):
                    network(inputs)
                return (time.perf_counter() - start) / count

            def harness(step: Step = step, count: int = count) -> float:
                return Cpu().seconds(step.run, count) / count

            pair: list[Callable[[], float]] = [bare, harness]
            times: dict[Callable[[], float], list[float]] = {bare: [], harness: []}
            for turn in range(repetitions if name != "100 ms" else repetitions // 10):
                for measure in pair if turn % 2 else reversed(pair):
                    times[measure].append(measure())
            paired = [ours / theirs for ours, theirs in zip(times[harness], times[bare], strict=True)]
            ratios[f"{name} step ({format_seconds(min(times[bare]))})"] = statistics.median(paired)
    return ratios


def reference_cells(servers: int = 10, builds: int = 3, min_run_seconds: float = 0.3) -> dict[str, tuple[float, float]]:
    """Return each reference cell's median in seconds and the SD of its log round values over `servers` servers."""
    values: dict[str, list[float]] = {}
    for server in range(servers):
        for cell, seconds in _one_block(server, builds, min_run_seconds):
            values.setdefault(cell, []).append(math.log(seconds))
    return {cell: (math.exp(statistics.median(logs)), statistics.stdev(logs)) for cell, logs in values.items()}


def _one_block(server: int, builds: int, min_run_seconds: float) -> Iterator[tuple[str, float]]:
    channel = ServerChannel()
    try:
        for name, precision in itertools.product(("small_linear", "small_conv"), PRECISIONS):
            source = WorkloadSource(
                name=name, family="user", module="benchmarks.self.networks", function=name, builtin=False
            )
            asked = RoundAsked(placement_seed=server, builds=builds, min_run_seconds=min_run_seconds)
            request = ask(ROUND, asked, source=source, case=_case(source, precision), threads=1, seed=0)
            measured = ROUND.found(channel.serve(request))
            assert measured is not None
            yield f"{name} {precision}", round_value(measured.samples, measured.cpu_samples, measured.windows)
    finally:
        channel.close()


def round_overhead(rounds: int = 20) -> dict[str, float]:
    """Return the cost of a round of `mlp` (small, fp32) beyond builds, warm-up and timing, in seconds.

    It includes the fork, the weights, the digest and the messages; median and worst of `rounds`.
    """
    spec = WORKLOADS["mlp"]
    sizes = dict(spec.preset("small"))
    case = structs.replace(
        _case(builtin_source(spec), "fp32"),
        batch_size=sizes.pop("batch_size"),
        parameters=sizes,
    )
    channel, beyond = ServerChannel(preload=["torch._dynamo", "torchvision"]), []
    try:
        for number in range(rounds):
            asked = RoundAsked(placement_seed=number)
            request = ask(ROUND, asked, source=builtin_source(spec), case=case, threads=1)
            start = time.perf_counter()
            measured = ROUND.found(channel.serve(request))
            wall = time.perf_counter() - start
            assert measured is not None
            beyond.append(wall - measured.seconds)
    finally:
        channel.close()
    return {"median": statistics.median(beyond), "worst": max(beyond)}
