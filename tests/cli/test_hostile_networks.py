"""Sixty hostile networks, each measured beside an `mlp`: its error stays the same, and no verb fails or hangs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ampbench.store import list_runs, read_run

pytestmark = pytest.mark.slow

Run = Callable[..., Any]
QUICK = ["--preset", "tiny", "--threads", "1", "--rounds", "1", "--min-run-time", "0.01", "--timeout", "15"]
HOSTILE = {
    "init": (
        "raise RuntimeError('no\\nluck \\x1b[31m \\u202e \\x9b')",
        "raise type('Bad\\n\\x1b]0;Name\\x07', (Exception,), {})('x')", "raise KeyboardInterrupt",
        "raise GeneratorExit", "raise MemoryError", "sys.exit(0)", "sys.exit('bye\\nbye')", "os._exit(0)",
        "os._exit(7)", "os.kill(os.getpid(), 11)", "f = lambda: f(); f()", "while True: pass", "os.chdir('/')",
        "os.environ.clear()", "os.remove(__file__)", "sys.stdout.close(); sys.stderr.close()", "os.closerange(0, 3)",
        "torch.set_default_dtype(torch.float64)", "torch.set_default_device('meta')",
        "torch.use_deterministic_algorithms(True)", "torch.set_grad_enabled(False)", "torch.set_num_threads(2)",
        "torch.manual_seed(7); random.seed(7)", "warnings.simplefilter('error')",
        "threading.Thread(target=time.sleep, args=[1e6]).start()", "atexit.register(os._exit, 5)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.alarm(1)",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))", "sys.modules.clear()",
    ),
    "forward": (
        "raise FileNotFoundError('caf\\udce9.pt')",
        "raise ExceptionGroup('several', [ValueError('a\\nb'), OSError(5)])", "raise StopIteration",
        "raise type('Mute', (Exception,), {'__str__': None})", "raise RuntimeError('x' * 10**7)",
        "os.fork()", "os.fork() or (os.setsid(), time.sleep(1e6))", "os.kill(os.getppid(), 15)",
        "while True: pass", "while True: print('y' * 99)", "sys.stdout = sys.stderr = None", "out = None",
        "out = 'text'", "out = out * float('nan')", "out = out[:0]", "out = out.int()", "out = out.detach()",
        "out = (row for row in out)", "out = {1: out, 'b': [out, None, {2}]}", "out = torch.empty(1 << 60)",
        "x.zero_()", "x.resize_(0)", "self.linear = torch.nn.Linear(4, 4)",
        "self.linear.weight.data.fill_(float('inf'))", "time.perf_counter = time.monotonic = time.time = lambda: 5.0",
        "ticks = itertools.count(); time.perf_counter = time.monotonic = time.time = lambda: -next(ticks)",
        "torch.autocast = torch.nn.functional.linear = None", "builtins.open = builtins.print = None",
        "sys.setrecursionlimit(60)",
    ),
    "backward": (
        "raise RuntimeError('back\\u202eward\\n')", "raise KeyboardInterrupt", "os._exit(4)", "while True: pass",
        "gradient.fill_(float('nan'))",
    ),
}  # fmt: skip
FILE = """
import atexit, builtins, itertools, os, random, resource, signal, sys, threading, time, warnings
import torch
from ampbench import Workload
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        if {moment!r} == "init":
            exec({source!r}, globals())
    def forward(self, x):
        names = {{**globals(), "self": self, "x": x, "out": self.linear(x)}}
        if {moment!r} == "forward":
            exec({source!r}, names)
        if {moment!r} == "backward":
            names["out"].register_hook(lambda gradient: exec({source!r}, {{**globals(), "gradient": gradient}}))
        return names["out"]
def make():
    return Workload(module=Net(), inputs=torch.randn(2, 4), loss=lambda out: out.square().mean())
"""
NETWORKS = [(moment, source) for moment, sources in HOSTILE.items() for source in sources]
assert len({*NETWORKS}) >= 60
GROUPS = [NETWORKS[place : place + 8] for place in range(0, len(NETWORKS), 8)]


def errors_of_mlp(results: Path, ampbench: Run, *networks: str) -> dict[str, Any]:
    """Return the errors of `mlp`, measured after other networks that can be built, by its cases."""
    done = ampbench("run", *networks, "mlp", "--precision", "bf16_autocast", *QUICK, "--results", results)
    assert "Traceback" not in done.err
    assert not {*"\x1b\x07\x9b\u202e"} & {*done.out, *done.err}
    if unbuilt := re.match(r"ampbench: error: workload (n\d\.py:make)(?: cannot be built)?: .+\n$", done.err):
        assert (done.code, done.out) == (2, "")
        return errors_of_mlp(results, ampbench, *(name for name in networks if name != unbuilt[1]))
    run = read_run(list_runs(results)[0])
    assert (done.code, run.complete) == (3 if run.failures else 0, True), done.err
    assert {case.workload for case in run.cases.values()} == {*networks, "mlp"}
    assert {*run.divergence, *run.failures, *run.skips} == {*run.cases}
    errors = {case_id: run.divergence[case_id] for case_id, case in run.cases.items() if case.workload == "mlp"}
    # there are as many further batches as time allows
    return {case_id: (replace(row.output, further=None), row.gradient) for case_id, row in errors.items()}


ALONE: dict[str, Any] = {}


@pytest.mark.parametrize("networks", GROUPS, ids=lambda networks: networks[0][0])
def test_a_network_beside_hostile_ones_keeps_its_error_to_the_last_digit(
    networks: list[tuple[str, str]], tmp_path: Path, ampbench: Run
) -> None:
    for number, (moment, source) in enumerate(networks):
        (tmp_path / f"n{number}.py").write_text(FILE.format(moment=moment, source=source))
    if not ALONE:
        ALONE.update(errors_of_mlp(tmp_path / "alone", ampbench))
    assert errors_of_mlp(tmp_path / "beside", ampbench, *(f"n{n}.py:make" for n in range(len(networks)))) == ALONE
