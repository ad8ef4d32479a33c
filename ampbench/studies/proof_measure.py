"""Numbers of ampbench and of plain torch about the same work: `python -m ampbench.studies.proof_measure DEVICE`.

`ampbench doctor --prove` runs this module in a process of its own and judges the line of JSON that it prints.
"""

import json
import sys
from collections.abc import Mapping
from time import perf_counter

import torch

from ampbench.core.precisions import FORMATS, PRECISIONS
from ampbench.records.case import Case
from ampbench.records.measured import MATMUL
from ampbench.studies.devices_measure import measure_ceiling
from ampbench.trace.dtypes import short_dtype
from ampbench.worker.environment import has_tf32
from ampbench.worker.machine import Device, open_device, precision_flags
from ampbench.worker.memory import measure_memory, said_of
from ampbench.worker.step import build_step
from ampbench.worker.timing import time_build
from ampbench.workload import Workload

TIMED_WIDTH, STORED_WIDTH = 1024, 2048
"""Width and batch size of the timed network, and of a network whose tensors outweigh libraries' memory."""
TURNS, TURN_SECONDS = 6, 0.3
LOOPS = 3
"""Loops or samples of a turn, all of one length, as shorter ones have a faster minimum; and products of a turn."""
EDGE = 1024
"""Edge of the matrices multiplied in each precision; kernels for smaller ones may not use tf32."""
FASTEST = {"cpu": (torch.float32, 2048), "": (torch.float16, 8192)}
"""Dtype and edge of the product whose rate is measured: on a CPU, and under "" on any other device."""
FP32_ROUNDING = 2.0**-24


def network(device: str, phase: str, width: int) -> tuple[Workload, Case]:
    """Return two linear layers with a ReLU between them, as the plain script of `doctor --prove` has them, in fp32."""
    layers = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    workload = Workload(
        module=torch.nn.Sequential(*layers),
        inputs=torch.randn(width, width),
        loss=lambda output: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )
    case = Case(
        workload="proof", family="user", precision="fp32", device=device, phase=phase, path="eager", batch_size=width,
        input_dtype="fp32", memory_format="contiguous",
    )  # fmt: skip
    return workload, case


def spread(seconds: list[float]) -> float:
    """Return the relative difference between the fastest even and the fastest odd measurement."""
    fastest = sorted((min(seconds[::2]), min(seconds[1::2])))
    return fastest[1] / fastest[0] - 1


def time(device: Device) -> dict[str, float]:
    """Return a step's fastest seconds by ampbench, torch's Timer and the clock, in turns, and the largest spread."""
    from torch.utils.benchmark import Timer

    workload, case = network(device.type, "inference", TIMED_WIDTH)
    with precision_flags(PRECISIONS["fp32"]):
        step = build_step(workload, case, device)
        with step.mode():
            step.run()
            (first,) = time_build(step.run, device, budget_seconds=0.0, max_samples=1).samples
            count = max(1, round(TURN_SECONDS / LOOPS / first))

            def loop() -> None:
                for _ in range(count):
                    step.run()
                device.synchronize()

            timer = Timer("loop()", globals={"loop": loop}, num_threads=torch.get_num_threads())
            ampbench, timers, clock = list[float](), list[float](), list[float]()
            for _ in range(TURNS):
                timing = time_build(step.run, device, budget_seconds=TURN_SECONDS, max_samples=LOOPS, warm=True)
                ampbench.append(min(timing.samples))
                timers.append(min(timer.timeit(1).times[0] for _ in range(LOOPS)) / count)
                for _ in range(LOOPS):
                    began = perf_counter()
                    loop()
                    clock.append((perf_counter() - began) / count)
    return {
        "ampbench": min(ampbench),
        "timer": min(timers),
        "clock": min(clock),
        "spread": max(map(spread, (ampbench, timers, clock))),
    }


def memory(device: Device) -> dict[str, int | None]:
    """Return the peak memory of a training step in bytes, as ampbench measures it."""
    workload, case = network(device.type, "training", STORED_WIDTH)
    with precision_flags(PRECISIONS["fp32"]):
        return {"ampbench": measure_memory(workload, case, device).peak_bytes}


def precisions(device: Device) -> dict[str, dict[str, float | str]]:
    """Return by dtype the error of a product against fp64 on the CPU, and the errors that its format allows.

    Errors are norms relative to the product's. Two roundings of the format and the random walk of fp32 sums bound the
    error above. An eighth of a rounding bounds the error of tf32 and halves below: with less, nothing was rounded.
    """
    left, right = torch.randn(2, EDGE, EDGE, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    roundings = {"fp32": FP32_ROUNDING, "tf32": 2.0**-11} | {name: 2.0**-row.digits for name, row in FORMATS.items()}
    errors: dict[str, dict[str, float | str]] = {}
    for name, rounding in roundings.items():
        precision = PRECISIONS[name if name in PRECISIONS else f"{name}_pure"]
        if name == "tf32" and (device.type == "cpu" or not has_tf32(device.type)):
            continue
        try:
            with precision_flags(precision):
                factors = [factor.to(device.type, getattr(torch, precision.storage)) for factor in (left, right)]
                product = torch.mm(*factors).cpu().double()  # some XPUs have no fp64
        except RuntimeError as error:
            errors[name] = {"error": said_of(error)}
            continue
        distance = float((product - exact).norm() / exact.norm())
        most = 2 * rounding + EDGE**0.5 * FP32_ROUNDING
        errors[name] = {"ampbench": distance, "least": rounding / 8 if rounding > FP32_ROUNDING else 0.0, "most": most}
    return errors


def speed(device: Device) -> dict[str, float | str]:
    """Return the FLOP/s of a large product by ampbench's ceilings and by a plain loop of torch.mm."""
    dtype, edge = FASTEST.get(device.type, FASTEST[""])
    ceiling = measure_ceiling(device, MATMUL, short_dtype(dtype), seconds=4.0)
    size = f"{edge}x{edge}x{edge}"
    rates = [attained.rate for attained in ceiling.attained if attained.size == size]
    if not rates:
        raise RuntimeError(ceiling.error or "; ".join(ceiling.notes))
    with precision_flags(PRECISIONS["fp32"]), torch.inference_mode():
        left, right = torch.randn(2, edge, edge, device=device.type, dtype=dtype)
        seconds = []
        for _ in range(TURNS * LOOPS):
            began = perf_counter()
            torch.mm(left, right)
            device.synchronize()
            seconds.append(perf_counter() - began)
    work = 2 * edge**3 / min(seconds)
    name = short_dtype(dtype)
    return {"ampbench": rates[0] or 0.0, "loop": work, "spread": spread(seconds), "dtype": name, "size": size}


def main(type: str) -> None:
    """Print the answer to each question as JSON, with the reason under "error" where there is no answer."""
    device = open_device(type)
    answers: dict[str, Mapping[str, object]] = {}
    for ask in (time, memory, precisions, speed):
        device.release()
        try:
            answers[ask.__name__] = ask(device)
        except Exception as error:  # noqa: BLE001 - whatever a driver raises is the answer
            answers[ask.__name__] = {"error": said_of(error)}
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
