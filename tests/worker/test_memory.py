"""The allocation record is exact once in a process, so every measurement here has a process of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.drive.servers import ServerChannel
from ampbench.records.measured import MemoryPass
from tests.scripted_channel import got, make_request, user_source
from tests.worker.conftest import make_case

NETWORKS = """
import torch
from ampbench import Workload

def linear():
    return Workload(module=torch.nn.Linear(100, 50), inputs=torch.randn(8, 100),
                    loss=lambda output: output.square().mean(), optimizer=torch.optim.Adam)

def two_blocks():
    class Known(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return (y * 2).sum()
    return Known(), torch.ones(256, 256)

def bags():
    layers = [torch.nn.EmbeddingBag(40, 16, sparse=True), torch.nn.Linear(16, 3)]
    return Workload(module=torch.nn.Sequential(*layers), inputs=torch.randint(40, (5, 6)),
                    loss=lambda output: output.float().square().mean())

def compiled():
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return Workload(module=torch.compile(module, backend="eager"), inputs=torch.randn(6, 16))

def uncompiled():
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return Workload(module=module, inputs=torch.randn(6, 16))

def matrix(frozen=False, momentum=0.0):
    module = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False), torch.nn.Linear(128, 64, bias=False))
    module[0].weight.requires_grad_(not frozen)
    optimizer = (lambda weights: torch.optim.SGD(weights, 0.1, momentum=momentum)) if momentum else torch.optim.AdamW
    return Workload(module=module, inputs=torch.randn(8, 64), loss=lambda output: output.float().square().mean(),
                    optimizer=optimizer)

def half_frozen():
    return matrix(frozen=True)

def momentum():
    return matrix(momentum=0.9)
"""
BOTH_RECORDS = """
import sys, torch
from ampbench.worker.memory import cpu_changes, peak_of
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3))
image = torch.randn(2, 3, 32, 32)
def call():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(image).float().sum().backward()
    network.zero_grad(set_to_none=True)
call()
if sys.argv[1] == "ours":
    print(cpu_changes([call])[0].peak)
else:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    print(peak_of(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
"""


Measure = Callable[..., MemoryPass]


@pytest.fixture
def measure(channel: ServerChannel, tmp_path: Path) -> Measure:
    def measure(function: str, precision: str = "fp32", phase: str = "inference", recipe: str = "") -> MemoryPass:
        source = user_source(tmp_path, NETWORKS, function)
        planned = make_case(precision, phase, workload=function, batch_size=None, recipe=recipe)
        reply = channel.serve(make_request("memory", source=source, case=planned, threads=1))
        return got("memory", reply)

    return measure


def test_the_peak_of_a_known_computation_is_exact(measure: Measure) -> None:
    found = measure("two_blocks")
    block = 256 * 256 * 4
    assert found.input_bytes == block
    assert found.peak_bytes == pytest.approx(3 * block, abs=256)  # the input, x + 1, and its double


@pytest.mark.slow
def test_the_record_agrees_with_kineto() -> None:
    ours, kineto = (
        subprocess.run([sys.executable, "-c", BOTH_RECORDS, which], capture_output=True, text=True, check=True).stdout
        for which in ("ours", "kineto")
    )
    assert int(ours) == int(kineto) > 0


@pytest.mark.slow
def test_the_operations_of_a_step_are_counted_by_dtype(measure: Measure) -> None:
    forward = 2 * 8 * 100 * 50
    assert measure("linear").flops == {"fp32": forward}
    assert measure("linear", "bf16_autocast").flops == {"bf16": forward}
    # the input of the network needs no gradient
    assert measure("linear", "bf16_pure", "training").flops == {"bf16": 2 * forward}
    assert measure("two_blocks").flops == {}


def test_a_step_reads_weights_and_inputs_and_training_writes_weights_and_state_again(measure: Measure) -> None:
    weights, inputs = (100 * 50 + 50) * 4, 8 * 100 * 4
    assert measure("linear").least_bytes == weights + inputs + 8 * 50 * 4
    assert measure("linear", "bf16_pure").least_bytes == (weights + inputs + 8 * 50 * 4) // 2
    # AdamW reads and writes the weights and both of its moments
    assert measure("linear", phase="training").least_bytes == inputs + 2 * weights + 2 * 2 * weights


@pytest.mark.parametrize("precision", ["fp32", "fp16_autocast", "bf16_pure"])
def test_sparse_gradients_are_counted_by_what_they_store(measure: Measure, precision: str) -> None:
    found = measure("bags", precision, "training")
    indices, values = 30 * 8, 30 * 16 * (2 if precision == "bf16_pure" else 4)
    assert found.gradient_bytes >= indices // 2 + values // 2 + 3 * 16
    assert found.gradient_bytes < found.peak_bytes


def test_a_network_that_comes_compiled_is_not_measured_while_it_compiles(measure: Measure) -> None:
    assert measure("compiled").peak_bytes == pytest.approx(measure("uncompiled").peak_bytes, rel=0.3)


@pytest.mark.parametrize(
    ("function", "precision", "parts"),
    [
        # weight, gradient and AdamW's two averages of it, in bytes
        ("matrix", "fp32", (4, 4, 8)),
        ("matrix", "bf16_autocast", (4, 4, 8)),
        ("matrix", "fp16_autocast", (4, 4, 8)),
        ("matrix", "bf16_pure", (2, 2, 4)),
        # a master weight in fp32, which has the gradient and the state in fp32
        ("matrix", "bf16_master", (2 + 4, 4, 8)),
        ("momentum", "fp32", (4, 4, 4)),
        ("momentum", "bf16_pure", (2, 2, 2)),
        # half of the weights have neither gradient nor state
        ("half_frozen", "fp32", (4, 4 / 2, 8 / 2)),
    ],
)
def test_what_a_parameter_takes_is_the_sum_of_what_is_kept_of_it(
    measure: Measure, function: str, precision: str, parts: tuple[float, ...]
) -> None:
    found = measure(function, precision, "training")
    count = 64 * 128 + 128 * 64
    assert found.parameter_count == count
    # AdamW counts its steps in a number for each tensor
    assert found.bytes_per_parameter == pytest.approx(sum(parts), abs=8 / count)
    assert found.master_bytes == (4 * count if precision == "bf16_master" else None)


SEVERAL_CALLS = """
import torch
from ampbench.worker.memory import cpu_changes

block, kept = torch.ones(256, 256), []
print(*(change.peak for change in cpu_changes([lambda: (block + 1) * 2, lambda: block + 1])))
size = 1 << 20
calls = [lambda: kept.append(torch.ones(size)), lambda: torch.ones(size), kept.clear]
print(*(value for change in cpu_changes(calls) for value in (change.peak >> 20, change.net >> 20)))
"""


def test_calls_recorded_together_have_a_peak_each_and_what_each_leaves_and_frees_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", SEVERAL_CALLS], capture_output=True, text=True, check=True)
    peaks, changes = (line.split() for line in done.stdout.splitlines())
    block = 256 * 256 * 4
    assert [int(peak) for peak in peaks] == [pytest.approx(2 * block, abs=64), pytest.approx(block, abs=64)]
    assert changes == ["4", "4", "4", "0", "0", "-4"]
