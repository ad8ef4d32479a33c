"""How quiet the machine was while something was measured."""

import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

from ampbench.records.measurements import Fitness
from ampbench.worker.devices import Device


class FitnessWatch:
    """The machine's counters at the start of a round; `seen` compares them with now."""

    def __init__(self, device: Device):
        self._device = device
        self._load = os.getloadavg()[0]
        self._cpu = _cpu_ticks()
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def seen(self) -> Fitness:
        """Return what has changed since the watch began."""
        ticks = _cpu_ticks()
        steal = None
        if ticks and self._cpu and ticks[0] > self._cpu[0]:
            steal = (ticks[1] - self._cpu[1]) / (ticks[0] - self._cpu[0])
        temperature = clock = None
        if self._device.type == "cuda":
            with suppress(Exception):  # both need NVML, which not every installation has
                temperature, clock = float(torch.cuda.temperature()), torch.cuda.clock_rate() * 1e6
        return Fitness(
            steal_share=steal,
            load=self._load,
            involuntary_switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches,
            frequency_hz=_cpu_frequency(),
            temperature_celsius=temperature,
            accelerator_clock_hz=clock,
        )


def _cpu_ticks() -> tuple[int, int] | None:
    """Return (all ticks, ticks stolen by the hypervisor) of all processors since boot (proc(5), /proc/stat)."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    ticks = [int(value) for value in fields[:8]]
    return sum(ticks), ticks[7]


def _cpu_frequency() -> float | None:
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text()) * 1e3
    except (OSError, ValueError):
        return None
