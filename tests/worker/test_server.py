"""The server with real processes: what a worker does to itself becomes a reply, and the next request is served."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ampbench.records.cases import Case, WorkloadSource
from ampbench.records.requests import Reply, Request
from ampbench.running.channel import ServerChannel
from ampbench.worker.server import set_variables
from tests.odd_networks import ODD


@pytest.fixture
def ask(channel: ServerChannel, tmp_path: Path, case: Callable[..., Case]) -> Callable[..., Reply]:
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    source = WorkloadSource(name="odd.py:net", family="user", module=str(path), function="net", builtin=False)

    def ask(kind: str = "fine", what: str = "round", **changes: object) -> Reply:
        planned = case(workload="odd.py:net", parameters={"kind": kind}, batch_size=None)
        values = {"timeout_seconds": 60.0, "min_run_seconds": 0.01, "threads": 1, **changes}
        if what == "describe":
            return channel.serve(Request(kind=what, source=source, parameters={"kind": kind}, **values))
        return channel.serve(Request(kind=what, source=source, case=planned, **values))

    return ask


def test_a_round_comes_back_with_samples_of_every_build(ask: Callable[..., Reply]) -> None:
    found = ask(round=3, server=2, builds=4).round
    assert (found.round, found.server, len(found.samples)) == (3, 2, 4)
    assert all(seconds > 0 for build in found.samples for seconds in build)
    assert sum(map(len, found.samples)) <= 200
    assert found.rss_peak_bytes > 0


@pytest.mark.parametrize(
    ("kind", "cause", "message"),
    [
        ("abort", "crash", "ended by signal SIGABRT"),
        ("sleep", "time-out", "no result within 1 s (--timeout)"),
        ("raise", "exception", "RuntimeError: no luck today"),
        ("exit", "crash", "ended with status 3"),
        ("kill", "killed", "ended by signal SIGKILL"),
        ("huge", "out of memory", "RuntimeError"),
    ],
)
def test_what_goes_wrong_in_forward_is_a_failure_with_its_cause(
    ask: Callable[..., Reply], kind: str, cause: str, message: str
) -> None:
    failure = ask(kind, timeout_seconds=1.0 if kind == "sleep" else 60.0).failure
    assert failure.cause == cause
    assert failure.message.startswith(message)
    assert failure.stage == "round"
    assert ask().round is not None


def test_a_workload_that_allocates_without_bound_is_stopped_at_the_limit(ask: Callable[..., Reply]) -> None:
    failure = ask("hog", memory_limit_bytes=1500 << 20).failure
    assert failure.cause == "memory limit"
    assert "1.5 GiB resident" in failure.message
    assert ask().round is not None


def test_an_exception_keeps_the_last_frames_of_the_users_code(ask: Callable[..., Reply]) -> None:
    frames = ask("raise").failure.frames
    assert "odd.py" in frames[-1]
    assert "raise RuntimeError" in frames[-1]


def test_a_crash_keeps_the_last_words(ask: Callable[..., Reply]) -> None:
    assert ask("exit").failure.frames == ["my last words"]


def test_a_workload_that_kills_its_process_when_built_is_a_problem_not_a_failure(ask: Callable[..., Reply]) -> None:
    assert "SIGABRT" in ask("unbuildable", "describe").problem
    assert ask(what="describe").description.parameters == {"kind": "fine"}


def test_passes_can_share_a_process_and_rounds_have_their_own(ask: Callable[..., Reply]) -> None:
    assert ask(what="divergence").divergence is not None
    assert ask(what="memory", fresh=False).memory is not None
    assert ask(fresh=True).round is not None


def test_a_server_that_is_killed_is_a_failure_of_the_case(case: Callable[..., Case]) -> None:
    channel = ServerChannel()
    os.kill(channel._process.pid, signal.SIGKILL)
    failure = channel.serve(Request(kind="round", case=case())).failure
    assert failure.cause == "killed"
    assert channel._process.poll() is not None


def test_a_server_and_its_worker_end_with_the_driver(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    script = f"""
import json
import os
from ampbench.records.cases import Case, WorkloadSource
from ampbench.records.requests import Request
from ampbench.running.channel import ServerChannel
channel = ServerChannel()
print(channel._process.pid, flush=True)
source = WorkloadSource(name="n", family="user", module={str(tmp_path / "odd.py")!r}, function="net", builtin=False)
case = Case(workload="n", family="user", parameters={{"kind": "sleep"}}, precision="fp32", device="cpu",
            phase="inference",            path="eager", batch_size=None, input_dtype="fp32", memory_format="contiguous")
channel.serve(Request(kind="round", source=source, case=case))
"""
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    server = int(driver.stdout.readline())
    children = Path(f"/proc/{server}/task/{server}/children")
    worker = None
    while not worker:
        worker = children.read_text().split()
        time.sleep(0.02)
    driver.kill()
    driver.wait()
    driver.stdout.close()
    for pid in (server, int(worker[0])):
        for _ in range(500):
            if not alive(pid):
                break
            time.sleep(0.02)
        assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_interpreter_without_torch_is_one_clear_line(tmp_path: Path) -> None:
    from ampbench.errors import NothingToRunError

    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(NothingToRunError, match="No module named 'torch'"):
        ServerChannel(str(fake))


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
    "variable PYTHONPATH": "read where modules are imported, before any step is timed",
    "cuDNN": "convolutions in fp32 are in fp32 on a GPU, too; TF32, torch's own choice there, is another precision",
    "garbage frozen": "what torch's import left is not walked by collections, which forking would make copies of",
    "killed first": "whom the kernel chooses when memory runs out",
    "leads its group": "what a workload starts ends with it",
}
"""What a step in a worker sees that it would not see in a user's own process, and why; nothing else may differ."""


def test_a_workers_step_sees_a_users_process_but_for_what_is_listed(
    tmp_path: Path, case: Callable[..., Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    path, own, workers = (tmp_path / name for name in ("telling.py", "own.json", "workers.json"))
    path.write_text(SEEN)
    subprocess.run([sys.executable, path, own], env=dict(os.environ), check=True)
    source = WorkloadSource(name="telling.py:net", family="user", module=str(path), function="net", builtin=False)
    planned = case(workload="telling.py:net", parameters={"told": str(workers)}, batch_size=None, phase="training")
    channel = ServerChannel()
    try:
        reply = channel.serve(Request(kind="round", source=source, case=planned, threads=1, min_run_seconds=0.01))
    finally:
        channel.close()
    assert reply.round is not None, reply
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
