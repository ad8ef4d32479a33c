"""`ampbench compare` and `ampbench gate` on stored runs: what is told, policies, exit codes and the last lines."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import ampbench as library
from ampbench.records.changes import ChangeStatus, ControlCode
from ampbench.records.measured import Failure, Fitness
from ampbench.records.run import Entry
from ampbench.store import read_run
from tests.compared_runs import BF16, FP32, noisy, rounds_of
from tests.stored_runs import COMPLETE, make_divergence, make_header, make_memory, write_run


def test_two_stored_runs_are_compared_and_the_exit_code_says_nothing_of_what_was_found(ampbench, folder):
    found = ampbench("compare", "1-before", "2-after", "--results", folder)
    assert (found.code, found.err) == (0, "")
    assert "regressed" in found.out
    last = " ".join(found.out.split("\n\n")[-1].split())
    assert last == "3 regressed (time 1, memory 2), 5 unchanged"


def rows(found):
    assert (found.code, found.err) == (0, "")
    return json.loads(found.out)["findings"]


def test_a_keyword_and_kinds_narrow_what_is_shown(ampbench, folder):
    narrowed = rows(ampbench("compare", "1-before", "2-after", "--results", folder, "-k", "not bf16", "--json",
                             "--metric", "time,memory"))  # fmt: skip
    assert {row["case_id"] for row in narrowed} == {FP32.case_id}
    assert {row["kind"] for row in narrowed} == {"time", "memory"}


def test_runs_by_name_path_and_as_results_give_the_same_changes_as_the_command_line(ampbench, folder):
    named = library.compare("1-before", "2-after", folder)
    before, after, _ = files = sorted((folder / "runs").iterdir())
    results = [library.open(path) for path in files[:2]]
    for found in (named, library.compare(*results), library.compare(read_run(before), after)):
        assert found.to_dict()["findings"] == named.to_dict()["findings"]
    printed = ampbench("compare", "1-before", "2-after", "--results", folder, "--json").out
    assert json.loads(printed) == json.loads(json.dumps(named.to_dict(), default=str))
    assert [change.status for change in named.changes[:3]] == [ChangeStatus.REGRESSED] * 3
    assert named.base.header.run == named.to_dict()["baseline"]["run"] == "1-before"
    assert [each.code for each in named.statements] == [ControlCode.NEITHER]
    assert list(named.frame["status"]) == [change.status for change in named.changes]
    assert "\n3 regressed (time 1, memory 2)" in str(named)
    assert "3 regressed" in named._repr_html_()
    assert {change.kind for change in library.compare(*results, only=["time"], keyword="bf16").changes} == {"time"}


CHECKS = [
    str(Path(__file__).parents[2] / "results" / "checks" / f"torch-{version}.jsonl.gz")
    for version in ("2.11.0", "2.12.1")
]


def test_two_runs_of_checks_say_which_defects_came_and_went(ampbench):
    compared = ampbench("compare", *CHECKS, "--json")
    defects = json.loads(compared.out)["defects"]
    assert compared.code == 0
    assert defects
    assert all(defect["came"] == (defect["after"] == "defective") for defect in defects)
    assert ampbench("compare", *CHECKS, "--metric", "time").code == 0


Run = Callable[..., Any]
FUTURE = "9999-12-31"


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., str]:
    """Write a run of two cases, their times `factor` milliseconds but for 0.3% of luck; returns its id."""

    def write(
        name: str, factor: float = 1.0, fails: bool = False, busy: float = 0.0, norm: float = 1.5, **header: Any
    ) -> str:
        entries: list[Entry] = []
        for case in (FP32, BF16):
            if case is BF16 and fails:
                entries.append(Failure(case_id=case.case_id, stage="round", cause="time-out", message="over 300 s"))
                continue
            for seed, control in enumerate((False, True) if case is FP32 else (False,)):
                seconds = noisy(1e-3 * factor, 12, 0.003, seed + len(name))
                entries += rounds_of(case, seconds, control=control, fitness=Fitness(other_share=busy))
            error = {"output_rel_l2": 1e-3, "output_floor_rel_l2": 1e-3, "output_reference_norm": norm}
            entries += [make_memory(case, 1000), make_divergence(case, **error)]
        run = f"20260101T000000Z-bench-{name}"
        write_run(tmp_path / "results", [FP32, BF16], *entries, COMPLETE, run=run, **header)
        return run

    return write


def last_lines(out: str) -> list[str]:
    """Return the points of the gate and its verdict at the end of the output, wrapped lines in one."""
    *_, points, verdict = ["", *out.rstrip().split("\n\n")]
    whole = re.sub(r"\n +(?!why: |note: |ignored | )", " ", points)
    found = [line.strip() for line in whole.splitlines() if line.startswith(("  why: ", "  note: ", "  ignored "))]
    return [*found, verdict.replace("\n  ", " ")]


def test_the_same_code_passes_and_the_share_decided_is_said_last(measured: Run, ampbench: Run) -> None:
    said = ampbench("gate", measured("base"), measured("new"))
    assert (said.code, said.err) == (0, "")
    assert last_lines(said.out) == ["PASSED: 8 unchanged, decided: time 2 of 2, memory 2 of 2, accuracy 4 of 4"]


def test_the_same_code_on_a_busy_machine_is_undecided_in_time_and_another_function_fails(
    measured: Run, ampbench: Run
) -> None:
    base, new = measured("base", busy=0.92), measured("new", busy=0.92)
    said = ampbench("gate", base, new, "--metric", "time")
    assert (said.code, last_lines(said.out)[-1]) == (
        4, "UNDECIDED with exit code 4: 2 inconclusive, decided: time 0 of 2"
    )  # fmt: skip
    assert ampbench("gate", base, new).code == 4
    assert ampbench("gate", base, new, "--metric", "memory,accuracy").code == 0
    assert ampbench("gate", base, measured("relu", busy=0.92, norm=3.0)).code == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [([], 0), (["--policy", "2%.toml"], 1), (["--metric", "memory, accuracy", "--policy", "2%.toml"], 0)],
)
def test_what_is_typed_wins_over_the_file(given: list[str], code: int, measured: Run, ampbench: Run) -> None:
    base, new = measured("base"), measured("new", 1.1)
    for name, limit in {"ampbench-gate": "20%", "2%": "2%"}.items():
        Path(f"{name}.toml").write_text(f'[thresholds]\ntime = "{limit}"\n')
    assert ampbench("gate", base, new, *given).code == code


def test_what_was_ignored_is_printed_with_reason_and_date(measured: Run, ampbench: Run, tmp_path: Path) -> None:
    policy = f"[[ignore]]\ncases = 'bf16'\nmetrics = ['time']\nuntil = {FUTURE}\nreason = 'ticket 12'\n"
    (tmp_path / "ampbench-gate.toml").write_text(policy)
    base, new = measured("base"), measured("new", 1.1)
    said = ampbench("gate", base, new)
    assert said.code == 1
    assert last_lines(said.out)[0].startswith(f"ignored until {FUTURE} (ticket 12): {BF16.case_id} seconds_median: ")
    assert ampbench("gate", base, new, "-k", "bf16").code == 0


def test_2_comes_before_5_4_and_3(measured: Run, ampbench: Run, tmp_path: Path) -> None:
    elsewhere = structs.replace(make_header().environment, host="other", cpu="another CPU")
    base, new = measured("base", fails=True), measured("new", fails=True)
    incomparable = measured("elsewhere", fails=True, environment=elsewhere)
    assert ampbench("gate", base, new, "--metric", "time").code == 3
    assert ampbench("gate", incomparable, new, "--metric", "time").code == 4
    assert ampbench("gate", incomparable, new, "--metric", "time", "-k", "nothing").code == 5
    (tmp_path / "ampbench-gate.toml").write_text("stict = true")
    assert ampbench("gate", incomparable, new, "--metric", "time", "-k", "nothing").code == 2


def test_a_latest_run_that_is_in_doubt_is_not_judged(measured: Run, ampbench: Run, tmp_path: Path) -> None:
    base, new = measured("base"), measured("new")
    damaged = tmp_path / "results" / "runs" / "20990101T000000Z-a-bbb111.jsonl"
    damaged.write_bytes(b'{"header":' * 5000)
    said = ampbench("gate", base, "latest")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"ampbench: error: latest leaves out what cannot be read: results/runs/{damaged.name}, ")
    assert said.err.endswith("; name the run that is meant\n")
    assert ampbench("gate", base, new).code == 0
    compared = ampbench("compare", base, "latest")
    assert compared.code == 0
    assert compared.err.startswith("latest leaves out what cannot be read: ")


def test_json_holds_the_comparison_and_the_gate(measured: Run, ampbench: Run) -> None:
    said = ampbench("gate", measured("base"), measured("new", 1.1), "--json")
    assert said.code == 1
    gate = json.loads(said.out)["gate"]
    assert (gate["status"], gate["exit_code"], gate["decided"]["time"]) == ("failed", 1, {"decided": 2, "findings": 2})
    assert [(one["code"], one["kind"], one["count"]) for one in gate["why"]] == [("regressed", "time", 2)]
    assert said.err.splitlines()[-1].startswith("FAILED with exit code 1: ")


PROBES = Path(__file__).parents[2] / "results" / "rules"
OLD, NEW = PROBES / "torch-2.11.0.jsonl.gz", PROBES / "torch-2.15.0.jsonl.gz"


def test_an_upgrade_that_changes_a_rule_fails_and_names_it(ampbench: Run) -> None:
    said = ampbench("gate", OLD, NEW)
    assert said.code == 1
    why, verdict = last_lines(said.out)
    assert why == (
        "why: 3 changes of autocast's rules: rms_norm on cuda, xpu: unlisted → float32; "
        "cholesky on cpu: op removed (was float32); qr on cpu: op removed (was float32)"
    )
    assert verdict == "FAILED with exit code 1: 3 changes of rules, rules of autocast compared on cpu, cuda, xpu"


def test_a_keyword_selects_cases_and_no_rules(ampbench: Run) -> None:
    assert ampbench("gate", OLD, NEW, "-k", "rms_norm").code == 5
