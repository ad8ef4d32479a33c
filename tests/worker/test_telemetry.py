"""Who tells of an accelerator, with made-up NVML: no GPU is needed, and none of this has run on one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ampbench.worker import environment
from ampbench.worker.environment import (
    MIG,
    MOST_SHARE,
    PERIOD_SECONDS,
    NoSourceError,
    Nvml,
    Reading,
    Sampler,
    mean_power,
)
from tests.scripted_accelerator import Script, ScriptedAccelerator, ScriptedSource, falling


class NVMLError(Exception):
    """As pynvml's."""


def by_names(uuid: str, *known: str) -> str:
    if uuid not in known:
        raise NVMLError("Not Found")
    return "handle"


def made_nvml(**changes: Any) -> SimpleNamespace:
    """Return a module as pynvml, of one GPU, of which `changes` replace functions; an exception is raised by them."""

    def answering(value: Any) -> Callable[..., Any]:
        def answer(*_: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return value if callable(value) else answer

    fields: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: by_names(uuid, "GPU-aaaa"),
        "nvmlDeviceGetMigMode": NVMLError("Not Supported"),
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetPowerUsage": 612_500,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x40,
        "nvmlDeviceGetEnforcedPowerLimit": 500_000,
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5 << 30),
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid(), usedGpuMemory=1)],
        "nvmlDeviceGetProcessUtilization": [],
    }
    made = {name: answering(value) for name, value in (fields | changes).items()}
    return SimpleNamespace(NVMLError=NVMLError, NVML_CLOCK_SM=1, **made)


def opened(
    monkeypatch: pytest.MonkeyPatch, uuid: str = "aaaa", capability: tuple[int, int] = (9, 0), **changes: Any
) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", made_nvml(**changes))
    return Nvml.open(uuid, capability)


def with_gpu(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    card = SimpleNamespace(uuid=uuid, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: card)


def test_nvml_tells_clock_power_and_what_limits_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(monkeypatch).read(7.0)
    assert found == Reading(7.0, 1.755e9, 612.5, frozenset({"power limit", "heat"}))


def test_the_gpu_is_found_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opened(monkeypatch, "GPU-aaaa")._handle == opened(monkeypatch, "aaaa")._handle == "handle"
    with pytest.raises(NoSourceError, match="Not Found"):
        opened(monkeypatch, "bbbb")


@pytest.mark.parametrize(
    ("uuid", "changes"),
    [
        ("aaaa", {"nvmlDeviceGetMigMode": [1, 1]}),
        ("MIG-cccc", {"nvmlDeviceGetHandleByUUID": lambda uuid: by_names(uuid, "MIG-cccc")}),
    ],
    ids=["a GPU in that mode", "the id of an instance"],
)
def test_an_instance_of_a_gpu_has_no_sensors_and_is_told_so(
    monkeypatch: pytest.MonkeyPatch, uuid: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(NoSourceError) as told:
        opened(monkeypatch, uuid, **changes)
    assert str(told.value) == MIG
    with_gpu(monkeypatch, uuid)
    found = environment.state_of("cuda")
    assert found.mig
    assert found.unavailable == [MIG]


def test_no_module_no_driver_and_rocm_are_each_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSourceError, match="Driver Not Loaded"):
        opened(monkeypatch, nvmlInit=NVMLError("Driver Not Loaded"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NoSourceError, match=r'pip install "ampbench\[cuda\]"'):
        Nvml.open("aaaa", (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(NoSourceError, match="ROCm"):
        Nvml.open("aaaa", (9, 0))


def test_what_a_laptop_does_not_tell_is_said_and_the_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(
        monkeypatch,
        nvmlDeviceGetPowerUsage=NVMLError("Not Supported"),
        nvmlDeviceGetEnforcedPowerLimit=NVMLError("Not Supported"),
    )
    assert found.read(0.0).power_watts is None
    assert found.read(0.0).clock_hz == 1.755e9
    state = found.state()
    assert state.power_limit_watts is None
    assert state.unavailable == [
        "NVML does not report the power: NVMLError: Not Supported",
        "NVML does not report the limit of the power: NVMLError: Not Supported",
    ]


def test_another_process_is_named_and_this_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, own = os.getppid(), os.getpid()
    name = Path(f"/proc/{parent}/comm").read_text().strip()
    running = [SimpleNamespace(pid=own, usedGpuMemory=1), SimpleNamespace(pid=parent, usedGpuMemory=3 << 30)]
    assert opened(monkeypatch, nvmlDeviceGetComputeRunningProcesses=running).others() == [f"{parent} {name} (3.00 GiB)"]


@pytest.mark.parametrize("pids", [(), (4_100_001,), (4_100_001, 4_100_002)])
def test_a_list_that_lacks_this_process_shows_nobody_and_the_state_says_so(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...]
) -> None:
    running = [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in pids]
    source = opened(monkeypatch, nvmlDeviceGetComputeRunningProcesses=running)
    assert source.others() is None
    assert source.state().unavailable == [environment.UNSEEN]


def test_the_share_of_others_is_that_of_their_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    def util(pid: int, share: int) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, smUtil=share, timeStamp=1)

    told = [util(os.getpid(), 60), util(os.getppid(), 40), util(os.getppid(), 20)]
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=told).other_share(0.0) == pytest.approx(0.3)
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=told[1:]).other_share(0.0) is None
    assert opened(monkeypatch, nvmlDeviceGetProcessUtilization=NVMLError("Not Found")).other_share(0.0) is None


def test_a_gpu_that_is_lost_ends_the_readings_with_what_nvml_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1755, 1755])

    def clock(*_: Any) -> int:
        try:
            return next(answers)
        except StopIteration:
            raise NVMLError("GPU is lost") from None

    sampler = Sampler(opened(monkeypatch, nvmlDeviceGetClockInfo=clock))
    sampler.take()
    sampler.take()
    assert len(sampler.readings) == 1
    assert "GPU is lost" in sampler.ended


@pytest.mark.parametrize(("mark", "own"), [("7-ab", True), ("70-ab", False), ("8-ab", False)])
def test_workers_of_one_driver_are_own_and_those_of_another_are_not(
    mark: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen(["sleep", "60"], env={environment.MARK: mark, "PATH": os.environ["PATH"]})
    try:
        monkeypatch.setenv(environment.MARK, "7-cd")
        assert environment.is_own(other.pid) == own
        monkeypatch.delenv(environment.MARK)
        assert not environment.is_own(other.pid)
        assert environment.is_own(os.getpid())
    finally:
        other.kill()
        other.wait()


def test_reading_a_slow_sensor_takes_no_more_than_its_share_of_the_time() -> None:
    """The cost of a reading times how often there is one, counted on a scripted clock."""
    for cost in (50e-6, 4e-3, 30e-3):
        now = [0.0]

        class Slow(ScriptedSource):
            def read(self, at: float) -> Reading:
                now[0] += cost  # noqa: B023 - called within the loop's turn
                return Reading(at)

        sampler = Sampler(cast("Nvml", Slow(Script())), clock=lambda: now[0])  # noqa: B023
        began = sampler.take()
        for _ in range(20):
            now[0] += sampler.period
            sampler.take()
        assert began is None
        assert sum(sampler.costs[1:]) / now[0] <= MOST_SHARE
        assert sampler.period == pytest.approx(max(PERIOD_SECONDS, cost / MOST_SHARE))


def test_what_a_driver_raises_as_its_device_goes_ends_the_thread_and_nothing_else() -> None:
    class Broken(ScriptedSource):
        def read(self, at: float) -> Reading:
            raise OSError("ioctl failed")

    with Sampler(cast("Nvml", Broken(Script()))) as sampler:
        sampler._thread.join(30)
    assert sampler.telemetry([(0.0, 1.0)]).unavailable == "OSError: ioctl failed"


def test_the_mean_power_is_the_integral_of_the_readings_over_the_windows() -> None:
    """Held against the closed form of power that rises by the square: 100 + 10 t², read 100 times a second."""
    readings = [Reading(number / 100, power_watts=100 + 10 * (number / 100) ** 2) for number in range(1001)]
    windows = [(1.0, 2.5), (4.0, 9.0)]
    exact = sum(100 * (end - begin) + 10 * (end**3 - begin**3) / 3 for begin, end in windows) / 6.5
    assert mean_power(readings, windows) == pytest.approx(exact, rel=1e-5)


def test_telemetry_is_of_the_windows_alone_and_its_shares_are_counted() -> None:
    script = Script(
        clock_hz=falling(2e9, 1.5e9, 1.0, 2.0),
        limits=lambda now: frozenset({"power limit"}) if now > 1.5 else frozenset(),
        power_watts=lambda now: 300.0 if now < 2.0 else 500.0,
        others=["4711 python3 (2.00 GiB)"],
        other_share=0.25,
    )
    device = ScriptedAccelerator(script)
    device.seconds(lambda: None, 4000)
    told = device.watched().telemetry([(0.2, 0.6), (2.6, 3.0)])
    assert (told.first_clock_hz, told.last_clock_hz) == (2e9, 1.5e9)
    assert told.limited == {"power limit": pytest.approx(0.5, abs=0.07)}
    assert told.power_watts == pytest.approx(400.0)
    assert (told.power_low_watts, told.power_high_watts) == (300.0, 500.0)
    assert told.window_seconds == pytest.approx(0.8)
    assert (told.processes, told.other_share) == (["4711 python3 (2.00 GiB)"], 0.25)
    assert told.readings == pytest.approx(16, abs=2)
    assert told.source == "scripted"
    assert told.unavailable == ""


def test_a_pynvml_too_old_to_know_a_question_is_a_reason_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    old = made_nvml()
    del old.nvmlDeviceGetMigMode
    monkeypatch.setitem(sys.modules, "pynvml", old)
    with_gpu(monkeypatch, "aaaa")
    assert "nvmlDeviceGetMigMode" in environment.sampler_of("cuda").ended
    assert environment.state_of("cuda").unavailable
