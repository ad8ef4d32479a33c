"""Three hosts made of network namespaces, and Ray started on them by the documented commands."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampbench.store import list_runs, read_run
from tests.fleet.test_on_ray import run, runs_of, turns_of, wait_for

pytest.importorskip("ray")
QUICK = ["--preset", "tiny", "--rounds", "2", "--min-run-time", "0.02"]
NET = "10.231.77"
BRIDGE = "ampbench-br"


def may_make_hosts() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare")))


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not may_make_hosts(), reason="needs root, ip and unshare")]


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Host:
    """A network namespace with an address, in which Ray is started as docs/fleet.md says."""

    def __init__(self, number: int, folder: Path):
        self.name, self.address = f"ampbench-{number}", f"{NET}.{number}"
        self.folder = folder
        self._ray: subprocess.Popen[bytes] | None = None
        ip("netns", "add", self.name)
        ip("link", "add", f"amp{number}", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", f"amp{number}", "master", BRIDGE, "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self.name, *words)

    def inside(self, *command: str) -> list[str]:
        """Return what runs a command on this host, under the host's own name."""
        set_name = f'hostname {self.name}; exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", set_name, "sh", *command]

    def start(self, *words: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        command = self.inside(ray, "start", *words, f"--node-ip-address={self.address}", "--num-cpus=1", "--block")
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        self._ray = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def knows(self, nodes: int) -> bool:
        """Return whether the cluster whose head is here has so many nodes."""
        tell = f"import ray; ray.init('{self.address}:6379', log_to_driver=False); print('nodes', len(ray.nodes()))"
        told = subprocess.run(
            self.inside(sys.executable, "-c", tell), capture_output=True, text=True, check=False,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
        return f"nodes {nodes}" in told.stdout

    def kill(self) -> None:
        """End all that runs on this host at once, as a power cut does."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        for pid in found.stdout.split():
            subprocess.run(["kill", "-9", pid], check=False)
        if self._ray is not None:
            self._ray.wait()
            self._ray = None

    def remove(self) -> None:
        self.kill()
        ip("netns", "del", self.name, check=False)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    ip("link", "add", BRIDGE, "type", "bridge")
    made: list[Host] = []
    try:
        ip("link", "set", BRIDGE, "up")
        for number in (1, 2, 3, 4):
            made.append(Host(number, tmp_path))
        yield made
    finally:
        for host in made:
            host.remove()
        ip("link", "del", BRIDGE, check=False)


def test_a_host_is_killed_in_mid_run_and_another_joins_and_the_set_is_complete(
    hosts: list[Host], tmp_path: Path
) -> None:
    head, one, two, late = hosts
    head.start("--head", "--port=6379", "--include-dashboard=false")
    wait_for(lambda: head.knows(1))
    for count, host in enumerate((one, two), 2):  # one after the other: they share the folder of Ray's files
        host.start(f"--address={head.address}:6379")
        wait_for(lambda: head.knows(count))  # noqa: B023 - it is called in this turn
    selected = ["linear", "heads", "--precision", "fp32,bf16_autocast,bf16_pure", "--phase", "inference", *QUICK]
    ampbench = [sys.executable, "-m", "ampbench"]
    command = head.inside(*ampbench, "run", *selected, "--ray", "auto", "--on", "spread")
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "100"},
    )  # fmt: skip
    wait_for(lambda: any(name == one.name and run.memory for name, run in runs_of(tmp_path).items()), 240)
    one.kill()
    late.start(f"--address={head.address}:6379")
    err = process.communicate(timeout=900)[1]
    assert process.returncode == 0, err
    runs = runs_of(tmp_path)
    assert one.name in runs
    assert f"{one.name}: lost:" in err
    local = run(tmp_path, "run", *selected, "--results", "local")
    assert local.returncode == 0, local.stderr
    expected = read_run(list_runs(tmp_path / "local")[0])
    found = turns_of(runs)
    assert len(found) == len(set(found))
    assert set(found) == set(turns_of({"": expected}))
