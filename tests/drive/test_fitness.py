"""Fitness to measure, from the texts that kernels write."""

import os
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


@pytest.mark.parametrize("text", ["", "intr 5\n"])
def test_no_cpu_times_where_the_kernel_gives_none(text: str) -> None:
    assert fitness.parse_cpu_times(text) is None


def test_old_kernels_report_no_steal() -> None:
    assert fitness.parse_cpu_times("cpu 1 2 3 4\n") == CpuTimes(busy=6, steal=0, total=10)


def test_a_process_may_have_any_name() -> None:
    stat = "4242 (a) (b c) S 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20 0 1 0"
    assert fitness.parse_process(stat) == ("a) (b c", 150, 1)
    assert fitness.parse_process("") is None


def process(name: str, ticks: int) -> fitness.Process:
    return fitness.Process(name, ticks, parent=1)


def test_the_busiest_processes_are_named() -> None:
    before = {1: process("idle", 10), 2: process("cc1plus", 100), 3: process("gone", 5), 4: process("firefox", 0)}
    after = {1: process("idle", 11), 2: process("cc1plus", 150), 4: process("firefox", 20), 5: process("new", 90)}
    assert fitness.busiest(before, after, 50) == [("cc1plus", 1.0), ("firefox", 0.4)]
    assert fitness.busiest(before, after, 0) == []


def test_time_taken_by_other_processes_is_a_finding() -> None:
    quiet, busy = CpuTimes(0, 0, 0), CpuTimes(30, 0, 100)
    finding = fitness.busy_finding(quiet, busy, [("cc1plus", 0.6)])
    assert finding is not None
    assert finding.what == "other processes take 30% of the CPU time: cc1plus (60% of one CPU)"
    assert fitness.busy_finding(quiet, CpuTimes(3, 0, 100), []) is None
    assert fitness.busy_finding(None, busy, []) is None
    assert fitness.busy_finding(busy, busy, []) is None


def test_steal_is_a_finding_from_one_per_cent() -> None:
    start = CpuTimes(0, 0, 0)
    assert fitness.steal_finding(start, CpuTimes(50, 1, 100)) is None
    finding = fitness.steal_finding(start, CpuTimes(50, 4, 100))
    assert finding is not None
    assert "4.0%" in finding.what


@pytest.mark.parametrize(("loadavg", "found"), [("0.90 0 0 1/84 3", False), ("1.10 0 0 1/84 3", True), ("", False)])
def test_load_is_judged_by_the_number_of_cpus(loadavg: str, found: bool) -> None:
    assert (fitness.load_finding(loadavg, 2) is not None) == found


def test_a_governor_that_saves_power_is_a_finding() -> None:
    finding = fitness.governor_finding({"powersave", "performance"})
    assert finding is not None
    assert "powersave" in finding.what
    assert "cpupower" in finding.remedy
    assert fitness.governor_finding({"performance"}) is None
    assert fitness.governor_finding(set()) is None


@pytest.mark.parametrize(
    ("no_turbo", "boost", "remedy"),
    [("0\n", "", "echo 1"), ("", "1\n", "echo 0"), ("1\n", "1\n", None), ("", "0\n", None), ("", "", None)],
)
def test_turbo_is_read_from_either_driver(no_turbo: str, boost: str, remedy: str | None) -> None:
    finding = fitness.turbo_finding(no_turbo, boost)
    assert (finding is None) == (remedy is None)
    if finding is not None and remedy is not None:
        assert remedy in finding.remedy
        assert not finding.grave


@pytest.mark.parametrize(
    ("texts", "cpus"),
    [
        (("150000 100000\n",), 1.5),
        (("max 100000\n",), None),
        (("", "200000\n", "100000\n"), 2.0),
        (("", "-1\n", "100000\n"), None),
        (("",), None),
    ],
)
def test_quotas_of_both_kinds_of_control_group_are_read(texts: tuple[str, ...], cpus: float | None) -> None:
    assert fitness.parse_quota(*texts) == cpus


def test_a_quota_below_the_number_of_cpus_says_how_many_threads_fit() -> None:
    finding = fitness.quota_finding(1.5, 8)
    assert finding is not None
    assert "--threads 1" in finding.remedy
    assert fitness.quota_finding(8.0, 8) is None
    assert fitness.quota_finding(None, 8) is None


def test_low_memory_is_a_finding() -> None:
    finding = fitness.memory_finding(MEMINFO.format(available=1_048_576))
    assert finding is not None
    assert finding.what == "1.0 GiB of memory are available"
    assert fitness.memory_finding(MEMINFO.format(available=24_180_176)) is None
    assert fitness.memory_finding("") is None


def test_a_virtual_machine_is_worth_knowing_but_not_grave() -> None:
    finding = fitness.virtual_finding(CPU_INFO.format(flags="hypervisor"))
    assert finding is not None
    assert not finding.grave
    assert fitness.virtual_finding(CPU_INFO.format(flags="")) is None


def test_a_whole_machine_is_inspected_the_gravest_first(tmp_path: Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/stat", STAT)
    write("proc/cpuinfo", CPU_INFO.format(flags="hypervisor"))
    write("proc/loadavg", "9.50 0 0 1/84 3")
    write("proc/meminfo", MEMINFO.format(available=24_180_176))
    write("proc/7/stat", "7 (cc1plus) R 1 2 3 4 5 6 7 8 9 10 100 0 0 0")
    write("proc/self/cgroup", "1:cpu:/\n0::/box/inner\n")
    write("sys/fs/cgroup/cpu.max", "max 100000\n")
    write("sys/fs/cgroup/box/cpu.max", "50000 100000\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")

    def pause(seconds: float) -> None:
        write("proc/stat", "cpu  12393 7 5792 219519 998 3 130 233 11 0\n")
        write("proc/7/stat", "7 (cc1plus) R 1 2 3 4 5 6 7 8 9 10 140 0 0 0")

    findings = fitness.inspect(tmp_path, seconds=1.0, pause=pause, ticks=100)
    assert [finding.name for finding in findings] == [
        "other processes",
        "steal",
        "load",
        "CPU governor",
        "CPU quota",
        "virtual machine",
    ]
    assert "cc1plus (40% of one CPU)" in findings[0].what
    assert "0.5 of 2 CPUs" in findings[4].what


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


def test_this_machine_can_be_inspected() -> None:
    for finding in fitness.inspect(seconds=0.01):
        assert finding.what
        assert finding.why
        assert finding.remedy


def machine(root: Path, busy: int, idle: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text(f"cpu {busy} 0 0 {idle} 0 0 0 0 0 0\n")


@pytest.mark.parametrize(("busy", "said"), [(10, ""), (60, "other processes take 60% of the CPU time")])
def test_a_busy_machine_is_told_before_anything_is_timed(tmp_path: Path, busy: int, said: str) -> None:
    machine(tmp_path, 0, 0)
    found = fitness.busy_now(0, tmp_path, 1.0, lambda _: machine(tmp_path, busy, 100 - busy))
    assert bool(found) == bool(said)
    assert said in found
    assert not said or found.endswith("wait until it is quiet, or leave them room with --threads 1 (ampbench doctor)")


def test_a_run_on_one_thread_is_not_told_to_take_one(tmp_path: Path) -> None:
    machine(tmp_path, 0, 0)
    assert "--threads" not in fitness.busy_now(1, tmp_path, 1.0, lambda _: machine(tmp_path, 90, 10))


def test_a_machine_that_tells_nothing_is_not_called_busy(tmp_path: Path) -> None:
    assert fitness.busy_now(0, tmp_path, 1.0, lambda _: None) == ""


def described(**state: Any) -> Environment:
    """Return an environment with a GPU that told a worker so much of itself."""
    gpu = DeviceDescription(type="cuda", available=True, name="H200", state=DeviceState(**state))
    return replace(make_header().environment, devices=[gpu])


def test_a_device_that_tells_all_and_is_alone_gives_no_finding() -> None:
    assert device_findings(described(source="NVML", power_limit_watts=700.0, default_limit_watts=700.0)) == []
    assert device_findings(make_header().environment) == []


def test_others_on_a_device_are_named_and_grave_a_limit_and_missing_sensors_are_told() -> None:
    found = device_findings(
        described(
            source="NVML",
            power_limit_watts=500.0,
            default_limit_watts=700.0,
            processes=["4711 python3 (3.20 GiB)"],
            unavailable=["NVML does not tell the temperature: Not Supported"],
        )
    )
    assert [(one.what, one.grave) for one in found] == [
        ("others use cuda: 4711 python3 (3.20 GiB)", True),
        ("cuda may take 500 W, by default 700 W", False),
        ("cuda does not tell all of itself: NVML does not tell the temperature: Not Supported", False),
    ]
    assert "nvidia-smi -pl 700" in found[1].remedy


def test_an_instance_of_a_gpu_is_told_that_it_has_no_sensors() -> None:
    (found,) = device_findings(described(unavailable=["an instance of a GPU (MIG): no sensors"], mig=True))
    assert "MIG" in found.what
    assert "whole GPU" in found.remedy
