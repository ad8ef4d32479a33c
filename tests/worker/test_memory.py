from collections.abc import Callable

import pytest
import torch

from ampbench.records.cases import Case
from ampbench.worker.devices import Cpu
from ampbench.worker.memory import cpu_peak_bytes, measure_memory, peak_of, rss_bytes
from ampbench.workload import Workload

MakeCase = Callable[..., Case]


def test_the_peak_is_the_highest_running_sum() -> None:
    assert peak_of([100, 50, -100, 20, -70]) == 150
    assert peak_of([-10, 5]) == 0
    assert peak_of([]) == 0


def test_the_peak_of_a_known_computation_is_exact() -> None:
    x = torch.ones(256, 256)

    def call() -> torch.Tensor:
        y = x + 1  # 256 KiB, alive until the end
        z = y * 2  # 256 KiB more
        return z.sum()

    call()
    assert cpu_peak_bytes(call) == pytest.approx(2 * 256 * 256 * 4, abs=256)


def test_the_record_agrees_with_kineto() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3))
    image = torch.randn(2, 3, 32, 32)

    def call() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            network(image).float().sum().backward()
        network.zero_grad(set_to_none=True)

    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    expected = peak_of(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    assert cpu_peak_bytes(call) == expected


def test_parts_are_told_apart_and_fit_into_the_peak(case: MakeCase) -> None:
    workload = Workload(
        module=torch.nn.Linear(100, 50),
        inputs=torch.randn(8, 100),
        loss=lambda output: output.square().mean(),
        optimizer=torch.optim.Adam,
    )
    found = measure_memory(workload, case("fp32", "training"), Cpu())
    weights = (100 * 50 + 50) * 4
    assert found.source == "profiler"
    assert found.parameter_bytes == weights
    assert found.gradient_bytes == weights
    assert found.optimizer_bytes == pytest.approx(2 * weights, abs=64)
    assert found.input_bytes == 8 * 100 * 4
    assert found.buffer_bytes == 0
    assert found.peak_bytes >= 4 * weights + 8 * 100 * 4
    assert found.rss_bytes > found.peak_bytes


def test_inference_has_neither_gradients_nor_optimizer_state(case: MakeCase) -> None:
    found = measure_memory(Workload(module=torch.nn.Linear(10, 10), inputs=torch.randn(2, 10)), case(), Cpu())
    assert found.gradient_bytes is None
    assert found.optimizer_bytes is None


def test_pure_half_halves_the_parameters(case: MakeCase, classifier: Workload) -> None:
    full, half = (measure_memory(classifier, case(name), Cpu()) for name in ("fp32", "bf16_pure"))
    assert half.parameter_bytes * 2 == full.parameter_bytes


def test_the_same_case_has_the_same_peak_twice(case: MakeCase, classifier: Workload) -> None:
    peaks = {measure_memory(classifier, case("bf16_autocast", "training"), Cpu()).peak_bytes for _ in range(3)}
    assert len(peaks) == 1


def test_the_resident_set_is_that_of_a_process_with_torch() -> None:
    assert rss_bytes() > 50 * 2**20
    assert rss_bytes("VmHWM") >= rss_bytes()
    assert rss_bytes("NoSuchField") is None
