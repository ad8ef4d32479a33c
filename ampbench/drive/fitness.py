"""Reasons why a machine is unfit to measure on, with remedies: read from /proc and /sys, without torch.

`root` is the folder of proc/ and sys/, so that a test can describe any machine; an absent file gives no finding.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ampbench.records.case import Environment
from ampbench.records.measured import OTHER_SHARE, STEAL_SHARE, parse_cpu_times

BUSY_SHARE = 0.05
"""The share of all CPU time of other processes that counts: less hides in the 2% of placement luck."""
SPREADING_STEAL = 0.01
"""The share of CPU time taken by the hypervisor from which timings on a shared host spread."""
LOW_MEMORY_KIB = 2 * 1024**2
"""torch with its libraries takes about half a GiB in each process; below this a run soon swaps or is killed."""


@dataclass(frozen=True, slots=True)
class Spoiler:
    """A reason why measurements are unreliable: `what` happens, `why` it matters, the `remedy`.

    `grave` findings move results by more than the stated intervals; the others are for information.
    """

    name: str
    what: str
    why: str
    remedy: str
    grave: bool = True


class Process(NamedTuple):
    """A process: its name, the CPU ticks it has used, and the number of its parent."""

    name: str
    ticks: int
    parent: int


class Watched(NamedTuple):
    """The shares of all CPU time of other processes and the hypervisor, and the names of the busiest processes."""

    busy: float
    steal: float
    names: str

    @property
    def busy_words(self) -> str:
        """The share of other processes and their names."""
        return f"other processes take {self.busy:.0%} of the CPU time" + (f": {self.names}" if self.names else "")

    @property
    def steal_words(self) -> str:
        """The share of the hypervisor."""
        return f"the hypervisor gives {self.steal:.1%} of the CPU time to other machines"


def inspect(
    root: Path = Path("/"), seconds: float = 0.5, pause: Callable[[float], None] = time.sleep, ticks: int | None = None
) -> list[Spoiler]:
    """Return the reasons why this machine is unfit, the gravest first; takes `seconds`.

    The work of this process and its descendants does not count. `ticks` are the kernel's per second.
    """
    findings = _machine_findings(root, watched(root, seconds, pause, ticks))
    return sorted(findings, key=lambda finding: not finding.grave)


def busy_now(
    threads: int | None, root: Path = Path("/"), seconds: float = 0.3, pause: Callable[[float], None] = time.sleep
) -> str:
    """Return a warning that times measured now are unreliable, with a remedy; "" on a quiet machine.

    A machine is busy above the limits of an unfit round (`records.measured`). torch will use `threads`.
    """
    now = watched(root, seconds, pause)
    reasons = [now.busy_words] * (now.busy > OTHER_SHARE) + [now.steal_words] * (now.steal > STEAL_SHARE)
    if not reasons:
        return ""
    fewer = "" if threads == 1 else ", or leave them room with --threads 1"
    return (
        f"this machine is busy: {'; '.join(reasons)}. Times will be in doubt: wait until it is quiet{fewer} "
        "(ampbench doctor)"
    )


def _machine_findings(root: Path, now: Watched) -> Iterator[Spoiler]:
    cpu_info = _read(root / "proc/cpuinfo")
    cpu_count = max(cpu_info.count("processor\t"), 1)
    if now.busy > BUSY_SHARE:
        yield Spoiler(
            "other processes", now.busy_words, "they take processor time and cache from the measurement, unevenly",
            "end them, or measure when they are done",
        )  # fmt: skip
    if now.steal > SPREADING_STEAL:
        yield Spoiler(
            "steal", now.steal_words, "steps take longer by an amount that no repetition on this machine averages out",
            "use a dedicated host or instance, or measure at another time",
        )  # fmt: skip
    governors = {_read(path).strip() for path in root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")}
    if slow := sorted(governors - {"performance", ""}):
        yield Spoiler(
            "CPU governor", f"the CPU frequency governor is {', '.join(slow)}",
            "the clock follows the load, so that the first steps of a round run slower than the last",
            "sudo cpupower frequency-set -g performance",
        )  # fmt: skip
    for switch, on, off in (("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")):
        if _read(root / "sys/devices/system/cpu" / switch).strip() == on:
            yield Spoiler(
                "turbo", "turbo clocks are on", "the clock depends on temperature and on how many cores are busy",
                f"for comparisons over days: echo {off} | sudo tee /sys/devices/system/cpu/{switch}", grave=False,
            )  # fmt: skip
    if (quota := _quota(root)) is not None and quota < cpu_count:
        yield Spoiler(
            "CPU quota", f"this container may use {quota:g} of {cpu_count} CPUs' time",
            "a step that uses more threads is stopped for the rest of each scheduling period, tens of milliseconds",
            f"run with --threads {max(int(quota), 1)}, or lift the quota (docker run --cpus, limits.cpu)",
        )  # fmt: skip
    if (available := available_kib(root) or LOW_MEMORY_KIB) < LOW_MEMORY_KIB:
        yield Spoiler(
            "memory", f"{available / 1024**2:.1f} GiB of memory are available",
            "networks that do not fit swap, which is slow, or are killed, which makes them failed rows",
            "close what uses memory, or run --preset tiny; --memory-limit makes the failure early and clear",
        )  # fmt: skip
    flags = next((line for line in cpu_info.splitlines() if line.startswith("flags")), "")
    if "hypervisor" in flags.split():
        yield Spoiler(
            "virtual machine", "this is a virtual machine",
            "clocks, caches and neighbours are the host's: two days on it may differ more than two versions",
            "compare within one session (interleaved), not across days", grave=False,
        )  # fmt: skip


def available_kib(root: Path = Path("/")) -> int | None:
    """Return the memory available now (proc(5), MemAvailable) in KiB; None where it is unknown."""
    memory = dict(line.split()[:2] for line in _read(root / "proc/meminfo").splitlines())
    return int(memory["MemAvailable:"]) if "MemAvailable:" in memory else None


def device_findings(environment: Environment) -> list[Spoiler]:
    """Return the reasons why the accelerators of an environment are unfit, the gravest first."""
    findings: list[Spoiler] = []
    for device in environment.devices:
        state, name = device.state, device.type
        if state is None or not device.available:
            continue
        if state.processes:
            findings.append(
                Spoiler(
                    f"{name} processes", f"others use {name}: {', '.join(state.processes)}",
                    "they take time, memory and power from the measurement, unevenly",
                    "end them, or choose another device (CUDA_VISIBLE_DEVICES, ZE_AFFINITY_MASK)",
                )
            )  # fmt: skip
        limit, default = state.power_limit_watts, state.default_limit_watts
        if limit is not None and default is not None and limit < default:
            remedy = f"sudo nvidia-smi -pl {default:.0f}, or on battery plug it in"
            findings.append(
                Spoiler(
                    f"{name} power limit", f"{name} may take {limit:.0f} W, by default {default:.0f} W",
                    "under load its clock falls further: times hold for this limit alone", remedy, grave=False,
                )
            )  # fmt: skip
        if state.unavailable:
            remedy = "times are measured all the same; look at them twice"
            if state.mig:
                remedy = "measure on a whole GPU, or keep in mind that this is an instance"
            findings.append(
                Spoiler(
                    f"{name} sensors", f"{name} lacks sensors: {'; '.join(state.unavailable)}",
                    "a slowdown by heat or by its limit is then not seen, and there is no energy", remedy, grave=False,
                )
            )  # fmt: skip
    return sorted(findings, key=lambda finding: not finding.grave)


def watched(root: Path, seconds: float, pause: Callable[[float], None], ticks: int | None = None) -> Watched:
    """Return the shares of CPU time of others while `pause` lasts for `seconds`; 0 where unknown."""
    elapsed = seconds * (ticks or os.sysconf("SC_CLK_TCK"))
    before, (processes_before, own_before) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    pause(seconds)
    after, (processes_after, own_after) = parse_cpu_times(_read(root / "proc/stat")), _processes(root)
    if before is None or after is None or after.total <= before.total:
        return Watched(0.0, 0.0, "")
    total = after.total - before.total
    busy = after.busy - before.busy - max(own_after - own_before, 0)
    names = ", ".join(
        f"{name} ({share:.0%} of one CPU)" for name, share in busiest(processes_before, processes_after, elapsed)
    )
    return Watched(busy / total, (after.steal - before.steal) / total, names)


def busiest(
    before: Mapping[int, Process], after: Mapping[int, Process], elapsed_ticks: float
) -> list[tuple[str, float]]:
    """Return name and share of one CPU of the three busiest processes above 5%."""
    shares = [
        (process.name, (process.ticks - before[number].ticks) / elapsed_ticks)
        for number, process in after.items()
        if number in before
    ]
    return sorted(((name, share) for name, share in shares if share > BUSY_SHARE), key=lambda named: -named[1])[:3]


def _quota(root: Path) -> float | None:
    """Return the tightest quota in CPUs of this process' control groups (cgroup v2), None without a limit."""
    lines = _read(root / "proc/self/cgroup").splitlines()
    group = Path(next((line.split(":", 2)[2].strip("/") for line in lines if "::" in line), ""))
    folders = [root / "sys/fs/cgroup" / parent for parent in (group, *group.parents)]
    limits = [_read(folder / "cpu.max").split() for folder in folders]
    return min(
        (int(limit[0]) / int(limit[1]) for limit in limits if len(limit) == 2 and limit[0] != "max"), default=None
    )


def _processes(root: Path) -> tuple[dict[int, Process], int]:
    """Return every other process by its number, and the CPU ticks of this one and all its descendants."""
    processes: dict[int, Process] = {}
    for path in root.glob("proc/[0-9]*/stat"):
        head, _, tail = _read(path).rpartition(")")  # a name may hold blanks and brackets
        fields = tail.split()
        if len(fields) >= 13:
            ticks = int(fields[11]) + int(fields[12])
            processes[int(path.parent.name)] = Process(head.partition("(")[2], ticks, int(fields[1]))
    descendants = {os.getpid()}
    for number in sorted(processes):  # later processes have higher numbers, until these wrap around
        if processes[number].parent in descendants:
            descendants.add(number)
    others = {number: process for number, process in processes.items() if number not in descendants}
    return others, sum(process.ticks for number, process in processes.items() if number in descendants)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
