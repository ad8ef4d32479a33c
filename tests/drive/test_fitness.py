"""Fitness to measure, from the texts that kernels write."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ampbench.drive import fitness
from ampbench.drive.fitness import device_findings
from ampbench.records.case import DeviceDescription, DeviceState, Environment
from ampbench.records.measured import CpuTimes
from tests.stored_runs import make_header

STAT = "cpu  12353 7 5792 219519 998 3 130 193 11 0\ncpu0 3923 0 2323 112828 243 0 23 90 0 0\n"
MEMINFO = "MemTotal:       24684096 kB\nMemAvailable:   {available} kB\nHugePages_Total:       0\n"
CPU_INFO = "processor\t: 0\nflags\t\t: fpu vme {flags} avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu vme avx512_bf16\n"


def test_cpu_times_leave_guest_time_out_as_it_is_part_of_user_time() -> None:
    assert fitness.parse_cpu_times(STAT) == CpuTimes(busy=12353 + 7 + 5792 + 3 + 130, steal=193, total=238995)


def inspected(root: Path, files: Mapping[str, str], later: Mapping[str, str] | None = None) -> list[fitness.Spoiler]:
    """Return the findings on a machine with these files, some of which change while it is watched."""

    def write(texts: Mapping[str, str]) -> None:
        for path, text in texts.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)

    write(files)
    return fitness.inspect(root, seconds=1.0, pause=lambda _: write(later or {}), ticks=100)


CPUS = "sys/devices/system/cpu"
GROUPS = {"proc/self/cgroup": "1:cpu:/\n0::/box/inner\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
TWO = {"proc/cpuinfo": CPU_INFO.format(flags="")}


@pytest.mark.parametrize(
    ("files", "name", "text"),
    [
        ({f"{CPUS}/cpu0/cpufreq/scaling_governor": "powersave\n"}, "CPU governor", "powersave"),
        ({f"{CPUS}/cpu0/cpufreq/scaling_governor": "performance\n"}, None, ""),
        ({f"{CPUS}/intel_pstate/no_turbo": "0\n"}, "turbo", "echo 1"),
        ({f"{CPUS}/intel_pstate/no_turbo": "1\n"}, None, ""),
        ({f"{CPUS}/cpufreq/boost": "1\n"}, "turbo", "echo 0"),
        ({f"{CPUS}/cpufreq/boost": "0\n"}, None, ""),
        (TWO | GROUPS | {"sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, "CPU quota", "--threads 1"),
        (TWO | GROUPS, None, ""),
        ({"proc/meminfo": MEMINFO.format(available=1_048_576)}, "memory", "1.0 GiB"),
        ({"proc/meminfo": MEMINFO.format(available=24_180_176)}, None, ""),
        ({"proc/cpuinfo": CPU_INFO.format(flags="hypervisor")}, "virtual machine", ""),
    ],
)
def test_each_finding_of_a_machine(tmp_path: Path, files: dict[str, str], name: str | None, text: str) -> None:
    findings = inspected(tmp_path, files)
    assert [finding.name for finding in findings] == ([name] if name else [])
    assert all(text in finding.what + finding.remedy for finding in findings)


def test_steal_counts_from_one_per_cent_and_other_processes_from_five(tmp_path: Path) -> None:
    before, few = {"proc/stat": "cpu 0 0 0 0 0 0 0 0\n"}, {"proc/stat": "cpu 5 0 0 94 0 0 0 1\n"}
    assert inspected(tmp_path, before, few) == []
    steal, busy = inspected(tmp_path, before, {"proc/stat": "cpu 30 0 0 66 0 0 0 4\n"})[::-1]
    assert "4.0%" in steal.what
    assert "30%" in busy.what


def test_a_whole_machine_is_inspected_the_gravest_first(tmp_path: Path) -> None:
    stat = "7 (cc1plus) R 1 2 3 4 5 6 7 8 9 10 {} 0 0 0"
    files = GROUPS | {
        "proc/stat": STAT, "proc/cpuinfo": CPU_INFO.format(flags="hypervisor"), "proc/7/stat": stat.format(100),
        "sys/fs/cgroup/box/cpu.max": "50000 100000\n",
    }  # fmt: skip
    later = {"proc/stat": "cpu  12393 7 5792 219519 998 3 130 233 11 0\n", "proc/7/stat": stat.format(140)}
    findings = inspected(tmp_path, files, later)
    names = ["other processes", "steal", "CPU quota", "virtual machine"]
    assert [finding.name for finding in findings] == names
    assert "cc1plus (40% of one CPU)" in findings[0].what
    assert "0.5 of 2 CPUs" in findings[2].what


def test_what_this_process_and_those_that_it_started_do_is_nobody_elses(tmp_path: Path) -> None:
    """As a server's import of torch, in the meantime of which a machine is watched."""
    own = os.getpid()

    def write(ticks: int) -> None:
        for number, parent in ((own, 1), (own + 1, own), (own + 2, own + 1)):
            (tmp_path / f"proc/{number}").mkdir(parents=True, exist_ok=True)
            stat = f"{number} (python) R {parent} 2 3 4 5 6 7 8 9 10 {ticks} 0 0 0"
            (tmp_path / f"proc/{number}/stat").write_text(stat)
        (tmp_path / "proc/stat").write_text(f"cpu {3 * ticks + more} 0 0 1000\n")

    more = 0
    write(0)
    assert fitness.inspect(tmp_path, seconds=1.0, pause=lambda _: write(30), ticks=100) == []
    write(0)
    more = 100
    (found,) = fitness.inspect(tmp_path, seconds=1.0, pause=lambda _: write(30), ticks=100)
    assert found.what == "other processes take 53% of the CPU time"


def test_a_machine_that_tells_nothing_gives_no_findings(tmp_path: Path) -> None:
    assert fitness.inspect(tmp_path, pause=lambda seconds: None) == []


def described(**state: Any) -> Environment:
    """Return an environment with a GPU that told a worker so much of itself."""
    gpu = DeviceDescription(type="cuda", available=True, name="H200", state=DeviceState(**state))
    return replace(make_header().environment, devices=[gpu])


def test_others_on_a_device_are_named_and_grave_a_limit_and_missing_sensors_are_told() -> None:
    found = device_findings(
        described(
            source="NVML",
            power_limit_watts=500.0,
            default_limit_watts=700.0,
            processes=["4711 python3 (3.20 GiB)"],
            unavailable=["NVML does not report the power: Not Supported"],
        )
    )
    assert [(one.what, one.grave) for one in found] == [
        ("others use cuda: 4711 python3 (3.20 GiB)", True),
        ("cuda may take 500 W, by default 700 W", False),
        ("cuda lacks sensors: NVML does not report the power: Not Supported", False),
    ]
    assert "nvidia-smi -pl 700" in found[1].remedy
