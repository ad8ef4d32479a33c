"""The server with real processes: what a worker does to itself becomes a reply, and the next request is served."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.drive.servers import ServerChannel
from ampbench.records.wire import Nothing, Reply
from ampbench.worker.server import set_variables
from tests.odd_networks import ODD
from tests.scripted_channel import got, make_request, user_source
from tests.worker.conftest import make_case


@pytest.fixture
def ask(channel: ServerChannel, tmp_path: Path) -> Callable[..., Reply]:
    source, shared = user_source(tmp_path, ODD, "net"), channel

    def ask(
        kind: str = "fine",
        what: str = "round",
        channel: ServerChannel = shared,
        told: Path = tmp_path / "none",
        **changes: object,
    ) -> Reply:
        planned = make_case(workload="odd.py:net", parameters={"kind": kind, "told": str(told)}, batch_size=None)
        values = {"timeout_seconds": 60.0, "min_run_seconds": 0.01, "threads": 1, **changes}
        if what == "describe":
            return channel.serve(make_request(what, source=source, parameters={"kind": kind}, **values))
        return channel.serve(make_request(what, source=source, case=planned, **values))

    return ask


def test_a_worker_that_gives_way_is_gone_with_all_it_held(channel: ServerChannel, ask: Callable[..., Reply]) -> None:
    got("round", ask(fresh=True))
    (before,) = children(channel._process.pid)
    got("round", ask(fresh=False))
    assert children(channel._process.pid) == [before]
    assert got("rest", channel.serve(make_request("rest"))) == Nothing()
    (resting,) = children(channel._process.pid)
    assert resting != before
    got("round", ask(fresh=False))
    assert children(channel._process.pid) == [resting]


@pytest.mark.parametrize(
    ("kind", "cause", "message"),
    [
        ("abort", "crash", "ended by signal SIGABRT"),
        ("sleep", "time-out", "no result within 1 s (--timeout)"),
        ("raise", "exception", "RuntimeError: no luck today"),
        ("exit", "crash", "ended with status 3"),
        ("kill", "killed", "ended by signal SIGKILL"),
        ("terminate", "killed", "ended by signal SIGTERM"),
        ("hang up", "killed", "ended by signal SIGHUP"),
        ("huge", "out of memory", "RuntimeError"),
        ("system exit", "exception", "SystemExit: 0"),
        ("own interrupt", "exception", "KeyboardInterrupt: no message"),
        ("undecodable", "exception", "FileNotFoundError: caf\\udce9.pt"),
        ("mute", "exception", "Mute: what it says cannot be had, because its __str__ raises ValueError"),
        ("misnamed", "exception", r"Evil\n→ take bf16\x9b31m\u202e: no\x9bluck"),
        ("closes all", "crash", "closed its connection and went on"),
    ],
)
def test_what_goes_wrong_in_forward_is_a_failure_with_its_cause(
    ask: Callable[..., Reply], kind: str, cause: str, message: str
) -> None:
    failure = ask(kind, timeout_seconds=1.0 if kind == "sleep" else 60.0).failure
    assert failure.cause == cause
    assert failure.message.startswith(message)
    assert failure.stage == "round"
    assert got("round", ask()) is not None


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where a network that starts a process says which."""
    return tmp_path / "child"


def test_a_crash_is_seen_while_a_child_of_the_network_lives_and_the_child_is_ended(
    ask: Callable[..., Reply], told: Path
) -> None:
    failure = ask("abort beside a child", told=told).failure
    assert (failure.cause, failure.message) == ("crash", "ended by signal SIGABRT")
    assert not alive(int(told.read_text()))


def test_what_children_keep_counts_within_the_memory_limit(ask: Callable[..., Reply], told: Path) -> None:
    failure = ask("hog in a child", told=told, memory_limit_bytes=800 << 20).failure
    assert failure.cause == "memory limit"
    assert failure.message.endswith("resident (--memory-limit), together with 1 process that it started")
    assert_ends(int(told.read_text()))


def test_output_without_end_is_cut_and_its_end_is_told(ask: Callable[..., Reply]) -> None:
    frames = ask("endless output", timeout_seconds=3.0).failure.frames
    assert frames[0].startswith("… (the end of ")
    assert frames[0].endswith(" that were printed)")
    assert frames[2] == "y" * 99


@pytest.mark.slow
@pytest.mark.usefixtures("started_servers")
def test_a_child_does_not_outlive_a_server_that_was_killed(ask: Callable[..., Reply], told: Path) -> None:
    failure = ask("kills its server", told=told, channel=ServerChannel()).failure
    assert (failure.cause, failure.message) == ("killed", "the server ended by signal SIGKILL")
    assert_ends(int(told.read_text()))


def test_a_worker_killed_with_an_unread_request_is_a_failure_and_its_server_lives(
    ask: Callable[..., Reply], channel: ServerChannel
) -> None:
    assert got("round", ask(fresh=True)) is not None
    (worker,) = children(channel._process.pid)
    os.kill(worker, signal.SIGSTOP)
    killing = threading.Timer(0.2, os.kill, (worker, signal.SIGKILL))
    killing.start()
    failure = ask(fresh=False).failure
    killing.join()
    assert (failure.cause, failure.message) == ("killed", "ended by signal SIGKILL")
    assert got("round", ask()) is not None


def test_a_workload_that_allocates_without_bound_is_stopped_at_the_limit(ask: Callable[..., Reply]) -> None:
    failure = ask("hog", memory_limit_bytes=1500 << 20).failure
    assert failure.cause == "memory limit"
    assert "1.5 GiB resident" in failure.message
    assert got("round", ask()) is not None


def test_a_workload_that_kills_its_process_when_built_is_a_problem_not_a_failure(ask: Callable[..., Reply]) -> None:
    assert "SIGABRT" in ask("unbuildable", "describe").problem
    assert got("describe", ask(what="describe")).parameters == {"kind": "fine", "told": ""}


def test_a_server_and_its_worker_end_with_the_driver(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from ampbench.drive.servers import ServerChannel
from tests.odd_networks import ODD
from tests.scripted_channel import make_request, user_source
from tests.stored_runs import make_case
channel = ServerChannel()
print(channel._process.pid, flush=True)
source = user_source(Path({str(tmp_path)!r}), ODD, "net")
case = make_case(workload="n", parameters={{"kind": "sleep"}}, batch_size=None)
channel.serve(make_request("round", source=source, case=case))
"""
    root = Path(__file__).parents[2]
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root)
    server = int(driver.stdout.readline())
    while not (worker := children(server)):
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    for pid in (server, *worker):
        assert_ends(pid)


def assert_ends(pid: int) -> None:
    for _ in range(500):
        if not alive(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} lives")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


SEEN = '''
import gc, json, os, pathlib, resource, signal, sys, threading, torch

def state():
    """Everything of a process that may change what a step costs."""
    matmul, cudnn, onednn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    seen = {"variable " + name: value for name, value in os.environ.items()}
    seen |= {
        "threads": torch.get_num_threads(),
        "threads between ops": torch.get_num_interop_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matrix products": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "denormals": float(torch.tensor([1e-38]) / 100),
        "cuDNN": [cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32],
        "CUDA's reductions": [matmul.allow_fp16_reduced_precision_reduction, matmul.allow_fp16_accumulation],
        "oneDNN": [onednn.enabled, onednn.deterministic, onednn.allow_tf32],
        "hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(False) is not None,
        "dispatch modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        "garbage collected": [gc.isenabled(), gc.get_threshold()],
        "garbage frozen": gc.get_freeze_count() > 0,
        "tracing": [sys.gettrace() is not None, sys.getprofile() is not None],
        "threads of Python": [threading.active_count(), sys.getswitchinterval()],
        "processors": sorted(os.sched_getaffinity(0)),
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
        "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_STACK)],
        "killed first": pathlib.Path("/proc/self/oom_score_adj").read_text(),
        "leads its group": os.getpgid(0) == os.getpid(),
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "accelerator found by": torch.cuda._nvml_based_avail(),
    }
    return seen

class Telling(torch.nn.Linear):
    def __init__(self, told):
        super().__init__(4, 4)
        self.told = told

    def forward(self, x):
        pathlib.Path(self.told).write_text(json.dumps(state()))
        return super().forward(x)

def net(told=""):
    from ampbench.workload import Workload
    module = Telling(told)
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
    return Workload(module=module, inputs=torch.randn(2, 4), loss=torch.sum, optimizer=optimizer)

if __name__ == "__main__":
    torch.set_num_threads(1)
    network = Telling(sys.argv[1])
    torch.optim.Adam(network.parameters())
    network(torch.randn(2, 4)).sum().backward()
'''

DIFFERS = {
    "variable PYTHONUNBUFFERED": "what a step prints reaches a file, so that a crash loses none of it",
    "variable TORCHINDUCTOR_COMPILE_THREADS": "read where a network is compiled, before any step is timed",
    "variable AMPBENCH_SERVER": "what a server that was killed leaves behind is known by it",
    "variable PYTHONPATH": "read where modules are imported, before any step is timed",
    "cuDNN": "convolutions in fp32 are in fp32 on a GPU, too; TF32, torch's own choice there, is another precision",
    "garbage frozen": "what torch's import left is not walked by collections, which forking would make copies of",
    "killed first": "whom the kernel chooses when memory runs out",
    "leads its group": "what a workload starts ends with it",
}
"""What a step in a worker sees that it would not see in a user's own process, and why; nothing else may differ."""


@pytest.mark.slow
@pytest.mark.usefixtures("started_servers")
def test_a_workers_step_sees_a_users_process_but_for_what_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    own, workers = tmp_path / "own.json", tmp_path / "workers.json"
    source = user_source(tmp_path, SEEN, "net", "telling.py")
    subprocess.run([sys.executable, source.module, own], env=dict(os.environ), check=True)
    planned = make_case(workload="telling.py:net", parameters={"told": str(workers)}, batch_size=None, phase="training")
    channel = ServerChannel()
    try:
        reply = channel.serve(make_request("round", source=source, case=planned, threads=1, min_run_seconds=0.01))
    finally:
        channel.close()
    got("round", reply)
    users, seen = json.loads(own.read_text()), json.loads(workers.read_text())
    assert {name for name in users.keys() | seen.keys() if users.get(name) != seen.get(name)} <= DIFFERS.keys()


def test_what_a_server_sets_for_itself_is_put_back_in_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "mine")
    given = {name: os.environ.get(name) for name in ("SET", "AMPBENCH_UNSET")}
    set_variables({"SET": "1", "AMPBENCH_UNSET": "1"})
    assert (os.environ["SET"], os.environ["AMPBENCH_UNSET"]) == ("1", "1")
    set_variables(given)
    assert os.environ["SET"] == "mine"
    assert "AMPBENCH_UNSET" not in os.environ
