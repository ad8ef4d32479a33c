"""`ampbench show` of a stored run: the table a person reads, the rows a machine reads, the details."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from ampbench.cli.results import LABEL_WIDTH, detail_lines, run_rows
from ampbench.core.budget import Budget
from ampbench.core.metrics import COLUMNS
from ampbench.records.measured import Failure
from ampbench.records.verdict import VERDICT_COLUMNS
from ampbench.store import find_run, read_run
from tests import stored_runs
from tests.report.large_runs import write_zoo_run

Run = Callable[..., Any]

MLP_AT_100_COLUMNS = """\
mlp · batch 32 · training · cpu · eager · depth=3 width=512
optimizer: SGD
precision     time/step           speed         memory   error    grad verdict
fp32            1.81 ms 1.00x           12.0 MiB 1.00x 2.1e-07 3.1e-07 baseline
fp16_autocast   21.4 ms 0.08x 0.08–0.08 14.0 MiB 1.17x 3.2e-04 4.0e-04 ok
bf16_autocast    911 us 1.99x 1.98–2.00 10.0 MiB 0.83x 2.6e-03 3.2e-03 ok
bf16_pure        702 us 2.58x 2.58–2.58 6.00 MiB 0.50x 3.8e-03 1.6e-01 gradient error 1.6e-01 > 0.1
→ take bf16_autocast: 1.99x the speed and 0.83x the memory of fp32, error 2.6e-03 of 0.02 allowed,
  seen in one step at the first weights; bf16_pure is 2.58x as fast, but its gradient error is
  1.6e-01, more than 0.1
"""


def test_the_table_is_as_wide_as_the_terminal_and_no_number_is_wrapped(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results)
    assert said.code == 0
    assert MLP_AT_100_COLUMNS in said.out
    table = said.out.partition("These numbers")[0]
    assert max(map(cell_len, table.splitlines())) <= 100


def test_a_failed_row_shows_its_reason_across_the_columns(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results).out
    assert "\nfp16_pure      failed: time-out: step 1 took longer than 300 s\n" in out


def test_a_skip_shared_by_groups_is_said_once_below(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results).out
    assert out.count("tf32: this CPU has no tf32") == 1
    assert "\nskipped: tf32: this CPU has no tf32 (3 cases)\n" in out
    assert "\nskipped: kl_head training eager: no loss given (1 case)\n" in out
    assert "\nkl_head" not in out


def test_it_says_for_which_device_the_numbers_speak(results: Path, ampbench: Run) -> None:
    out = " ".join(ampbench("show", "latest", "--results", results).out.split())
    assert (
        "These numbers speak for this CPU (AMD EPYC: bf16 native, fp16 emulated); "
        "an emulated fp16 says nothing about a GPU."
    ) in out
    assert "control: mlp fp32 training measured twice differs by " in out


def test_stdout_holds_the_result_alone(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results)
    assert f"{results}" not in said.out
    assert said.err == ""


def test_a_narrow_terminal_gets_fewer_columns_and_is_told(
    results: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    out = ampbench("show", "latest", "--results", results, "-k", "mlp").out
    assert "items/s" not in out.partition("→")[0]
    assert "no room for items/s" in out


def test_no_colour_leaks_into_a_pipe(results: Path, ampbench: Run) -> None:
    assert "\x1b" not in ampbench("show", "latest", "--results", results).out


def test_colour_marks_the_row_that_is_advised(results: Path, ampbench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = ampbench("show", "latest", "--results", results).out
    assert "\x1b[1mbf16_autocast    911 us" in out
    assert "\x1b[31mfailed: time-out" in out


def test_json_is_a_list_of_flat_rows_with_the_documented_columns(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results, "--json")
    rows = json.loads(said.out)
    assert len(rows) == 17
    assert all(list(row) == [*COLUMNS, *VERDICT_COLUMNS] for row in rows)
    skipped = next(row for row in rows if row["outcome"] == "skipped")
    assert skipped["seconds_median"] is None
    assert isinstance(rows[0]["peak_memory_bytes"], int)
    assert said.err == ""


def test_csv_has_the_same_rows(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 17
    assert list(rows[0]) == [*COLUMNS, *VERDICT_COLUMNS]
    assert rows[0]["seconds_median"] == "0.01521"
    assert rows[0]["reason"] == ""


def test_markdown_has_a_table_and_advice_for_each_group(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "--format", "markdown").out
    assert out.count("### ") == 3
    assert out.count("→ ") == 3
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert "| bf16_autocast | 911 us | 35.1 k | 1.99x 1.98–2.00 |" in out
    assert len({line.count("|") for line in lines[:6]}) == 1


def test_a_keyword_selects_rows_but_the_advice_stays_that_of_the_run(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "-k", "resnet18 and bf16_pure").out
    assert "fp16" not in out.partition("→")[0]
    assert "→ take bf16_pure: 1.75x the speed" in out


def test_a_keyword_that_matches_nothing_is_exit_5(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results, "-k", "nonsense")
    assert said.code == 5
    assert "no case that matches -k 'nonsense'" in said.err


def test_the_budget_can_be_changed(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "--max-gradient-error", "0.2", "-k", "mlp").out
    assert "bf16_pure is 2.58x as fast, but what its weights in half lose" in out.replace("\n  ", " ")


def test_one_case_is_shown_with_all_that_is_known_of_it(results: Path, ampbench: Run) -> None:
    case_id = "mlp[depth=3,width=512]/b32/fp16_autocast/cpu/training/eager/in-fp32"
    out = ampbench("show", "latest", "--results", results, "--case", case_id).out
    for expected in (
        case_id,
        "round 2          21.3 ms      builds 21.3 ms, 21.3 ms, 21.3 ms; 3+3+3 samples of 4 steps, warm-up 12 steps",
        "parameters 7.00 MiB, buffers 4.00 KiB, inputs 64.0 KiB, gradients 3.50 MiB, optimizer 0 B",
        "RSS              512 MiB      of the process, with Python and torch: not comparable",
        "that of layers.2.weight errs most, by 1.2e-03",
        "1204 of 1000000 gradient elements became zero",
        "65536; steps skipped once settled: 0",
        "32 of 32 are those of the reference",
    ):
        assert expected in out
    assert out.count("/cpu/") == 1


def test_details_fold_under_themselves_on_a_narrow_terminal(results: Path) -> None:
    stored = read_run(find_run("latest", results))
    rows = run_rows(stored, Budget())
    whole, folded = ([line.plain for line in detail_lines(stored, rows, width)] for width in (None, 80))
    assert max(map(cell_len, whole)) > 100
    assert max(map(cell_len, folded)) <= 80
    assert " ".join(" ".join(folded).split()) == " ".join(" ".join(whole).split())
    under = [line for line in folded if line.startswith(" " * (LABEL_WIDTH + 2))]
    assert under
    assert all(line[LABEL_WIDTH + 2] != " " for line in under)


def test_details_show_the_control_and_failures(results: Path, ampbench: Run) -> None:
    out = ampbench("show", "latest", "--results", results, "--all").out
    assert "control 0" in out
    assert "in the round, time-out: step 1 took longer than 300 s" in out


def test_details_tell_of_the_work_and_of_the_ceilings_it_is_held_against(tmp_path: Path, ampbench: Run) -> None:
    case = stored_runs.make_case("bf16_autocast")
    memory = stored_runs.make_memory(case, 4096, flops={"bf16": 3 * 10**9, "fp32": 10**9})
    ceilings = [stored_runs.make_ceiling("bf16", 150e9, run="studied"), stored_runs.make_ceiling("fp32", 50e9)]
    stored_runs.write_run(tmp_path / "with", [case], memory, stored_runs.make_round(case, 0.1), *ceilings)
    out = ampbench("show", "latest", "--results", tmp_path / "with", "--all").out
    assert "FLOPs/step       4.00 G       FLOPs of one step" in out
    assert "FLOP/s           40.0 GFLOP/s flops_per_step divided" in out
    assert "of ceiling       40.0%        The least time of the step by its FLOPs and bytes" in out
    assert "products       3.00 G FLOPs in bf16, at 150 GFLOP/s 20.0 ms" in out
    assert "products       1.00 G FLOPs in fp32, at 50.0 GFLOP/s 20.0 ms" in out
    assert "bound by       products: 40.0 ms at least" in out
    assert "ceilings       of studied" in out
    stored_runs.write_run(tmp_path / "without", [case], memory, stored_runs.make_round(case, 0.1), ceilings[0])
    out = ampbench("show", "latest", "--results", tmp_path / "without", "--all").out
    assert "1.00 G FLOPs in fp32, no ceiling" in out
    assert "ampbench study ceilings" in out


def test_details_tell_what_a_parameter_takes_and_what_an_allocator_took(tmp_path: Path, ampbench: Run) -> None:
    case = stored_runs.make_case("bf16_master", phase="training")
    environment = replace(stored_runs.make_header().environment, variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    memory = stored_runs.make_memory(
        case, 2**20, "allocator", reserved_bytes=2**22, workspace_bytes=2**25, parameter_count=1000, master_bytes=4000,
        parameter_bytes=6000, gradient_bytes=4000, optimizer_bytes=8000,
    )  # fmt: skip
    round = stored_runs.make_round(case, 0.1)
    stored_runs.write_run(tmp_path, [case], memory, round, environment=environment)
    out = " ".join(ampbench("show", "latest", "--results", tmp_path, "--all").out.split())
    assert "B/param 18.0 after a step: weights 2.0, gradients 4.0, master weights 4.0, opti" in out
    assert "reserved 4.00 MiB taken from the device at most" in out
    assert "workspaces 32.0 MiB which libraries take once and keep (cuBLAS, CUBLAS_WORKSPACE_CONFIG=:4096:8" in out
    row = json.loads(ampbench("show", "latest", "--results", tmp_path, "--json").out)[0]
    assert (row["bytes_per_parameter"], row["reserved_memory_bytes"]) == (18.0, 2**22)


def test_details_tell_what_each_operation_and_the_memory_take_at_least_and_which_binds(
    tmp_path: Path, ampbench: Run
) -> None:
    case = stored_runs.make_case("fp32")
    apart = {"matmul": {"fp32": 10**9}, "attention": {"fp32": 5 * 10**8}}
    memory = stored_runs.make_memory(
        case, 4096, flops={"fp32": 15 * 10**8}, flops_by_operation=apart, least_bytes=3 << 30
    )
    rates = {"matmul": 1e11, "attention": 1e10, "copy": 1e9, "read": 3 << 30}
    ceilings = [stored_runs.make_ceiling("fp32", rate, operation) for operation, rate in rates.items()]
    stored_runs.write_run(tmp_path, [case], memory, stored_runs.make_round(case, 2.0), *ceilings)
    out = ampbench("show", "latest", "--results", tmp_path, "--all").out
    assert "products       1.00 G FLOPs in fp32, at 100 GFLOP/s 10.0 ms" in out
    assert "attention      500 M FLOPs in fp32, at 10.0 GFLOP/s 50.0 ms" in out
    assert "memory         3.00 GiB, at 3.22 GB/s 1.00 s" in out
    assert "bound by       memory: 1.00 s at least" in out
    assert "of ceiling       50.0%" in out
    table = ampbench("show", "latest", "--results", tmp_path).out
    assert "50.0%  memory" in " ".join(table.split("\n")) or "50.0% memory" in " ".join(table.split())


def test_details_are_for_reading(results: Path, ampbench: Run) -> None:
    said = ampbench("show", "latest", "--results", results, "--all", "--json")
    assert said.code == 2
    assert "--format json gives every column" in said.err


def test_an_unknown_case_names_the_nearest(results: Path, ampbench: Run) -> None:
    wrong = "mlp[depth=3,width=512]/b32/fp16_autocas/cpu/training/eager/in-fp32"
    said = ampbench("show", "latest", "--results", results, "--case", wrong)
    assert said.code == 2
    assert "did you mean mlp[depth=3,width=512]/b32/fp16_autocast/cpu" in said.err


@pytest.mark.parametrize(("run", "message"), [("nonsense", "unknown run 'nonsense'"), ("no/such.jsonl", "no run file")])
def test_an_unknown_run_is_a_usage_error(run: str, message: str, results: Path, ampbench: Run) -> None:
    said = ampbench("show", run, "--results", results)
    assert said.code == 2
    assert message in said.err


def test_a_cut_run_is_shown_with_a_remark(results: Path, ampbench: Run) -> None:
    (path,) = (results / "runs").iterdir()
    with path.open("a") as file:
        file.write('{"round": {"case_id": "ml')
    said = ampbench("show", "latest", "--results", results, "--json")
    assert said.code == 0
    assert "ends in a cut line" in said.err


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


def test_a_damaged_run_is_refused_by_file_and_line(results: Path, ampbench: Run) -> None:
    (path,) = (results / "runs").iterdir()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "nonsense\n", *lines[1:]]))
    said = ampbench("show", "latest", "--results", results)
    assert said.code == 2
    assert f"{path}, line 2" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["show", "new"],
        ["show", "new", "--all"],
        ["list", "runs"],
        ["compare", "old", "new"],
        ["gate", "old", "new"],
        ["trend", "results/runs", "--x", "commit"],
        ["show", "a\x1b[2Jb"],
    ],
    ids=" ".join,
)
def test_what_networks_and_other_peoples_runs_say_commands_no_terminal(
    words: list[str], tmp_path: Path, ampbench: Run
) -> None:
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
    found = ampbench(*words)
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


def test_lines_that_a_complete_run_lost_are_told(results: Path, ampbench: Run) -> None:
    path = next((results / "runs").iterdir())
    lines = path.read_bytes().splitlines(keepends=True)
    lost = next(line for line in lines if line.startswith(b'{"memory":'))
    path.write_bytes(b"".join(line for line in lines if line != lost))
    said = " ".join(ampbench("show", "--results", results).out.split())
    assert "this run says that it is complete, but lines are missing: the memory pass of resnet18" in said


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a run of 25 networks, some of them in training, too."""
    results = tmp_path_factory.mktemp("zoo")
    write_zoo_run(results, networks=25)
    return results


def test_many_networks_are_a_row_each_with_the_way_to_their_tables(zoo: Path, ampbench: Run) -> None:
    out = ampbench("show", "zoo", "--results", zoo).out
    assert "time/step" not in out
    words = f"ampbench show zoo --results {zoo}"
    assert f"the tables of all 34 networks: {words} --all; of some: {words} -k PATTERN" in " ".join(out.split())
    before, last = out.split("\nnetworks\n")
    assert "without a result" in before
    assert [line for line in last.splitlines() if line.startswith("  training: take ")]
    assert sum(line.startswith("    timm:") for line in last.splitlines()) == 34 - 3  # three are without a result
    assert max(map(cell_len, last.splitlines())) <= 100


def test_all_of_many_networks_are_their_tables(zoo: Path, ampbench: Run) -> None:
    out = ampbench("show", "zoo", "--results", zoo, "--all").out
    titles = [line for line in out.splitlines() if line.startswith("timm:") and " · cpu · " in line]
    assert len(titles) == 34 - 2  # those of a network that was skipped whole are said once below
    assert "themselves" not in out


def test_a_keyword_that_leaves_few_tables_has_them_shown(zoo: Path, ampbench: Run) -> None:
    out = ampbench("show", "zoo", "--results", zoo, "-k", "vit").out
    assert "\nprecision " in out
    assert "ranked" not in out


def test_machines_have_every_row_of_many_networks(zoo: Path, ampbench: Run) -> None:
    rows = json.loads(ampbench("show", "zoo", "--results", zoo, "--json").out)
    assert len(rows) == 34 * 5
    assert all(list(row) == [*COLUMNS, *VERDICT_COLUMNS] for row in rows)


def test_many_networks_are_markdown_where_that_is_asked_for(zoo: Path, ampbench: Run) -> None:
    out = ampbench("show", "zoo", "--results", zoo, "--format", "markdown").out
    assert out.startswith("## networks\n\n### inference: take ")
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert lines[0] == "| network | take | speed | memory | error | because |"
