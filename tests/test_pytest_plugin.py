import importlib
import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ampbench.core.metrics import METRICS
from ampbench.core.precisions import PRECISIONS
from ampbench.pytest_plugin.measuring import present
from ampbench.records.case import DEVICES
from ampbench.records.run import SPREAD, Fleet
from ampbench.store import StoredRun, gathered, read_run, write_whole
from ampbench.worker.environment import read_environment
from tests.conftest import passed_over_by_collections

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
ON_CPU = [row.name for row in PRECISIONS.values() if "cpu" in row.default_on and not row.tf32]
QUICK = ["--benchmark-max-time=0.001", "--benchmark-min-rounds=2", "-pno:cacheprovider", "-pno:hypothesispytest"]

NETS = """
import pytest
import torch
import ampbench

def net(width: int = 4, batch_size: int = 2):
    return torch.nn.Linear(width, 3), torch.randn(batch_size, width), lambda output: output.square().mean()
"""


@pytest.fixture(autouse=True, scope="module")
def all_imported() -> None:
    """Import what sessions in this process would import, and pytester forget again: torchvision bears it only once."""
    read_environment()
    importlib.import_module("torch._dynamo")
    passed_over_by_collections()


@pytest.fixture(autouse=True)
def session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the short summary cut nothing, and pytest-benchmark measure although the tests around it run side by side."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def run(pytester: pytest.Pytester, body: str, *arguments: str, head: str = NETS) -> pytest.RunResult:
    """Return what pytest says of a test file, run in this process, on the CPU whatever this machine has."""
    pytester.makepyfile(test_mine=head + body)
    return pytester.runpytest_inprocess("--amp-device=cpu", *QUICK, *arguments)


def collected(pytester: pytest.Pytester, body: str, *arguments: str) -> list[str]:
    """Return the names of the tests that pytest collects from a test file, in order."""
    result = run(pytester, body, "--collect-only", "-q", *arguments)
    assert result.ret == 0
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def failures(result: pytest.RunResult) -> list[str]:
    return [line.partition(" - ")[2] for line in result.outlines if line.startswith(("FAILED", "ERROR"))]


def test_a_test_with_the_fixture_is_the_whole_grid_with_precisions_innermost(pytester: pytest.Pytester) -> None:
    names = collected(
        pytester,
        """
@pytest.mark.parametrize("width", [3, 5])
def test_net(amp_benchmark, width):
    amp_benchmark(net, width=width)
""",
    )
    grid = [f"cpu-{phase}-{precision}" for phase in ("inference", "training") for precision in ON_CPU]
    assert names == [f"test_net[{width}-{cell}]" for width in (3, 5) for cell in grid]


def test_the_marker_narrows_and_nearer_markers_win(pytester: pytest.Pytester) -> None:
    names = collected(
        pytester,
        """
@pytest.mark.amp(precisions="half", phases=["training"])
class TestAll:
    @pytest.mark.amp(precisions=["fp32", "bf16-mixed"])
    @pytest.mark.parametrize("workload", ["mlp", net])
    def test_net(self, amp_benchmark, workload):
        amp_benchmark(workload)
""",
    )
    cells = [f"cpu-training-{precision}" for precision in ("fp32", "bf16_autocast")]
    assert names == [f"TestAll::test_net[{workload}-{cell}]" for workload in ("mlp", "net") for cell in cells]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--amp-precision=bf61", "unknown precision 'bf61': did you mean bf16_autocast, "),
        ("--amp-device=cdua", "unknown device 'cdua': did you mean cuda?"),
        ("--amp-phase=train", "unknown phase 'train': did you mean training?"),
        ("--amp-preset=huge", "unknown preset 'huge': known: tiny, small, large"),
        ("--amp-max-error=-1", "the largest error (--amp-max-error) is a number of 0 or more, not -1"),
        ("--amp-max-error=nan", "the largest error (--amp-max-error) is a number of 0 or more, not nan"),
    ],
)
def test_an_option_that_cannot_be_meant_ends_the_session_with_the_nearest_names(
    pytester: pytest.Pytester, option: str, said: str
) -> None:
    result = run(pytester, "def test_nothing():\n    pass\n", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*: error: argument {option.partition('=')[0]}: {said}*"])


MARKERS = [
    ("precision=['fp32']", "unknown argument of pytest.mark.amp 'precision': did you mean precisions?"),
    ("'mlp'", "pytest.mark.amp takes keyword arguments: precisions, phases, devices, preset, max_error"),
    ("precisions=['bf61']", "unknown precision 'bf61': did you mean bf16_autocast, "),
    ("max_error=True", "the largest error (--amp-max-error) is a number of 0 or more, not True"),
]


def test_a_marker_that_cannot_be_meant_is_one_line_at_collection(pytester: pytest.Pytester) -> None:
    for number, (marker, _) in enumerate(MARKERS):
        body = f"@pytest.mark.amp({marker})\ndef test_net(amp_benchmark):\n    amp_benchmark(net)\n"
        pytester.makepyfile(**{f"test_{number}": NETS + body})
    result = pytester.runpytest_inprocess("--amp-device=cpu", *QUICK)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    text = "\n".join(result.outlines)
    for number, (_, said) in enumerate(MARKERS):
        assert f"test_{number}.py::test_net: {said}" in text
    assert "Traceback" not in text


def extra(pytester: pytest.Pytester, file: str = "out.json") -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    document = json.loads((pytester.path / file).read_text())
    return document, {each["name"]: each for each in document["benchmarks"]}


def saved(pytester: pytest.Pytester) -> StoredRun:
    (path,) = pytester.path.glob("saved/runs/*.jsonl")
    return read_run(path)


ONLY_HERE = """
import sys

if "pytest_benchmark" not in sys.modules:
    raise RuntimeError("only under pytest")

@pytest.mark.amp(phases=["inference"], precisions=["fp32"])
def test_net(amp_benchmark):
    amp_benchmark(net)
"""


def test_times_memory_and_divergence_are_in_the_json_and_precisions_side_by_side(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_only_here=NETS + ONLY_HERE)
    result = run(
        pytester,
        """
@pytest.mark.amp(phases=["training"])
def test_net(amp_benchmark):
    amp_benchmark(net, width=8)

@pytest.mark.amp(phases=["inference"], preset="tiny")
@pytest.mark.benchmark(min_rounds=7)
def test_built_in(amp_benchmark):
    amp_benchmark("mlp")
""",
        "--amp-precision=fp32",
        "--amp-precision=bf16_autocast",
        "--benchmark-json=out.json",
        "--amp-save=saved",
    )
    result.assert_outcomes(passed=5)
    document, found = extra(pytester)
    (elsewhere,) = (each for each in document["benchmarks"] if each["fullname"].startswith("test_only_here.py"))
    said = "memory was not measured: workload test_only_here.py:net cannot be imported: RuntimeError: only"
    assert elsewhere["extra_info"]["notes"][0].startswith(said)
    one = found["test_net[cpu-training-bf16_autocast]"]
    assert one["group"] == "test_mine.py:net[width=8]/b2/cpu/training"
    assert one["stats"]["iterations"] == 1
    stored = saved(pytester)
    assert stored.header.environment.torch_version == torch.__version__
    assert (len(stored.cases), stored.complete) == (5, True)
    result.stdout.fnmatch_lines([f"run {stored.header.run}: saved/runs/*"])
    case_id = "test_mine.py:net[width=8]/b2/bf16_autocast/cpu/training/eager/in-fp32"
    memory, divergence = stored.memory[case_id], stored.divergence[case_id]
    (timed,) = (timed for timed in stored.rounds if timed.case_id == case_id)
    assert memory.peak_bytes > memory.parameter_bytes > 0
    assert divergence.output.rel_l2 is not None
    assert (timed.samples, timed.items_per_step) == ([one["stats"]["data"]], 2.0)
    assert timed.weights_digest == divergence.weights_digest
    flat = one["extra_info"]
    assert flat.keys() <= METRICS.keys()
    assert flat["peak_memory_bytes"] == memory.peak_bytes
    assert flat["output_rel_l2"] == divergence.output.rel_l2
    built_in = found["test_built_in[cpu-inference-fp32]"]
    assert built_in["stats"]["rounds"] >= 7
    text = "\n".join(result.outlines)
    assert text.index("benchmark 'mlp[") < text.index("ampbench: precisions side by side")
    table = text.partition("ampbench: precisions side by side")[2].splitlines()
    place = next(at for at, line in enumerate(table) if line.startswith("mlp · inference · batch 8 · "))
    assert table[place + 1].split()[:2] == ["precision", "time/step"]
    assert [line.split()[0] for line in table[place + 2 : place + 4]] == ["fp32", "bf16_autocast"]
    assert "1.00x" in table[place + 2]


def test_a_function_that_only_this_process_has_is_measured_without_memory_and_says_why(pytester: pytest.Pytester):
    result = run(
        pytester,
        """
@pytest.mark.amp(precisions=["fp32", "bf16_pure"])
@pytest.mark.parametrize("width", [3])
def test_net(amp_benchmark, width):
    amp_benchmark(lambda: (torch.nn.Linear(width, 1), torch.ones(2, width)))
""",
        "--benchmark-json=out.json",
        "--amp-save=saved",
        "-rs",
    )
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*2*no loss given: *(module, inputs, loss)"])
    _, found = extra(pytester)
    assert {case.workload for case in saved(pytester).cases.values()} == {"test_mine.py::test_net[3]:lambda"}
    own = found["test_net[3-cpu-inference-fp32]"]["extra_info"]
    assert "memory was not measured" in own["notes"][0]
    assert own["output_rel_l2"] is not None
    assert not [name for name in sys.modules if name.startswith("ampbench_given_")]


NO_WORKLOADS = [
    ("torch.nn.Linear(2, 2)", "Linear is a network without inputs: *"),
    ("net, torch.ones(2)", "a function that makes a workload brings its own inputs: *"),
    ("needy", "workload test_mine.py:needy: its parameter 'width' needs a default value"),
    ("odd", "workload test_mine.py:odd returned int; expected (module, inputs)*"),
    ("'mpl'", "unknown workload 'mpl': did you mean mlp?"),
    ("'linear'", "linear is * workloads: name one, or parametrize the test over them"),
    ("net, widht=3", "workload test_mine.py:net has no parameter 'widht'; its parameters: width, batch_size*"),
]


def test_what_is_no_workload_fails_with_one_line_that_says_what_is(pytester: pytest.Pytester) -> None:
    body = """
def needy(width):
    return net(width)

def odd():
    return 3

pytestmark = pytest.mark.amp(precisions=["fp32"], phases=["inference"])
"""
    for number, (call, _) in enumerate(NO_WORKLOADS):
        body += f"\ndef test_{number}(amp_benchmark):\n    amp_benchmark({call})\n"
    result = run(pytester, body)
    result.assert_outcomes(failed=len(NO_WORKLOADS))
    assert "Traceback" not in "\n".join(result.outlines)
    for line, (_, said) in zip(failures(result), NO_WORKLOADS, strict=True):
        assert fnmatchcase(line, f"Failed: {said}".replace("[", "[[]"))


ERRORS = """
pytestmark = pytest.mark.amp(phases=["inference"], precisions=["fp32", "bf16_pure"], max_error=1e-4)

def test_near(amp_benchmark):
    amp_benchmark(lambda: (torch.nn.Linear(8, 8), torch.randn(4, 8)))

@pytest.mark.amp(precisions=["fp32"])
def test_undefined(amp_benchmark):
    amp_benchmark(lambda: (torch.nn.Linear(2, 1, bias=False), torch.zeros(1, 2)))
"""


def test_an_error_above_the_limit_or_undefined_fails_with_error_limit_and_case(pytester: pytest.Pytester) -> None:
    result = run(pytester, ERRORS)
    result.assert_outcomes(passed=1, failed=2)
    case = "test_mine.py::test_{}:lambda/{}/cpu/inference/eager/in-{}"
    above, undefined = failures(result)
    assert above.startswith("Failed: output error is 0.00")
    assert above.endswith(f", the limit is 0.0001: {case.format('near', 'bf16_pure', 'bf16')}")
    assert undefined == (
        "Failed: output error is undefined (the reference output is zero), the limit is 0.0001: "
        + case.format("undefined", "fp32", "fp32")
    )


STEPS = """
class Counted(torch.nn.Linear):
    def forward(self, given):
        with open("steps", "a") as file:
            file.write("x")
        return super().forward(given)

@pytest.mark.amp(phases=["inference"], precisions=["fp32"])
def test_net(amp_benchmark):
    amp_benchmark(lambda: (Counted(2, 2), torch.ones(2, 2)))

def test_plain():
    pass
"""


def test_benchmark_disable_times_nothing_skip_runs_no_step_and_only_no_other_test(pytester: pytest.Pytester) -> None:
    result = run(pytester, STEPS, "--benchmark-disable")
    result.assert_outcomes(passed=2)
    steps = (pytester.path / "steps").read_text()
    assert len(steps) == 4  # one, and the divergence's
    assert "side by side" not in "\n".join(result.outlines)
    run(pytester, STEPS, "--benchmark-skip").assert_outcomes(passed=1, skipped=1)
    assert (pytester.path / "steps").read_text() == steps
    run(pytester, STEPS, "--benchmark-only", "--benchmark-disable-gc").assert_outcomes(passed=1, skipped=1)


RESULTS = """
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, *, scale):
        return {"a": self.layer(x) * scale}

@pytest.mark.amp(precisions=["fp32", "fp16_pure"], phases=["training"])
def test_result(amp_benchmark):
    network = Scaled()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    inputs = {"x": torch.randn(3, 4) * 3e4, "scale": 1e3}
    result = amp_benchmark(network, inputs, lambda output: output["a"].sum(), optimizer=optimizer)
    (verdict,), row = result.verdicts, result.frame.iloc[0]
    case = result.rows[0]["case_id"]
    assert case.startswith("test_mine.py::test_result:Scaled/") and row["case_id"] == case
    assert (verdict.status == "refused") == ("fp16" in case), str(result)
    assert 0 < row["seconds_median"] < 9 and row["outcome"] == "ok"
    assert all(parameter.grad is None for parameter in network.parameters())
"""


@pytest.mark.parametrize("mode", ["--benchmark-enable", "--benchmark-disable"])
def test_a_live_network_is_measured_and_a_test_can_assert_on_its_result(pytester: pytest.Pytester, mode: str) -> None:
    run(pytester, RESULTS, mode).assert_outcomes(passed=2)


WITHOUT = "Failed: amp_benchmark needs pytest-benchmark"


@pytest.mark.parametrize(
    ("installed", "said"),
    [(False, f'{WITHOUT}: pip install "ampbench[pytest]"'), (True, f"{WITHOUT}: drop -p no:benchmark")],
    ids=["missing", "switched off"],
)
def test_without_pytest_benchmark_one_line_says_how_to_get_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, installed: bool, said: str
) -> None:
    if not installed:
        monkeypatch.setattr("ampbench.pytest_plugin.find_spec", lambda name: None)
    pytester.makepyfile("def test_mine(amp_benchmark):\n    amp_benchmark('mlp')\n\ndef test_plain():\n    pass\n")
    result = pytester.runpytest_inprocess(
        "-p", "no:benchmark", "--amp-device=cpu", "--amp-precision=fp32", "-W", "error"
    )
    result.assert_outcomes(passed=1, errors=2)
    assert set(failures(result)) == {said}


def test_a_suite_that_does_not_use_the_fixture_imports_nothing_and_warns_of_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_plain():
            heavy = {"torch", "numpy", "pandas", "msgspec", "rich", "ampbench.drive.planning", "ampbench.records"}
            assert not heavy & set(sys.modules)
            assert "ampbench.pytest_plugin" in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_bare_pytest_collects_the_tests_and_with_benchmark_only_the_benchmarks(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntestpaths = tests benchmarks/pytest\n")
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    for name in ("tests/test_one.py", "benchmarks/pytest/test_two.py"):
        path = pytester.path / name
        path.parent.mkdir(parents=True)
        path.write_text("def test_it(benchmark):\n    pass\n")

    def found(*arguments: str) -> list[str]:
        result = pytester.runpytest_inprocess("--collect-only", "-q", *arguments)
        return [line for line in result.outlines if "::" in line]

    assert found() == ["tests/test_one.py::test_it"]
    assert found("--benchmark-only") == ["benchmarks/pytest/test_two.py::test_it"]
    assert found("benchmarks/pytest") == ["benchmarks/pytest/test_two.py::test_it"]
    assert found("tests", "--benchmark-only") == ["tests/test_one.py::test_it"]


CHANGING = """
import os
@pytest.mark.amp(precisions=["bf16_autocast"], phases=["inference"])
def test_net(amp_benchmark):
    amp_benchmark(changing)

class Coarse(torch.nn.Linear):
    def forward(self, inputs):
        found = super().forward(inputs)
        return found if found.dtype == torch.float64 else found.half().float() * (1 + 1e-3 * int(os.environ["COARSE"]))

def changing():
    return Coarse(8, 8), torch.randn(4, 8)
"""


def test_a_session_fails_where_a_case_is_worse_than_in_a_file_or_cannot_be_compared_with_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COARSE", "0")
    assert run(pytester, CHANGING, "--amp-save=saved").ret == 0
    before = saved(pytester).path
    whole = read_run(before)
    for lane, entries in {"a": whole.entries(), "b": []}.items():
        fleet = Fleet(id="abc123", lane=lane, on=SPREAD)
        header = replace(whole.header, run=f"20260131T120000Z-{lane}-abc123", fleet=fleet)
        write_whole([gathered(Path(), header, entries)], "fleet")
    same = run(pytester, CHANGING, "--amp-compare=fleet")  # the latest lane alone has no case
    assert same.ret == 0
    same.stdout.fnmatch_lines(["*ampbench: memory and errors compared*", "nothing changed: *"])
    same.stdout.no_fnmatch_line("*is not complete*")
    monkeypatch.setenv("COARSE", "9")
    worse = run(pytester, CHANGING, f"--amp-compare={before}", "--benchmark-quiet")
    assert "side by side" not in "\n".join(worse.outlines)
    assert worse.ret == pytest.ExitCode.TESTS_FAILED
    worse.assert_outcomes(passed=1)
    worse.stdout.fnmatch_lines(["*regressed *test_mine.py:changing bf16_autocast*output error*"])
    assert not any("seconds_median" in line or "in turns" in line for line in worse.outlines)
    missing = run(pytester, CHANGING, "--amp-compare=none.jsonl")
    assert missing.ret == pytest.ExitCode.USAGE_ERROR
    missing.stderr.fnmatch_lines(["*none.jsonl*"])
    other = run(pytester, CHANGING.replace("bf16_autocast", "bf16_pure"), f"--amp-compare={before}")
    assert other.ret == pytest.ExitCode.TESTS_FAILED
    other.stdout.fnmatch_lines([f"--amp-compare {before}: *"])
    text = re.sub(r'"(weights_digest|inputs_digest)":"[^"]*"', r'"\1":"0"', before.read_text())
    before.write_text(text.replace('"source":"profiler"', '"source":"allocator"'))
    assert run(pytester, CHANGING, f"--amp-compare={before}").ret == pytest.ExitCode.TESTS_FAILED, "incomparable"


def test_a_device_that_is_named_and_missing_fails_and_one_of_a_marker_is_skipped(pytester: pytest.Pytester) -> None:
    missing = next(name for name in DEVICES if not present(name))
    body = "def test_net(amp_benchmark):\n    amp_benchmark(net)\n"
    named = run(pytester, body, f"--amp-device={missing}", "--amp-precision=fp32", "--amp-phase=inference")
    named.assert_outcomes(passed=1, failed=1)
    assert failures(named)[0].startswith(f"Failed: --amp-device {missing}: {missing} is not available: ")
    marked = f"@pytest.mark.amp(devices=[{missing!r}], precisions='fp32', phases='inference')\n"
    pytester.makepyfile(test_mine=NETS + marked + body)
    pytester.runpytest_inprocess(*QUICK).assert_outcomes(skipped=1)
