"""Fleets on Ray's own in-process cluster, started as users do: real nodes, real sessions, nothing simulated.

Each cluster has a host of its own (a network namespace) with another address than loopback, where the kernel allows it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.cli.run import NO_RAY
from ampbench.errors import INTERRUPTED, NothingToRunError
from ampbench.records.measured import MemoryPass
from ampbench.store import list_runs, read_run
from tests.fleet.scripted_cluster import runs_of, turns_of

pytest.importorskip("ray")

QUICK = ["--preset", "tiny", "--rounds", "2", "--min-run-time", "0.02"]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""With the second of these Ray's workers do not wait for everything else on a busy machine."""
ADDRESSES = "ip link set lo up && ip address add 10.9.9.1/24 dev lo && ip route add default dev lo src 10.9.9.1"
HOST = ["unshare", "--map-root-user", "--net", "sh", "-c", f'{ADDRESSES} && exec "$@"', "sh"]
MARK = f"AMPBENCH_TEST={os.getpid()}"
"""The variable of the processes of this test's clusters."""
CLUSTER = Path(__file__).with_name("ray_cluster.py")


class Nodes:
    def __init__(self, *nodes: str):
        apart = subprocess.run([*HOST, "true"], capture_output=True, check=False).returncode == 0
        self._process = subprocess.Popen(
            [*(HOST if apart else []), sys.executable, str(CLUSTER), *nodes], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **QUIET, "AMPBENCH_TEST": str(os.getpid())}, start_new_session=True,
        )  # fmt: skip
        inside = ["nsenter", f"--target={self._process.pid}", "--user", "--net", "--preserve-credentials"]
        self._inside = inside if apart else []
        self.address = f"127.0.0.1:{self._line().rpartition(':')[2]}"

    def begun(self, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self._inside, sys.executable, "-m", "ampbench", *arguments], cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **QUIET, "COLUMNS": "100"},
        )  # fmt: skip

    def run(self, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        process = self.begun(folder, *arguments)
        out, err = process.communicate(timeout=400)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def do(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def cluster() -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def start(*nodes: str) -> Nodes:
        made.append(Nodes(*nodes))
        return made[-1]

    yield start
    for one in made:
        one.close()


def bytes_of(found: MemoryPass) -> dict[str, object]:
    return {name: getattr(found, name) for name in MemoryPass.__slots__}


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.2)


@pytest.mark.slow
def test_each_node_measures_what_a_local_run_does_and_its_environment_is_its_own(
    cluster: Callable[..., Nodes], tmp_path: Path
) -> None:
    nodes = cluster("node1=1", "node2=1")
    selected = ["mlp", "--precision", "fp32", "--phase", "inference", *QUICK]
    done = nodes.run(tmp_path, "run", *selected, "--ray", nodes.address, "--json")
    assert done.returncode == 0, done.stderr
    assert nodes.run(tmp_path, "run", *selected, "--results", "local").returncode == 0
    local, runs = read_run(list_runs(tmp_path / "local")[0]), runs_of(tmp_path / "results")
    assert len(runs) == 2
    for name, one in runs.items():
        assert name in (local.header.environment.host, f"{local.header.environment.host}-2")
        assert one.complete
        assert one.cases == local.cases
        assert {key: bytes_of(each) for key, each in one.memory.items()} == {
            key: bytes_of(each) for key, each in local.memory.items()
        }
        for case_id, found in one.divergence.items():
            assert found.output.rel_l2 == local.divergence[case_id].output.rel_l2
        assert one.header.environment.threads == local.header.environment.threads
        assert one.header.environment.variables == local.header.environment.variables
    told = json.loads(done.stdout)
    assert {one["machine"] for one in told["machines"]} == runs.keys()
    fleet = next(iter(runs.values())).header.fleet
    assert fleet is not None
    assert f"fleet {fleet.id}: ampbench show {fleet.id} --all shows" in done.stderr
    shown = nodes.run(tmp_path, "show", fleet.id)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in runs)


@pytest.mark.slow
def test_a_node_that_dies_leaves_its_work_to_another_and_nothing_is_done_twice(
    cluster: Callable[..., Nodes], tmp_path: Path
) -> None:
    nodes = cluster("head=0", "one=1", "two=1")
    selected = ["linear", "--precision", "fp32,bf16_autocast,bf16_pure", "--phase", "inference", *QUICK]
    process = nodes.begun(tmp_path, "run", *selected, "--ray", nodes.address, "--on", "spread")
    wait_for(lambda: len(turns_of(runs_of(tmp_path / "results"))) > 4)
    nodes.do("kill one")
    nodes.do("add late=1")
    _, err = process.communicate(timeout=400)
    assert (process.returncode, "-one: lost: its node died" in err) == (0, True), err
    local = nodes.run(tmp_path, "run", *selected, "--results", "local")
    assert local.returncode == 0
    expected = read_run(list_runs(tmp_path / "local")[0])
    found = turns_of(runs_of(tmp_path / "results"))
    assert {*found.values()} == {1}
    assert set(found) == set(turns_of({"": expected}))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_driver_that_is_ended_from_outside_is_resumed_and_measures_what_is_missing(
    cluster: Callable[..., Nodes], tmp_path: Path, number: signal.Signals
) -> None:
    nodes = cluster("one=1")
    selected = ["mlp", "decoder_lm", "--precision", "fp32,bf16_autocast,bf16_pure", "--phase", "inference", *QUICK]
    process = nodes.begun(tmp_path, "run", *selected, "--ray", nodes.address)
    wait_for(lambda: len(turns_of(runs_of(tmp_path / "results"))) > 3)
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    (before,) = runs_of(tmp_path / "results").values()
    assert before.header.fleet is not None
    if number != signal.SIGKILL:
        assert (process.returncode, before.ended) == (INTERRUPTED, "interrupted"), err
        assert f"--resume {before.header.fleet.id} --ray {nodes.address} goes on" in err
    done = nodes.run(tmp_path, "run", "--resume", before.header.fleet.id, "--ray", nodes.address)
    assert done.returncode == 0, done.stderr
    found = turns_of(runs_of(tmp_path / "results"))
    assert {*found.values()} == {1}
    assert len(list_runs(tmp_path / "results")) == 1
    (after,) = runs_of(tmp_path / "results").values()
    assert {case_id for _, case_id, _ in found} == set(after.cases) - set(after.skips)


@pytest.mark.slow
def test_a_users_file_travels_and_its_servers_go_with_the_driver(cluster: Callable[..., Nodes], tmp_path: Path) -> None:
    nodes = cluster("one=1")
    source = "import torch\ndef make():\n    return torch.nn.Linear(8, 8), torch.randn(4, 8)\n"
    (tmp_path / "model.py").write_text(source)
    done = nodes.run(tmp_path, "run", "model.py:make", *QUICK, "--precision", "fp32", "--ray", nodes.address)
    assert done.returncode == 0, done.stderr
    (tmp_path / "inside").mkdir()
    outside = nodes.run(tmp_path / "inside", "run", "../model.py:make", *QUICK, "--ray", nodes.address)
    assert "model.py is outside the current folder" in outside.stderr
    process = nodes.begun(
        tmp_path, "run", "model.py:make", "--rounds", "500", "--precision", "fp32", "--ray", nodes.address
    )
    wait_for(lambda: bool(servers()))
    process.kill()
    process.communicate()
    wait_for(lambda: not servers())


@pytest.mark.slow
def test_where_the_head_is_gone_all_that_was_measured_is_there_and_another_cluster_goes_on(
    cluster: Callable[..., Nodes], tmp_path: Path
) -> None:
    nodes = cluster("head=0", "one=1")
    quick = [*QUICK, "--rounds", "30"]  # for longer than it is silent
    selected = ["mlp", "--precision", "bf16_pure", "--phase", "inference", *quick]
    process = nodes.begun(tmp_path, "run", *selected, "--ray", nodes.address, "--json")
    wait_for(lambda: len(turns_of(runs_of(tmp_path / "results"))) > 3)
    nodes.do("kill head")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 5, (process.returncode, out, err)
    assert "has not answered for" in err
    assert json.loads(out)["machines"]
    (before,) = runs_of(tmp_path / "results").values()
    assert before.header.fleet is not None
    again = cluster("head=0", "one=1")  # a host of two nodes has both names in its lane's
    done = again.run(tmp_path, "run", "--resume", before.header.fleet.id, "--ray", again.address)
    assert done.returncode == 0, done.stderr
    found = turns_of(runs_of(tmp_path / "results"))
    assert {*found.values()} == {1}
    (after,) = runs_of(tmp_path / "results").values()
    assert {case_id for _, case_id, _ in found} == set(after.cases) - set(after.skips)


def servers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            of_test = MARK.encode() in (path.parent / "environ").read_bytes()
            if of_test and b"ampbench.worker.server" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--ray", "127.0.0.1:1", "--on", "every"], 2, "unknown --on 'every'"),
        (["--ray", "127.0.0.1:1", "--shard", "1/2"], 2, "--ray and --shard contradict each other"),
        (["--ray", "here"], 2, "--ray 'here': expected auto, or host:port"),
        (["--on", "spread"], 2, "--on is of a fleet: name its cluster, as in --ray auto"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line_before_a_cluster_is_asked(
    given: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["run", "mlp", *QUICK, *given]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1, err
    assert not (tmp_path / "results").exists()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ampbench.cli import run
    from ampbench.errors import UsageError

    monkeypatch.setattr(run, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="ampbench run --ray needs Ray"):
        run.new_fleet("auto", "")
    assert "ampbench[ray]" in NO_RAY


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "why"), [(0, "Connection refused"), (1, "no answer within 2 s"), (9, "timed out")])
def test_where_no_head_answers_the_error_comes_in_time_and_names_the_dialled_address(
    silent: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ray = pytest.importorskip("ampbench.drive.on_ray")
    monkeypatch.setattr(on_ray, "ANSWER_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        dialled = server.getsockname() if silent else ("127.0.0.2", 1)
        for _ in range(silent - 1):  # with a full queue the kernel drops further ones, as a firewall does
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(dialled)
        there = f"{dialled[0]}:{dialled[1]}"
        monkeypatch.setattr(on_ray, "canonicalize_bootstrap_address", lambda _: there)
        with pytest.raises(NothingToRunError, match=rf"--ray localhost:1: no Ray cluster at {there}: .*{why}"):
            on_ray.RayCluster("localhost:1", files=False)
