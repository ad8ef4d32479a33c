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
from ampbench.records.environments import Environment
from ampbench.records.rules import StoredRules
from ampbench.store.rules import read_rules
from tests.rule_probes import observation, probe

Run = Callable[..., Any]
PROBES = Path(__file__).parents[2] / "results" / "rules"
OLD, NEW = PROBES / "torch-2.11.0.json.gz", PROBES / "torch-2.15.0.json.gz"


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
        (["explain"], "explain what? known: rules; see ampbench explain --help"),
        (["explain", "ruels"], "unknown verb of explain 'ruels': did you mean rules?"),
        (["explain", "rules", "--devcie", "cpu"], "no such option: --devcie (Possible options: --device"),
        (["explain", "rules", "--device", "cud"], "unknown device 'cud': did you mean cuda"),
        (["explain", "rules", "--dtype", "fp61"], "unknown autocast dtype 'fp61': did you mean fp16"),
        (["explain", "rules", NEW, "--op", "sofmax"], "unknown op 'sofmax': did you mean softmax"),
        (["explain", "rules", NEW, "--op", "zzz"], "unknown op 'zzz': no rule and no document is about it"),
        (["explain", "rules", "none.json"], "none.json: cannot be read"),
        (["explain", "rules", __file__], "no stored probe of autocast's rules"),
        (["explain", "rules", "--against", __file__], "no stored probe of autocast's rules"),
        (["explain", "rules", NEW, "-o", "x"], "-o stores a whole new probe: leave out FILE"),
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
    assert "unknown setting 'explain': did you mean explain rules" in ampbench("explain", "rules", NEW).err


def test_every_option_of_its_verbs_can_be_set_by_its_long_name() -> None:
    known = program._all_options()
    assert set(program.GROUPS) <= set(program.VERBS)
    assert {"device", "dtype", "op", "all", "against", "output", "format"} <= set(known["explain rules"])
    assert "explain" not in known


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
    assert lines[2] == "  contradicted: the document names one rule, another is observed"
    assert lines[4].split() == ["float32", "unlisted", "yes", "banned", "binary_cross_entropy"]
    order = [said.out.index(title) for title in ("undocumented: ", "Ops by rule", "other claims", "Not observed")]
    assert order == sorted(order)
    assert "Every op" not in said.out


def test_all_lists_every_op(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "cpu", "--all")
    table = said.out.partition("Every op on cpu")[2]
    known = read_rules(NEW).probes[0].observations
    assert max(map(len, said.out.splitlines())) <= 100
    assert len(table.splitlines()) >= len({one.name for one in known})
    (softmax,) = [line.split() for line in table.splitlines() if line.strip().startswith("softmax.int")]
    assert softmax == ["softmax.int", "unlisted", "no", "unlisted"]
    said = ampbench("explain", "rules", NEW, "--device", "xpu", "--op", "binary_cross_entropy", "--op", "chain_matmul")
    assert max(map(len, said.out.splitlines())) <= 100
    assert "banned    fp64, integer refused" in said.out.partition("Every op on xpu")[2]


def test_named_ops_are_listed_with_their_overloads(ampbench: Run) -> None:
    said = ampbench("explain", "rules", NEW, "--device", "cuda", "--op", "prod", "--format", "csv")
    assert {(row["op"], row["overload"]) for row in rows(said.out)} == {("aten::prod", ""), ("aten::prod", "dim_int")}


def test_json_is_the_probe_with_its_disagreements_and_environment(ampbench: Run) -> None:
    document = json.loads(ampbench("explain", "rules", NEW, "--json", "--dtype", "bf16").out)
    assert "not on hardware" in document["note"]
    assert document["environment"]["torch_version"] == "2.15.0+cu132"
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


ENVIRONMENT = Environment(
    host="h", system="s", cpu="c", cpu_count=2, python_version="3.11", torch_version="2.99.0", numpy_version="2",
    threads=1,
)  # fmt: skip


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stand in for the workers: a probe of the CPU, and an XPU whose worker crashed where it is asked for."""
    asked: list[tuple[Any, ...]] = []

    def probe_devices(*given: Any) -> tuple[StoredRules, list[str]]:
        asked.append(given)
        rules = [probe(observation(observed="float32", device="cpu"), device="cpu")]
        problems = ["autocast on xpu could not be probed: crash: ended by signal SIGABRT"] if "xpu" in given[0] else []
        return StoredRules(note="", environment=ENVIRONMENT, probes=rules), problems

    monkeypatch.setattr("ampbench.running.rules.probe_devices", probe_devices)
    return asked


def test_a_new_probe_is_stored_where_asked(probed: list[tuple[Any, ...]], tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--dtype", "bf16", "-o", "new.json.gz", "--timeout", "9")
    assert (said.code, said.err) == (0, "stored in new.json.gz\n")
    assert probed == [(["cpu"], ["bfloat16"], [], 9.0)]
    assert read_rules(tmp_path / "new.json.gz").environment == ENVIRONMENT
    assert ampbench("explain", "rules", "new.json.gz").out == said.out


def test_a_comparison_probes_every_op_so_that_one_that_is_gone_is_seen(
    probed: list[tuple[Any, ...]], ampbench: Run
) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--against", OLD, "--op", "qr")
    assert probed[0][2] == []
    assert "there, float32  not there  qr" in said.out


def test_a_device_whose_worker_crashed_is_a_line_and_exit_3(probed: list[tuple[Any, ...]], ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--device", "cpu", "--device", "xpu")
    assert said.code == 3
    assert said.err == "autocast on xpu could not be probed: crash: ended by signal SIGABRT\n"
    assert said.out.startswith("cpu: torch 2.99.0")


def test_two_probes_with_nothing_in_common_cannot_be_compared(
    probed: list[tuple[Any, ...]], tmp_path: Path, ampbench: Run
) -> None:
    ampbench("explain", "rules", "--device", "cpu", "-o", "cpu.json")
    said = ampbench("explain", "rules", NEW, "--device", "xpu", "--against", "cpu.json")
    assert said.code == 4
    assert "cpu.json and this probe have no device and dtype in common" in said.err
    said = ampbench("explain", "rules", "cpu.json", "--device", "xpu")
    assert (said.code, said.out) == (4, "")
    assert "cpu.json has nothing of xpu" in said.err


def test_a_real_probe_runs_in_a_worker_and_says_nothing_on_stderr(ampbench: Run) -> None:
    said = ampbench("explain", "rules", "--op", "prelu", "--device", "cpu", "--device", "xpu", "--json")
    assert (said.code, said.err) == (0, "")
    found = [one for each in json.loads(said.out)["probes"] for one in each["observations"]]
    assert {(one["device"], one["dtype"], one["observed"]) for one in found} == {
        (device, dtype, "lower_precision") for device in ("cpu", "xpu") for dtype in ("float16", "bfloat16")
    }


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))
