"""What makes a machine unfit to measure on, and what to do about each: read from /proc and /sys, without torch.

The parsing functions take text, so that any machine can be described in a test; a file that is not there means that
the machine does not tell, never that all is well, and gives no finding.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ampbench.records.case import Environment
from ampbench.records.labels import limited_power
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, CpuTimes, parse_cpu_times

BUSY_SHARE = 0.05
"""The share of all CPU time that others may take before it counts: below, it hides in the 2% of placement luck."""

SPREADING_STEAL = 0.01
"""The share of CPU time taken by the hypervisor from which timings on a shared host are seen to spread."""

LOW_MEMORY_BYTES = 2 * 1024**3
"""torch with its libraries takes about half a GiB in each process; below this a run soon swaps or is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoiler:
    """Something that spoils measurements: `what` it is, `why` it matters, the `remedy`.

    `grave` findings move results by more than the intervals they state; the others are worth knowing.
    """

    name: str
    what: str
    why: str
    remedy: str
    grave: bool


def inspect(
    root: Path = Path("/"), seconds: float = 0.5, pause: Callable[[float], None] = time.sleep, ticks: int | None = None
) -> list[Spoiler]:
    """Return what makes this machine unfit, the gravest first; watches it for `seconds`.

    What this process and those that it started do does not count. `root` is where proc/ and sys/ are, `ticks` the
    kernel's ticks a second.
    """
    ticks = ticks or os.sysconf("SC_CLK_TCK")
    cpu_info = _read(root / "proc/cpuinfo")
    cpu_count = max(cpu_info.count("processor\t"), 1)
    before, (processes_before, own_before) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    pause(seconds)
    after, (processes_after, own_after) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    if after is not None:
        after = replace(after, busy=after.busy - max(own_after - own_before, 0))
    governors = {_read(path).strip() for path in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")}
    candidates = [
        busy_finding(before, after, busiest(processes_before, processes_after, seconds * ticks)),
        steal_finding(before, after),
        load_finding(_read(root / "proc/loadavg"), cpu_count),
        governor_finding(governors),
        turbo_finding(
            _read(root / "sys/devices/system/cpu/intel_pstate/no_turbo"),
            _read(root / "sys/devices/system/cpu/cpufreq/boost"),
        ),
        quota_finding(_quota(root), cpu_count),
        memory_finding(_read(root / "proc/meminfo")),
        virtual_finding(cpu_info),
    ]
    return sorted((finding for finding in candidates if finding is not None), key=lambda finding: not finding.grave)


def device_findings(environment: Environment) -> list[Spoiler]:
    """Judge what the accelerators of an environment told a worker of themselves, the gravest first."""
    found: list[Spoiler] = []
    for device in environment.devices:
        state = device.state
        if state is None or not device.available:
            continue
        if state.processes:
            found.append(
                Spoiler(
                    name=f"{device.type} processes",
                    what=f"others use {device.type}: {', '.join(state.processes)}",
                    why="they take time, memory and power from what is timed, unevenly",
                    remedy="end them, or choose another device (CUDA_VISIBLE_DEVICES, ZE_AFFINITY_MASK)",
                    grave=True,
                )
            )
        if limited := limited_power(state):
            found.append(
                Spoiler(
                    name=f"{device.type} power limit",
                    what=f"{device.type} {limited}",
                    why="under load its clock falls further: times are those under this limit, and of no other",
                    remedy=f"sudo nvidia-smi -pl {state.default_limit_watts:.0f}, or on battery plug it in"
                    if device.type == "cuda"
                    else "set power1_max of its hwmon folder to power1_rated_max",
                    grave=False,
                )
            )
        if state.unavailable:
            found.append(
                Spoiler(
                    name=f"{device.type} sensors",
                    what=f"{device.type} does not tell all of itself: {'; '.join(state.unavailable)}",
                    why="that heat or its limit slows it down is then not seen, and there is no energy",
                    remedy="measure on a whole GPU, or take times of an instance for what they are"
                    if state.mig
                    else "times are measured all the same; look at them twice",
                    grave=False,
                )
            )
    return sorted(found, key=lambda finding: not finding.grave)


def busy_now(
    threads: int, root: Path = Path("/"), seconds: float = 0.3, pause: Callable[[float], None] = time.sleep
) -> str:
    """Return a sentence that says that times measured now would be in doubt, and what to do; "" on a quiet machine.

    Busy is what makes a round unfit (`records.measured`); `threads` are those that torch is asked to take.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    before, (processes_before, _) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    pause(seconds)
    after, (processes_after, _) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    found = []
    if (_share(before, after, "busy") or 0.0) > OTHER_SHARE:
        found.append(busy_finding(before, after, busiest(processes_before, processes_after, seconds * ticks)))
    if (_share(before, after, "steal") or 0.0) > STEAL_SHARE:
        found.append(steal_finding(before, after))
    if not found:
        return ""
    said = "; ".join(finding.what for finding in found if finding is not None)
    fewer = "" if threads == 1 else ", or leave them room with --threads 1"
    return f"this machine is busy: {said}. Times will be in doubt: wait until it is quiet{fewer} (ampbench doctor)"


class Process(NamedTuple):
    """A process: its name, the CPU ticks it has used, and who started it."""

    name: str
    ticks: int
    parent: int


def parse_process(stat: str) -> Process | None:
    """Read /proc/PID/stat; a process' name may hold blanks and brackets."""
    head, bracket, tail = stat.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) < 13:
        return None
    return Process(head.partition("(")[2], int(fields[11]) + int(fields[12]), int(fields[1]))


def busiest(
    before: Mapping[int, Process], after: Mapping[int, Process], elapsed_ticks: float
) -> list[tuple[str, float]]:
    """Return name and share of one CPU of the three processes that took most of it, those above 5%."""
    shares = [
        (one.name, (one.ticks - before[process].ticks) / elapsed_ticks)
        for process, one in after.items()
        if process in before and elapsed_ticks > 0
    ]
    return sorted(((name, share) for name, share in shares if share > BUSY_SHARE), key=lambda each: -each[1])[:3]


def busy_finding(before: CpuTimes | None, after: CpuTimes | None, processes: list[tuple[str, float]]) -> Spoiler | None:
    """Judge the CPU time that other processes took while nothing was measured."""
    share = _share(before, after, "busy")
    if share is None or share <= BUSY_SHARE:
        return None
    names = ", ".join(f"{name} ({used:.0%} of one CPU)" for name, used in processes)
    return Spoiler(
        name="other processes",
        what=f"other processes take {share:.0%} of the CPU time" + (f": {names}" if names else ""),
        why="they take processor time and cache from what is timed, unevenly",
        remedy="end them, or measure when they are done",
        grave=True,
    )


def steal_finding(before: CpuTimes | None, after: CpuTimes | None) -> Spoiler | None:
    """Judge the CPU time that the hypervisor gave to other machines."""
    share = _share(before, after, "steal")
    if share is None or share <= SPREADING_STEAL:
        return None
    return Spoiler(
        name="steal",
        what=f"the hypervisor gives {share:.1%} of the CPU time to other machines",
        why="steps take longer by an amount that no repetition on this machine averages out",
        remedy="use a dedicated host or instance, or measure at another time",
        grave=True,
    )


def load_finding(loadavg: str, cpu_count: int) -> Spoiler | None:
    """Judge /proc/loadavg against the number of processors."""
    fields = loadavg.split()
    if not fields or float(fields[0]) <= 0.5 * cpu_count:
        return None
    return Spoiler(
        name="load",
        what=f"the load of the last minute is {float(fields[0]):.1f} on {cpu_count} CPUs",
        why="threads of a step wait for a processor that someone else has",
        remedy="wait until the load has gone; fewer --threads leave room for what must run beside",
        grave=True,
    )


def governor_finding(governors: set[str]) -> Spoiler | None:
    """Judge the CPU frequency governors in use."""
    slow = sorted(governors - {"performance", ""})
    if not slow:
        return None
    return Spoiler(
        name="CPU governor",
        what=f"the CPU frequency governor is {', '.join(slow)}",
        why="the clock follows the load, so that the first steps of a round run slower than the last",
        remedy="sudo cpupower frequency-set -g performance",
        grave=True,
    )


def turbo_finding(no_turbo: str, boost: str) -> Spoiler | None:
    """Judge Intel's `no_turbo` ("0": turbo is on) and the generic `boost` ("1": on); both empty: not known."""
    if no_turbo.strip() == "0":
        remedy = "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo"
    elif not no_turbo.strip() and boost.strip() == "1":
        remedy = "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
    else:
        return None
    return Spoiler(
        name="turbo",
        what="turbo clocks are on",
        why="the clock depends on temperature and on how many cores are busy",
        remedy=f"for comparisons over days: {remedy}",
        grave=False,
    )


def quota_finding(quota_cpus: float | None, cpu_count: int) -> Spoiler | None:
    """Judge the CPUs' worth of time that the container may use (None: no limit)."""
    if quota_cpus is None or quota_cpus >= cpu_count:
        return None
    return Spoiler(
        name="CPU quota",
        what=f"this container may use {quota_cpus:g} of {cpu_count} CPUs' time",
        why="a step that uses more threads is stopped for the rest of each scheduling period, tens of milliseconds",
        remedy=f"run with --threads {max(int(quota_cpus), 1)}, or lift the quota (docker run --cpus, limits.cpu)",
        grave=True,
    )


def memory_finding(meminfo: str) -> Spoiler | None:
    """Judge /proc/meminfo: memory that can be had without swapping."""
    kibibytes = {}
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if value.strip():
            kibibytes[name] = int(value.split()[0])
    available = kibibytes.get("MemAvailable")
    if available is None or available * 1024 >= LOW_MEMORY_BYTES:
        return None
    return Spoiler(
        name="memory",
        what=f"{available / 1024**2:.1f} GiB of memory are available",
        why="networks that do not fit swap, which is slow, or are killed, which makes them failed rows",
        remedy="close what uses memory, or run --preset tiny; --memory-limit makes the failure early and clear",
        grave=True,
    )


def virtual_finding(cpu_info: str) -> Spoiler | None:
    """Judge the CPU flags in /proc/cpuinfo: `hypervisor` is set inside a virtual machine."""
    flags = next((line for line in cpu_info.splitlines() if line.startswith("flags")), "")
    if "hypervisor" not in flags.split():
        return None
    return Spoiler(
        name="virtual machine",
        what="this is a virtual machine",
        why="clocks, caches and neighbours are the host's affair: two days on it may differ more than two versions",
        remedy="compare within one session (interleaved), not across days",
        grave=False,
    )


def parse_quota(cpu_max: str, quota_us: str = "", period_us: str = "") -> float | None:
    """Read a CPU quota from cgroup v2's cpu.max ("150000 100000"), else from v1's two files; None: no limit."""
    fields = cpu_max.split() or [*quota_us.split(), *period_us.split()]
    if len(fields) != 2 or fields[0] == "max" or int(fields[0]) <= 0 or int(fields[1]) <= 0:
        return None
    return int(fields[0]) / int(fields[1])


def _quota(root: Path) -> float | None:
    """Return the tightest quota of this process' control groups, from the outermost to its own."""
    groups = [
        line.split(":", 2)[2].strip("/") for line in _read(root / "proc/self/cgroup").splitlines() if "::" in line
    ]
    folders = [root / "sys/fs/cgroup"]
    for part in Path(groups[0]).parts if groups else ():
        folders.append(folders[-1] / part)
    quotas = [parse_quota(_read(folder / "cpu.max")) for folder in folders]
    old = root / "sys/fs/cgroup/cpu"
    quotas.append(parse_quota("", _read(old / "cpu.cfs_quota_us"), _read(old / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota is not None), default=None)


def _share(before: CpuTimes | None, after: CpuTimes | None, kind: str) -> float | None:
    if before is None or after is None or after.total <= before.total:
        return None
    passed: int = getattr(after, kind) - getattr(before, kind)
    return passed / (after.total - before.total)


def _processes(root: Path) -> tuple[dict[int, Process], int]:
    """Return every other process by its number, and the CPU ticks of this one and all that it started."""
    found: dict[int, Process] = {}
    for path in root.glob("proc/[0-9]*/stat"):
        process = parse_process(_read(path))
        if process is not None:
            found[int(path.parent.name)] = process
    own = {os.getpid()}
    for number in sorted(found):  # who was started later has a higher number, until these begin anew
        if found[number].parent in own:
            own.add(number)
    return {number: one for number, one in found.items() if number not in own}, sum(
        one.ticks for number, one in found.items() if number in own
    )


def _read(path: Path) -> str:
    """Return a file's text, empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
