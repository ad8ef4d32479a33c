"""`ampbench show` of a stored run: the table a person reads, the rows a machine reads, the details."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len

from ampbench.core.metrics import COLUMNS
from ampbench.records.changes import VERDICT_COLUMNS
from ampbench.records.measured import Failure
from tests import stored_runs
from tests.report.large_runs import write_zoo_run

Run = Callable[..., Any]


def test_the_way_to_keep_a_precision_names_a_limit_that_is_not_the_usual_one(results: Path, ampbench: Run) -> None:
    way = "  ampbench explain keep-fp32 mlp --precision bf16_pure --phase training"
    assert f"{way}\n" in ampbench("show", "latest", "--results", results, "-k", "mlp").out
    Path("ampbench.toml").write_text("[limits]\ngrad_rel_l2 = 0.05\n")
    assert f"{way} --max-gradient-error 0.05\n" in ampbench("show", "latest", "--results", results, "-k", "mlp").out


def test_what_does_not_change_what_to_do_is_shown_with_verbose_alone(results: Path, ampbench: Run) -> None:
    run = ("show", "latest", "--results", results, "-k", "mlp")
    brief, whole = (ampbench(*run, *more).out for more in ((), ("-v",)))
    for text in ("control: mlp fp32 training measured twice differs by ", "items/s", "gradient error  "):
        assert text not in brief
        assert text in whole
    assert " -v has the rest\n" in brief


def test_json_is_a_list_of_flat_rows_with_the_documented_columns(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results, "--json")
    rows = json.loads(said.out)
    assert len(rows) == 17
    assert all(list(row) == [*COLUMNS, *VERDICT_COLUMNS] for row in rows)
    skipped = next(row for row in rows if row["outcome"] == "skipped")
    assert skipped["seconds_median"] is None
    assert isinstance(rows[0]["peak_memory_bytes"], int)
    assert said.err == ""


def test_a_keyword_selects_rows_but_the_advice_stays_that_of_the_run(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "-k", "resnet18 and bf16_pure").out
    assert "fp16" not in out.partition("→")[0]
    assert "→ Take bf16_pure: 1.75x the speed" in out


@pytest.mark.parametrize("width", ["80", "100"])
def test_one_case_is_shown_with_all_that_is_known_of_it(
    width: str, results: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    case_id = "mlp[depth=3,width=512]/b32/fp16_autocast/cpu/training/eager/in-fp32"
    out = ampbench("show", "latest", "--results", results, "-v", "-k", case_id).out
    facts = [" ".join(line.split()) for line in out.splitlines()]
    assert facts[0] == case_id
    for fact in (
        "verdict ok", "round 2 21.3 ms 3+3+3 samples, server 2", "optimizer_bytes 0",
        "gradient.worst_parameter layers.2.weight", "gradient.flushed 1204", "skipped_steps 0",
    ):  # fmt: skip
        assert any(line.startswith(fact) for line in facts), fact
    assert max(map(cell_len, out.splitlines())) <= int(width)


def test_a_cut_arm_of_a_comparison_is_not_said_to_go_on(results: Path, ampbench: Run) -> None:
    (path,) = (results / "runs").iterdir()
    for arm, told in (("null", True), ('{"session":"s","name":"baseline"}', False)):
        header, *rest = path.read_text().splitlines(keepends=True)
        known = msgspec.json.decode(header)
        known["header"]["arm"] = msgspec.json.decode(arm)
        path.write_text("".join([msgspec.json.encode(known).decode() + "\n", *rest]) + ("" if not told else '{"round'))
        said = ampbench("show", "latest", "--results", results)
        assert "ends in a cut line" in said.err
        assert ("--resume" in said.err) == told


@pytest.mark.parametrize(
    "words",
    ["show new", "show new -v", "list runs", "compare old new", "gate old new", "trend results/runs --x commit",
     "show a\x1b[2Jb"],
)  # fmt: skip
def test_what_networks_and_other_peoples_runs_say_commands_no_terminal(words: str, tmp_path: Path, ampbench: Run):
    said = "a\x1b[2J\x1b[31mb\x9bc\u202ed\x00"
    case, broken = (stored_runs.make_case(workload=f"{said}{name}", family="user") for name in ("", "broken"))
    for run, factor in (("old", 1.0), ("new", 2.0)):
        stored_runs.write_run(
            tmp_path / "results",
            [case, broken],
            *(stored_runs.make_round(case, factor * 1e-3, number) for number in range(4)),
            Failure(case_id=broken.case_id, stage="round", cause="exception", message=said, frames=[said]),
            stored_runs.COMPLETE,
            run=run,
            label=said,
            commit=said,
        )
    found = ampbench(*words.split())
    assert r"a\x1b[2J" in found.out + found.err
    assert {one for one in found.out + found.err if not one.isprintable()} <= {"\n"}


def test_without_a_run_it_shows_the_latest_and_says_which_newer_file_cannot_be_read(
    results: Path, ampbench: Run
) -> None:
    assert ampbench("show", "--results", results) == ampbench("show", "latest", "--results", results)
    damaged = results / "runs" / "20990101T000000Z-a-bbb111.jsonl"
    damaged.write_bytes(b'{"header":' * 5000 + b"\n")
    said = ampbench("show", "--results", results)
    assert said.code == 0
    assert said.out == ampbench("show", "--results", results).out != ""
    assert said.err.startswith(f"latest leaves out what cannot be read: {damaged}, line 1: no header")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a run of 25 networks, some of them in training, too."""
    results = tmp_path_factory.mktemp("zoo")
    write_zoo_run(results, networks=25)
    return results


def test_many_networks_are_a_row_each_with_the_way_to_their_tables(zoo: Path, ampbench: Run) -> None:
    out = ampbench("show", "zoo", "--results", zoo).out
    assert "time/step" not in out
    pointer = f"all 32 tables: ampbench show zoo --results {zoo} -v, or -k NAME for one network"
    assert pointer in " ".join(out.split())
    before, _, inference, training = out.split("\n\n")
    assert before.startswith("without a result\n")
    assert (inference[:16], training[:15]) == ("inference: take ", "training: take ")
    lines = [*inference.splitlines(), *training.splitlines()]
    assert sum(line.startswith("timm:") for line in lines) == 34 - 3  # three are without a result
    assert max(map(cell_len, lines)) <= 100
    titles = [line for line in ampbench("show", "zoo", "--results", zoo, "-v").out.splitlines() if " · batch " in line]
    assert len([line for line in titles if line.startswith("timm:")]) == 34 - 2  # the others were skipped whole
