"""`ampbench explain` and its verbs: how they are found and set, and what `rules` prints, stores and compares."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.cli import main as program
from ampbench.errors import NothingToRunError
from ampbench.records.kinds import KINDS, RULES
from ampbench.records.measured import Failure
from ampbench.records.rules import RuleProbe
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import list_runs, read_run
from tests.rule_probes import observation, probe
from tests.scripted_channel import asked_in
from tests.stored_runs import COMPLETE, make_case, make_header, make_round, write_run

Run = Callable[..., Any]
PROBES = Path(__file__).parents[2] / "results" / "rules"
OLD, NEW = PROBES / "torch-2.11.0.jsonl.gz", PROBES / "torch-2.15.0.jsonl.gz"
EXPLANATIONS = [row.name for row in KINDS.values() if row.group == "explain"]


def test_help_lists_its_verbs_and_theirs_has_examples(ampbench: Run) -> None:
    said = ampbench("explain", "--help")
    assert said.code == 0
    assert "\n  rules " in said.out
    said = ampbench("explain", "rules", "--help")
    assert said.code == 0
    assert "  ampbench explain rules --against" in said.out.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], f"explain what? known: {', '.join(EXPLANATIONS)}; see ampbench explain --help"),
        (["explain", "ruels"], "unknown explain verb 'ruels': did you mean rules?"),
        (["explain", "rules", "--devcie", "cpu"], "unknown option --devcie: did you mean --device"),
        (["explain", "rules", "--device", "cud"], "unknown device 'cud': did you mean cuda"),
        (["explain", "rules", "--dtype", "fp61"], "unknown autocast dtype 'fp61': did you mean fp16"),
        (["explain", "rules", NEW, "--op", "sofmax"], "unknown op 'sofmax': did you mean softmax"),
        (["explain", "rules", NEW, "--op", "zzz"], "unknown op 'zzz': no rule and no document is about it"),
        (["explain", "rules", "none.jsonl"], "there is no run file none.jsonl"),
        (["explain", "rules", "none"], "there is no results folder results"),
        (["explain", "rules", __file__], "line 1: no header of an ampbench run"),
        (["explain", "rules", "--against", __file__], "line 1: no header of an ampbench run"),
        (["explain", "rules", NEW, "-o", "x"], "-o stores a whole new probe: leave out RUN"),
        (["explain", "rules", "--op", "mm", "-o", "x"], "-o stores a whole new probe: leave out --op"),
        (["explain", "rules", NEW, "--json", "--format", "csv"], "contradict each other"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str | Path], message: str, ampbench: Run) -> None:
    said = ampbench(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("ampbench: error: ")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_a_settings_file_has_a_table_for_a_verb_of_a_verb(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "ampbench.toml").write_text('["explain rules"]\ndevice = ["xpu"]\nformat = "csv"\n')
    assert {row["device"] for row in rows(ampbench("explain", "rules", NEW).out)} == {"xpu"}
    assert {row["device"] for row in rows(ampbench("explain", "rules", NEW, "--device", "cpu").out)} == {"cpu"}
    (tmp_path / "ampbench.toml").write_text('["explain rules"]\ndevcie = "xpu"\n')
    assert "unknown setting of explain rules 'devcie': did you mean device" in ampbench("explain", "rules", NEW).err
    (tmp_path / "ampbench.toml").write_text('[explain.rules]\ndevice = "xpu"\n')
    assert "unknown setting 'explain': did you mean explain headroom, explain" in ampbench("explain", "rules", NEW).err


def test_every_option_of_its_verbs_can_be_set_by_its_long_name() -> None:
    assert set(program.GROUPS) <= set(program.VERBS)
    known = set(program.options_of("explain rules"))
    assert {"device", "dtype", "op", "all", "against", "output", "format"} <= known


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["explain", "rules", "--help"], ("torch", "torchvision", "pandas", "scipy", "numpy", "rich")),
        (["explain", "rules", str(NEW), "--against", str(OLD)], ("torch", "torchvision", "pandas", "scipy")),
    ],
)
def test_what_is_not_needed_is_not_imported(arguments: list[str], forbidden: tuple[str, ...]) -> None:
    code = (
        "import sys; from ampbench.cli.main import main\n"
        f"code = main({arguments!r})\n"
        f"sys.exit(code or ','.join(sorted(sys.modules.keys() & set({forbidden!r}))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_table_begins_with_what_disagrees_and_fits_a_hundred_columns(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "xpu")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "xpu: torch 2.15.0+cu132, autocast to fp16 and bf16, observed on fake tensors, not on hardware"
    assert lines[1].startswith(
        "  For when an op under autocast has a dtype, or raises an error, that you did not expect"
    )
    assert lines[5] == "  contradicted (the document names one rule, another is observed)"
    assert lines[7].split() == ["float32", "unlisted", "yes", "banned", "binary_cross_entropy"]
    order = [said.out.index(title) for title in ("undocumented (", "Ops by rule", "other claims", "Not observed")]
    assert order == sorted(order)
    assert "Every op" not in said.out


def test_all_lists_every_op(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "cpu", "--all")
    table = said.out.partition("Every op on cpu")[2]
    known = read_run(NEW).of(RuleProbe)["cpu"].observations
    assert max(map(len, said.out.splitlines())) <= 100
    assert len(table.splitlines()) >= len({one.name for one in known})
    (softmax,) = [line.split() for line in table.splitlines() if line.strip().startswith("softmax.int")]
    assert softmax == ["softmax.int", "unlisted", "no", "unlisted"]
    said = ampbench("explain", "rules", NEW, "--device", "xpu", "--op", "binary_cross_entropy", "--op", "chain_matmul")
    assert max(map(len, said.out.splitlines())) <= 100
    assert "banned    fp64, integer refused" in said.out


def test_the_rule_of_an_op_that_was_asked_for_comes_first_and_nothing_is_counted(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "cpu", "--op", "softmax.int")
    title, _, note, headers, row, *_ = said.out.splitlines()
    assert title.startswith("cpu: torch 2.15.0")
    assert note.strip().startswith("calls: ")
    assert (headers.split()[0], row.split()) == ("op", ["softmax.int", "unlisted", "no", "unlisted"])
    assert "Ops by rule" not in said.out
    assert "Nothing disagrees." in said.out


def test_named_ops_are_listed_with_their_overloads(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "cuda", "--op", "prod", "--format", "csv")
    assert {(row["op"], row["overload"]) for row in rows(said.out)} == {("aten::prod", ""), ("aten::prod", "dim_int")}


def test_json_is_the_probe_with_its_disagreements_and_environment(ampbench: Run) -> None:
    document = json.loads(ampbench("explain", "rules", NEW, "--json", "--dtype", "bf16").out)
    assert "not on hardware" in document["note"]
    assert document["environment"]["torch_version"] == "2.15.0+cu132"
    assert document["run"] == read_run(NEW).header.run
    xpu = document["probes"][2]
    assert (xpu["device"], xpu["dtypes"], len(xpu["observations"])) == ("xpu", ["bfloat16"], 214)
    assert xpu["disagreements"][0]["op"] == "aten::binary_cross_entropy"


def test_csv_has_a_row_per_op_device_and_dtype(ampbench: Run) -> None:
    found = rows(ampbench("explain", "rules", NEW, "--format", "csv").out)
    assert len(found) == 214 * 3 * 2
    (one,) = [row for row in found if (row["op"], row["device"], row["dtype"]) == ("aten::prelu", "xpu", "float16")]
    assert (one["xpu_reference"], one["pytorch_page"]) == ("lower_precision", "unlisted")
    assert (one["observed"], one["how"], one["disagreements"]) == ("lower_precision", "fake tensors", "undocumented")


def test_markdown_has_the_same_sections(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "xpu", "--format", "markdown")
    assert "\n### contradicted\n\nThe document names one rule, another is observed.\n\n| XPU reference |" in said.out


def test_against_an_older_torch_it_says_what_changed_and_only_that(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--against", OLD)
    assert (said.code, said.err) == (0, "")
    cuda = said.out.partition("cuda: torch 2.11.0+cu130 to 2.15.0+cu132")[2]
    assert cuda.splitlines()[2].split() == ["observed", "unlisted", "float32", "rms_norm"]
    assert "undocumented" not in said.out
    assert max(map(len, said.out.splitlines())) <= 100


def test_changes_are_rows_for_machines_too(ampbench: Run) -> None:
    found = rows(ampbench("explain", "rules", NEW, "--against", OLD, "--op", "rms_norm", "--format", "csv").out)
    assert [(row["device"], row["field"], row["before"], row["after"]) for row in found] == [
        ("cuda", "observed", "unlisted", "float32"),
        ("cuda", "registered", "no", "yes"),
        ("xpu", "observed", "unlisted", "float32"),
        ("xpu", "registered", "no", "yes"),
    ]
    assert found[0]["dtypes"] == "float16 bfloat16"
    cpu, cuda, _ = json.loads(ampbench("explain", "rules", NEW, "--against", OLD, "--op", "rms_norm", "--json").out)
    assert (cpu["changes"], cuda["before"]["torch_version"]) == ([], "2.11.0+cu130")
    assert cuda["changes"][0]["op"] == "aten::rms_norm"


def test_an_op_that_only_one_of_two_probes_knows_can_be_asked_for(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--against", OLD, "--device", "cpu", "--op", "cholesky")
    assert "there, float32  not there  cholesky" in said.out


class Worker:
    """Stand in for the workers: each device type has a made-up probe, but for those in `ending`, which end so."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ending: dict[str, Failure | type[BaseException]] = {
            "xpu": Failure(case_id="", stage="rules", cause="crash", message="ended by signal SIGABRT")
        }
        self.closed = False

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(make_header().environment)
        self.asked.append(request)
        ending = self.ending.get(request.device)
        if isinstance(ending, Failure):
            return Reply(failure=ending)
        if ending is not None:
            raise ending
        made = observation(observed="float32", device=request.device)
        return reply_with(probe(made, device=request.device, dtypes=asked_in(request).dtypes))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    channel = Worker()
    monkeypatch.setattr("ampbench.drive.servers.ServerChannel", lambda: channel)
    return channel


def stored_runs(folder: Path) -> list[str]:
    return [path.stem for path in list_runs(folder)]


def test_a_new_probe_is_a_run_of_the_results_folder(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda", "--dtype", "bf16", "--timeout", "9")
    (run,) = stored_runs(tmp_path / "results")
    assert (said.code, said.err) == (0, f"stored as run {run}\n")
    assert [(one.device, asked_in(one).dtypes, asked_in(one).ops, one.timeout_seconds) for one in worker.asked] == [
        (device, ["bfloat16"], [], 9.0) for device in ("cpu", "cuda")
    ]
    assert worker.closed
    stored = read_run(tmp_path / "results" / "runs" / f"{run}.jsonl")
    assert (stored.header.explains, stored.header.environment, stored.ended) == (
        RULES,
        make_header().environment,
        "complete",
    )
    assert list(stored.of(RuleProbe)) == stored.header.selection.devices == ["cpu", "cuda"]
    again = ampbench("explain", "rules", run[-6:])
    assert (again.code, again.out, again.err) == (0, said.out, "")
    assert ampbench("explain", "rules", "--device", "cuda", "--against", run, "--results", "other").code == 2
    assert "Nothing changed." in ampbench("explain", "rules", run, "--against", run).out


@pytest.mark.parametrize("name", ["new.jsonl.gz", "new.jsonl"])
def test_the_same_run_is_written_where_asked_too(name: str, worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "-o", name, "--results", "mine")
    (run,) = stored_runs(tmp_path / "mine")
    assert (said.code, said.err) == (0, f"stored as run {run}\nstored in {name}\n")
    kept, copied = read_run(tmp_path / "mine" / "runs" / f"{run}.jsonl"), read_run(tmp_path / name)
    assert (kept.header, kept.of(RuleProbe), kept.footers) == (copied.header, copied.of(RuleProbe), copied.footers)
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert ampbench("explain", "rules", name).out == said.out


def test_a_probe_of_some_ops_is_not_stored(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    for flags in ([], ["--against", OLD]):
        said = ampbench("explain", "rules", "--device", "cpu", "--op", "thing", *flags)
        assert (said.code, said.err) == (0, "")
    assert stored_runs(tmp_path / "results") == []


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_probed(
    worker: Worker, tmp_path: Path, ampbench: Run
) -> None:
    (tmp_path / "results").write_text("a file")
    said = ampbench("explain", "rules")
    assert said.code == 2
    assert "choose another --results folder" in said.err
    assert worker.asked == []


def test_a_comparison_probes_every_op_so_that_one_that_is_gone_is_seen(worker: Worker, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--against", OLD, "--op", "qr")
    assert asked_in(worker.asked[0]).ops == []
    assert "there, float32  not there  qr" in said.out


def test_a_device_whose_worker_crashed_is_a_line_and_exit_3(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "xpu", "--device", "cpu")
    (run,) = stored_runs(tmp_path / "results")
    assert said.code == 3
    assert said.err.splitlines() == [
        "autocast on xpu could not be probed: crash: ended by signal SIGABRT",
        f"stored as run {run}",
    ]
    assert said.out.startswith("cpu: torch 2.99.0")
    assert ampbench("explain", "rules", run).err == f"{run} has no probe of xpu, which was asked for\n"


def test_a_worker_that_was_killed_is_asked_once_more_and_a_server_that_starts_no_more_keeps_what_was_probed(
    worker: Worker, tmp_path: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ending = {"cuda": Failure(case_id="", stage="rules", cause="killed", message="by SIGKILL")}
    said = ampbench("explain", "rules", "--device", "cuda", "--device", "cpu")
    assert said.code == 3
    assert [one.device for one in worker.asked] == ["cuda", "cuda", "cpu"]
    opened: list[Worker] = []

    def starting() -> Worker:
        if opened:
            raise NothingToRunError("no worker could start with python: no more processes")
        opened.append(worker)
        return worker

    monkeypatch.setattr("ampbench.drive.servers.ServerChannel", starting)
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda", "--results", "mine")
    (run,) = stored_runs(tmp_path / "mine")
    assert said.code == 5
    assert said.out.startswith("cpu: torch 2.99.0")
    assert said.err.splitlines() == [
        "no worker could start with python: no more processes",
        f"what was probed is kept as run {run}",
    ]
    assert [one.ended for one in read_run(tmp_path / "mine" / "runs" / f"{run}.jsonl").footers] == ["interrupted"]


def test_where_no_probe_lived_nothing_is_stored(worker: Worker, tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "xpu")
    assert (said.code, said.out) == (5, "")
    assert "xpu could not be probed: crash" in said.err
    assert stored_runs(tmp_path / "results") == []


def test_an_interruption_keeps_and_shows_the_devices_probed_by_then(
    worker: Worker, tmp_path: Path, ampbench: Run
) -> None:
    worker.ending = {"cuda": KeyboardInterrupt}
    said = ampbench("explain", "rules")
    (run,) = stored_runs(tmp_path / "results")
    assert (said.code, said.err) == (130, f"what was probed is kept as run {run}\n")
    assert said.out.startswith("cpu: ")
    stored = read_run(tmp_path / "results" / "runs" / f"{run}.jsonl")
    assert (list(stored.of(RuleProbe)), stored.ended) == (["cpu"], "interrupted")
    worker.ending = {"cpu": KeyboardInterrupt}
    assert ampbench("explain", "rules").code == 130
    assert stored_runs(tmp_path / "results") == [run]
    assert worker.closed


def test_a_terminal_is_told_which_device_is_being_probed(
    worker: Worker, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "cuda")
    assert said.err.splitlines()[:2] == ["probing cpu …", "probing cuda …"]


def test_a_run_that_measured_holds_no_rules(tmp_path: Path, ampbench: Run) -> None:
    case = make_case()
    write_run(tmp_path / "results", [case], make_round(case), COMPLETE)
    said = ampbench("explain", "rules", "latest")
    assert said.code == 2
    assert "holds no probe of autocast's rules: `ampbench explain rules` stores one" in said.err


def test_two_probes_with_nothing_in_common_cannot_be_compared(worker: Worker, ampbench: Run) -> None:
    ampbench("explain", "rules", "--device", "cpu", "-o", "cpu.jsonl")
    said = ampbench("explain", "rules", NEW, "--device", "xpu", "--against", "cpu.jsonl")
    assert said.code == 4
    assert "cpu.jsonl and this probe have no device and dtype in common" in said.err
    said = ampbench("explain", "rules", "cpu.jsonl", "--device", "xpu")
    assert (said.code, said.out) == (4, "")
    assert "cpu.jsonl has nothing of xpu" in said.err


def test_a_real_probe_runs_in_a_worker_and_says_nothing_on_stderr(ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--op", "prelu", "--device", "cpu", "--device", "xpu", "--json")
    assert (said.code, said.err) == (0, "")
    found = [one for each in json.loads(said.out)["probes"] for one in each["observations"]]
    assert {(one["device"], one["dtype"], one["observed"]) for one in found} == {
        (device, dtype, "lower_precision") for device in ("cpu", "xpu") for dtype in ("float16", "bfloat16")
    }


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
