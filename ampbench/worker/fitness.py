"""How quiet the machine was while something was measured."""

import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

from ampbench.records.cpu_times import CpuTimes, parse_cpu_times
from ampbench.records.measurements import Fitness
from ampbench.worker.devices import Device


class FitnessWatch:
    """The machine's counters at the start of a round; `seen` compares them with now."""

    def __init__(self, device: Device):
        self._device = device
        self._load = os.getloadavg()[0]
        self._cpu = _cpu_ticks()
        self._own = _own_ticks()
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

    def seen(self) -> Fitness:
        """Return what has changed since the watch began."""
        ticks = _cpu_ticks()
        steal = others = None
        if ticks and self._cpu and ticks.total > self._cpu.total:
            total = ticks.total - self._cpu.total
            # kernels have been seen to count a tick back
            steal = _share(ticks.steal - self._cpu.steal, total)
            others = _share(ticks.busy - self._cpu.busy - (_own_ticks() - self._own), total)
        temperature = clock = None
        if self._device.type == "cuda":
            with suppress(Exception):  # both need NVML, which not every installation has
                temperature, clock = float(torch.cuda.temperature()), torch.cuda.clock_rate() * 1e6
        return Fitness(
            steal_share=steal,
            other_share=others,
            load=self._load,
            involuntary_switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches,
            frequency_hz=_cpu_frequency(),
            temperature_celsius=temperature,
            accelerator_clock_hz=clock,
        )


def _share(ticks: float, total: float) -> float:
    return min(max(ticks / total, 0.0), 1.0)


def _cpu_ticks() -> CpuTimes | None:
    """Return the ticks of all processors since boot; None where the kernel does not tell."""
    try:
        return parse_cpu_times(Path("/proc/stat").read_text())
    except OSError:
        return None


def _own_ticks() -> float:
    """Return the CPU time that this process has used, in the kernel's ticks."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * os.sysconf("SC_CLK_TCK")


def _cpu_frequency() -> float | None:
    try:
        return int(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text()) * 1e3
    except (OSError, ValueError):
        return None
