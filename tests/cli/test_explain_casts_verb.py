"""`ampbench explain casts`: what it asks for, prints and stores, and what other verbs make of such a run."""

import csv
import functools
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import ampbench as library
from ampbench.core.units import format_seconds
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import Channel
from ampbench.errors import UsageError
from ampbench.instruments.casts import instrument
from ampbench.records.case import DeviceDescription
from ampbench.records.casts import AUTOGRAD, CastPass, CheckedSaving, GraphTrace, Tracing
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Settings
from ampbench.store import list_runs, read_run
from tests.stored_runs import COMPLETE, RUN, make_case, make_header, write_run
from tests.traced_programs import trace

Run = Callable[..., Any]

MODEL = """
import torch

class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(self.linear(x))

def make():
    return torch.nn.Linear(16, 16), torch.randn(4, 16)

def twice():
    return Twice(), torch.randn(4, 16), lambda output: output.float().sum()

def softmax():
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softmax(-1)), torch.randn(4, 16)

def broken():
    return torch.nn.Linear(16, 16), torch.randn(4, 8)
"""
LINEAR = make_case("bf16_autocast", workload="model.py:make", parameters={}, batch_size=None)
DEEP = make_case("fp16_autocast", workload="deep", parameters={}, device="cuda", phase="training")
BROKEN = make_case("bf16_autocast", workload="broken", parameters={})
SKIPPED = make_case("bf16_autocast", workload="no_loss", parameters={}, phase="training")


@pytest.fixture(scope="module")
def passes() -> tuple[CastPass, CastPass]:
    """What was seen of a Linear on the device, and of a deep network on fake tensors (here: in no time)."""
    linear, deep = torch.nn.Linear(16, 16), torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(60)))
    with torch.inference_mode():
        first = trace(functools.partial(linear, torch.randn(4, 16)), linear, time=True).trace
    first = structs.replace(
        first,
        ops=[structs.replace(op, seconds=1e-4) for op in first.ops],
        casts=[structs.replace(cast, seconds=1e-4) for cast in first.casts],
    )
    second = trace(functools.partial(deep, torch.randn(4, 8)), deep).trace
    checked = CheckedSaving(
        change="inputs stored in half", names=["input"], casts=1, bytes_moved=384,
        before=[[3e-5, 2e-5]] * 6, after=[[1.6e-5], [1.4e-5], *[[1.5e-5]] * 4], identical=True,
        peak_bytes_before=4096, peak_bytes_after=2048,
    )  # fmt: skip
    graph = GraphTrace(graph=AUTOGRAD, error="RuntimeError: no")
    return (
        CastPass(
            case_id=LINEAR.case_id, how="device", trace=first, traced_steps=20,
            step_samples=[[9e-3, 1e-3], [1.01e-3], [1.02e-3]], peak_bytes=4096,
            memory_source="profiler", checked=[checked], graphs=[graph],
        ),
        CastPass(case_id=DEEP.case_id, how="fake tensors", trace=second, notes=["the optimizer did not run"]),
    )  # fmt: skip


@pytest.fixture
def stored(passes: tuple[CastPass, CastPass], tmp_path: Path) -> Path:
    """A results folder with one run that explains casts: two cases, a failure and a skip."""
    failure = Failure(case_id=BROKEN.case_id, stage="casts", cause="exception", message="RuntimeError: shapes")
    skip = Skip(case_id=SKIPPED.case_id, reason="no loss given")
    cases = [LINEAR, DEEP, BROKEN, SKIPPED]
    write_run(tmp_path / "results", cases, *passes, failure, skip, COMPLETE, explains="casts")
    return tmp_path / "results"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def words(line: str) -> list[str]:
    return line.split()


def test_a_summary_says_what_one_linear_casts_and_which_cast_could_be_saved(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "--case", LINEAR.case_id)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "model.py:make · bf16_autocast · inference · cpu"
    assert lines[1].startswith("  3 casts a step, 1.97 KiB, ")
    head = " ".join(said.out.partition("Where they come from")[0].split())
    assert "; 3 of them could be saved." in head
    assert "The step takes 1.01 ms (95%: " in head
    assert ") when nothing traces it; traced, its ops take " in head
    (change,) = [line for line in lines if "store the input in bf16" in line]
    assert words(change)[:3] == ["1", "384", "B"]
    (change,) = [line for line in lines if "store 2 weights (bias, weight) in bf16" in line]
    assert words(change)[:3] == ["2", "1.59", "KiB"]
    tried = " ".join(said.out.partition("Tried and measured")[2].partition("Casts per op")[0].split())
    assert "20.0 us → 15.0 us, 5.00 us saved (95%: 4.00 us to 6.00 us); outputs identical to the bit" in tried
    assert "peak memory 4.00 KiB → 2.00 KiB" in tried
    order = said.out.partition("Every op in order")[2]
    assert [words(line)[1] for line in order.splitlines()[2:7]] == ["_to_copy", "_to_copy", "_to_copy", "t", "addmm"]
    assert [line.partition("cast of ")[2] for line in order.splitlines()[2:5]] == ["weight bias", "weight", "input"]
    assert "autograd  not made: RuntimeError: no" in said.out


def test_what_is_not_known_is_left_out_and_fake_tensors_are_named(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-k", "deep")
    assert said.out.splitlines()[0].endswith(" · training · cuda · fake tensors, not on hardware")
    head, _, tables = said.out.partition("Where they come from")
    assert "The step takes" not in head
    assert "traced" not in words(tables.splitlines()[1])
    assert " us " not in tables
    assert "The optimizer did not run." in said.out


def test_modules_that_do_the_same_share_a_row_unless_all_are_asked_for(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-k", "deep", "--by", "module")
    (later,) = [words(line) for line in said.out.splitlines() if line.endswith("1 and 58 more")]
    # what the second Linear reads is the first one's output, in bf16 already
    assert later[:6] == ["Linear", "bf16", "bf16", "fp32", "59", "118"]
    every = ampbench("show", RUN, "-k", "deep", "--by", "module", "--all").out
    assert sum(line.strip().startswith("Linear") for line in every.splitlines()) == 60


def test_long_tables_are_cut_and_say_so(stored: Path, ampbench: Run) -> None:
    assert "Every op in order (40 of " in ampbench("show", RUN, "-k", "deep", "--by", "op").out
    assert "Casts per tensor (8 of 121, --all lists the rest)" in ampbench("show", RUN, "-k", "deep").out
    every = ampbench("show", RUN, "-k", "deep", "--by", "tensor", "--all").out
    assert "--all" not in every
    assert len(every.splitlines()) > 121


@pytest.mark.parametrize("by", ["summary", "op", "module", "tensor", "cast", "weight"])
def test_every_view_fits_a_hundred_columns(by: str, stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "--by", by, "--all")
    assert max(map(len, said.out.splitlines())) <= 100
    assert "3 casts a step" in said.out


def test_cases_without_a_trace_say_why(stored: Path, ampbench: Run) -> None:
    lines = ampbench("show", RUN).out.splitlines()
    assert f"{BROKEN.case_id}: failed: RuntimeError: shapes" in lines
    assert f"{SKIPPED.case_id}: skipped: no loss given" in lines


def test_a_csv_of_nothing_that_was_traced_has_its_headers_all_the_same(stored: Path, ampbench: Run) -> None:
    columns = ampbench("show", RUN, "--case", LINEAR.case_id, "--format", "csv").out.splitlines()[0]
    assert ampbench("show", RUN, "--case", BROKEN.case_id, "--format", "csv").out.splitlines() == [columns]


def test_a_dtype_that_the_device_only_emulates_is_said_so_as_run_says_it(
    passes: tuple[CastPass, CastPass], tmp_path: Path, ampbench: Run
) -> None:
    for how, tells in (("native", False), ("emulated", True)):
        cpu = DeviceDescription(type="cpu", available=True, arithmetic={"bfloat16": how})
        environment = structs.replace(make_header().environment, devices=[cpu])
        file = write_run(tmp_path / how, [LINEAR], passes[0], COMPLETE, explains="casts", environment=environment)
        said = " ".join(ampbench("show", str(file)).out.split())
        assert ("an emulated bf16 says nothing about a GPU" in said) is tells


def test_csv_has_a_row_per_cast_unless_another_table_is_asked_for(stored: Path, ampbench: Run) -> None:
    casts = rows(ampbench("show", RUN, "--format", "csv").out)
    mine = [row for row in casts if row["case_id"] == LINEAR.case_id]
    assert [(row["what"], row["name"], row["from_dtype"], row["elements"]) for row in mine] == [
        ("weight", "bias", "fp32", "16"), ("weight", "weight", "fp32", "256"), ("input", "input", "fp32", "64"),
    ]  # fmt: skip
    assert {row["seconds"] for row in casts if row["case_id"] == DEEP.case_id} == {""}
    weights = rows(ampbench("show", RUN, "-k", "make", "--by", "weight", "--format", "csv").out)
    assert {(row["name"], row["status"], row["bytes_written"]) for row in weights} == {
        ("weight", "cast", "512"), ("bias", "cast", "32"),
    }  # fmt: skip
    modules = rows(ampbench("show", RUN, "-k", "make", "--by", "module", "--format", "csv").out)
    assert [(row["kind"], row["inputs"], row["outputs"], row["casts"]) for row in modules] == [
        ("Linear", "fp32", "bf16", "3")
    ]
    tensors = rows(ampbench("show", RUN, "-k", "make", "--by", "tensor", "--format", "csv").out)
    assert {(row["name"], row["bytes_moved"]) for row in tensors} >= {("input", "384")}
    totals = rows(ampbench("show", RUN, "--by", "summary", "--format", "csv").out)
    assert [(row["casts"], row["could_be_saved"], row["how"]) for row in totals] == [
        ("3", "3", "device"), ("121", "1", "fake tensors"),
    ]  # fmt: skip
    assert [totals[1][name] for name in ("traced_cast_seconds", "step_seconds", "step_cast_seconds")] == ["", "", ""]
    assert float(totals[0]["step_seconds"]) == 1.01e-3


def test_json_is_the_pass_with_what_is_derived_from_it(stored: Path, ampbench: Run) -> None:
    document = json.loads(ampbench("show", RUN, "--json").out)
    linear, deep, broken, skipped = document["cases"]
    assert document["run"] == RUN
    assert (linear["outcome"], linear["totals"]["casts"], linear["totals"]["by_what"]["weight"]) == ("ok", 3, 2)
    assert sorted(saving["names"] for saving in linear["savings"]) == [["bias", "weight"], ["input"]]
    assert linear["casts"]["checked"][0]["identical"] is True
    assert linear["checked"][0]["low"] == pytest.approx(4e-6)
    assert linear["tables"] == {}
    assert linear["graphs"][0]["sentence"] == "autograd: not made: RuntimeError: no"
    assert deep["totals"]["seconds"] is None
    assert (broken["outcome"], broken["reason"]) == ("failed", "RuntimeError: shapes")
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "no loss given")


def test_one_number_has_one_name_in_text_csv_and_json(stored: Path, ampbench: Run) -> None:
    (row,) = rows(ampbench("show", RUN, "-k", "make", "--by", "summary", "--format", "csv").out)
    (case,) = json.loads(ampbench("show", RUN, "-k", "make", "--json").out)["cases"]
    head = " ".join(ampbench("show", RUN, "-k", "make").out.partition("Where they come from")[0].split())
    assert f"{case['sentence'][0].upper()}{case['sentence'][1:]}." in head
    known = case["costs"]
    assert known["step_cast_seconds"] == pytest.approx(0.6 * 1.01e-3)
    assert all(float(row[name]) == known[name] for name in known if name != "doubts")
    assert known["traced_cast_seconds"] == sum(cast["seconds"] for cast in case["casts"]["trace"]["casts"])
    assert f" of the traced ops' time ({format_seconds(known['traced_cast_seconds'])})" in head
    assert f"about {format_seconds(known['step_cast_seconds'])} of the untraced step" in head


def test_markdown_has_the_same_tables(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", RUN, "-k", "make", "--format", "markdown").out
    assert said.startswith("## model.py:make · bf16_autocast · inference · cpu\n\n3 casts a step, ")
    assert "\n### What could be saved\n\n| casts | moved | traced | change |\n| :-- | --: | --: | :-- |\n| 2 |" in said


def test_a_list_of_runs_says_what_each_explains(stored: Path, ampbench: Run) -> None:
    said = " ".join(ampbench("list", "runs", "--results", stored).out.split())
    assert "explains casts of model.py:make, deep, broken and 1 more " in said
    assert "2 ok, 1 failed, 1 skipped" in said
    (row,) = json.loads(ampbench("list", "runs", "--results", stored, "--json").out)
    assert (row["explains"], row["device"]) == ("casts", "cpu cuda")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", RUN, "--to", "junit"], f"run {RUN} explains casts and measured nothing: ampbench show {RUN}"),
        (["run", "--resume", RUN], f"run {RUN} explains casts: do it anew with ampbench explain casts"),
    ],
)
def test_what_needs_measurements_refuses_such_a_run(
    arguments: list[str], message: str, stored: Path, ampbench: Run
) -> None:
    said = ampbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_such_a_run_is_not_the_latest(stored: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest")
    assert (said.code, said.out) == (5, "")
    assert "has measured: do so with `ampbench run`" in said.err


def test_a_frame_of_such_a_run_is_refused_and_a_folder_leaves_it_out(stored: Path) -> None:
    (file,) = list_runs(stored)
    with pytest.raises(UsageError, match="explains casts and measured nothing"):
        library.load(file)
    write_run(stored, [LINEAR], COMPLETE, run="20260201T120000Z-bench-2")
    assert set(library.load(stored)["run"]) == {"20260201T120000Z-bench-2"}


def test_by_is_for_runs_that_explain(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results, "--by", "op")
    assert said.code == 2
    assert "--by is for runs of ampbench explain casts" in said.err


def test_a_killed_run_shows_what_it_has(passes: tuple[CastPass, CastPass], tmp_path: Path, ampbench: Run) -> None:
    write_run(tmp_path / "results", [LINEAR, DEEP], passes[0], explains="casts")
    said = ampbench("show", RUN)
    assert said.code == 0
    assert f"{DEEP.case_id}: skipped: not reached before the run ended" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "explain the casts of which workload? Name one, as in `ampbench explain casts mlp`"),
        (["mlpp"], "unknown workload 'mlpp': did you mean mlp?"),
        (["mlp", "--path", "compield"], "unknown path 'compield': did you mean compiled"),
        (["mlp", "--precision", "bf61"], "unknown precision 'bf61'"),
        (["mlp", "--device", "gpu"], "unknown device 'gpu'"),
        (["mlp", "--by", "ops"], "unknown --by 'ops': did you mean op?"),
        (["mlp", "--json", "--format", "csv"], "contradict each other"),
        (["none.py:make"], "there is no file none.py"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], message: str, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "casts", *arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_help_imports_nothing_slow() -> None:
    forbidden = ("torch", "pandas", "scipy", "numpy", "rich")
    code = (
        "import sys; from ampbench.cli.main import main\n"
        "code = main(['explain', 'casts', '--help'])\n"
        f"sys.exit(code or ','.join(sorted(sys.modules.keys() & set({forbidden!r}))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ampbench explain casts model.py:make" in done.stdout


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's file; steps are timed for a moment only."""
    trace = instrument.trace_case

    def briefly(channel: Channel, planned: PlannedCase, settings: Settings, tracing: Tracing) -> Any:
        return trace(channel, planned, settings, structs.replace(tracing, seconds=0.02))

    monkeypatch.setattr(instrument, "trace_case", briefly)
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_users_linear_makes_three_casts_and_two_with_its_input_in_half(model: Path, ampbench: Run) -> None:
    said = ampbench("explain", "casts", f"{model}:make", "--check", "--format", "json")
    (run,) = list_runs(model.parent / "results")
    assert (said.code, said.err) == (0, f"run {run.stem}: results/runs/{run.name}\n")
    (case,) = json.loads(said.out)["cases"]
    assert [(cast["what"], cast["name"]) for cast in case["casts"]["trace"]["casts"]] == [
        ("weight", "bias"), ("weight", "weight"), ("input", "input"),
    ]  # fmt: skip
    assert [op["name"] for op in case["casts"]["trace"]["ops"]][3:] == ["aten.t", "aten.addmm"]
    assert sorted(saving["names"] for saving in case["savings"]) == [["bias", "weight"], ["input"]]
    stored = next(one for one in case["casts"]["checked"] if one["change"] == "inputs stored in half")
    assert (stored["casts"], stored["identical"]) == (1, True)
    assert read_run(run).header.explains == "casts"
    said = ampbench("explain", "casts", f"{model}:make", "--half-inputs")
    assert said.out.splitlines()[0].endswith("inference · cpu · inputs in bf16")
    assert "  2 casts a step, 1.59 KiB" in said.out


def test_the_module_table_and_the_cache_come_out_as_the_discussions_say(model: Path, ampbench: Run) -> None:
    said = ampbench(
        "explain", "casts", f"{model}:softmax", f"{model}:twice", "--phase", "inference", "--phase", "training",
        "--device", "cpu", "--device", "cuda", "-k", "(softmax and inference) or (twice and cpu)", "--json",
    )  # fmt: skip
    cases = {(case["case"]["workload"], case["case"]["device"], case["case"]["phase"]): case
             for case in json.loads(said.out)["cases"]}  # fmt: skip
    kinds = {
        device: [(row["kind"], row["inputs"], row["outputs"])
                 for row in cases["model.py:softmax", device, "inference"]["casts"]["trace"]["modules"]]
        for device in ("cpu", "cuda")
    }  # fmt: skip
    # autocast's rule for softmax is the CPU's alone: it stays in the low dtype there
    assert kinds["cpu"][1:] == [("Linear", ["fp32"], ["bf16"]), ("Softmax", ["bf16"], ["bf16"])]
    if not torch.cuda.is_available():
        assert cases["model.py:softmax", "cuda", "inference"]["casts"]["how"] == "fake tensors"
    assert kinds["cuda"][1:] == [("Linear", ["fp32"], ["fp16"]), ("Softmax", ["fp16"], ["fp32"])]
    uses = {
        phase: [row["status"] for row in cases["model.py:twice", "cpu", phase]["casts"]["trace"]["weights"]]
        for phase in ("inference", "training")
    }
    assert (uses["inference"], sorted(uses["training"])) == (["cast"] * 4, ["cast"] * 2 + ["reused"] * 2)
    graphs = cases["model.py:twice", "cpu", "training"]["graphs"]
    assert [graph["graph"] for graph in graphs] == ["autograd"]


def test_a_case_that_fails_is_a_line_an_entry_and_exit_3(model: Path, ampbench: Run) -> None:
    said = ampbench("explain", "casts", f"{model}:broken", f"{model}:make", "--phase", "inference", "--by", "cast")
    assert said.code == 3
    assert said.err.startswith("run ")
    assert "Every cast in order" in said.out
    assert "broken/bf16_autocast/cpu/inference/eager/in-fp32: failed: RuntimeError" in said.out


def test_where_nothing_can_be_traced_the_reason_is_said(model: Path, ampbench: Run) -> None:
    said = ampbench("explain", "casts", f"{model}:make", "--phase", "training")
    assert (said.code, said.out) == (5, "")
    assert "no loss given" in said.err
