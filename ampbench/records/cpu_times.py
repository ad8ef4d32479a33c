"""CPU time of all processors, as the kernel counts it: before a run and during each of its rounds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all processors since boot, in kernel ticks."""

    busy: int
    steal: int
    total: int


def parse_cpu_times(stat: str) -> CpuTimes | None:
    """Read the first line of /proc/stat; None where there is none."""
    fields = stat.partition("\n")[0].split()
    if not fields or fields[0] != "cpu":
        return None
    times = [int(field) for field in fields[1:9]]  # guest time, after these, is part of user time
    times += [0] * (8 - len(times))
    idle, steal = times[3] + times[4], times[7]
    return CpuTimes(busy=sum(times) - idle - steal, steal=steal, total=sum(times))
