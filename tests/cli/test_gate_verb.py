"""`ampbench gate`: policy files, flags, exit codes and the verdict as the last lines, on stored runs."""

import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ampbench.records.measured import Failure, Fitness, Skip
from ampbench.records.run import Entry
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

Run = Callable[..., Any]
FP32, BF16 = make_case(), make_case("bf16_autocast")
IDS = {"base": "20260101T000000Z-bench-aaaaaa", "new": "20260102T000000Z-bench-bbbbbb"}
IDS |= {"old": "20250101T000000Z-bench-cccccc", "new2": "20260103T000000Z-bench-dddddd"}
FUTURE, PAST = "9999-12-31", "2020-01-01"


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., str]:
    """Write a run of two cases, their times `factor` milliseconds but for 0.3% of luck; returns its id."""

    def write(name: str, factor: float = 1.0, **changes: Any) -> str:
        luck = random.Random(name)
        fields = {"rounds": 12, "peak": 1000, "error": 1e-3, "fails": (), "skips": (), "cases": (FP32, BF16)} | changes
        entries: list[Entry] = []
        for case in fields["cases"]:
            if case in fields["fails"]:
                message = "step 1 took longer than 300 s"
                entries.append(Failure(case_id=case.case_id, stage="round", cause="time-out", message=message))
                continue
            if case in fields["skips"]:
                entries.append(Skip(case_id=case.case_id, reason="not supported here"))
                continue
            for number, control in itertools.product(range(fields["rounds"]), (False, True)):
                seconds = 1e-3 * factor * (1 + 0.003 * luck.gauss(0, 1))
                if case is FP32 or not control:
                    fitness = fields.get("fitness", Fitness())
                    entries.append(
                        make_round(case, fields.get("seconds", seconds), number, control=control, fitness=fitness)
                    )
            entries.append(make_memory(case, fields["peak"]))
            error = {"output_rel_l2": fields["error"], "output_floor_rel_l2": 1e-3}
            entries.append(make_divergence(case, **error, **fields.get("gave", {})))
        header = {"environment": fields["environment"]} if "environment" in fields else {}
        write_run(tmp_path / "results", list(fields["cases"]), *entries, COMPLETE, run=IDS[name], **header)
        return IDS[name]

    return write


@pytest.fixture
def elsewhere() -> Any:
    """Return an environment in which neither times nor anything else can be compared with the others'."""

    return structs.replace(make_header().environment, host="other", cpu="another CPU")


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


def test_a_slowdown_fails_and_the_last_lines_say_why(measured: Run, ampbench: Run) -> None:
    said = ampbench("gate", measured("base"), measured("new", 1.1))
    assert said.code == 1
    why, verdict = last_lines(said.out)
    assert why.startswith("why: 2 time regressions: linear_chain ")
    assert "(threshold 2%)" in why
    assert (
        verdict
        == "FAILED with exit code 1: 2 regressed, 6 unchanged, decided: time 2 of 2, memory 2 of 2, accuracy 4 of 4"
    )


def test_the_same_code_on_a_busy_machine_is_undecided_in_time_and_another_function_fails(
    measured: Run, ampbench: Run
) -> None:
    busy = {"fitness": Fitness(other_share=0.92)}
    base, new = measured("base", **busy), measured("new", **busy)
    said = ampbench("gate", base, new, "--metric", "time")
    assert (said.code, last_lines(said.out)[-1]) == (
        4, "UNDECIDED with exit code 4: 2 inconclusive, decided: time 0 of 2"
    )  # fmt: skip
    assert ampbench("gate", base, new).code == 4
    assert ampbench("gate", base, new, "--metric", "memory,accuracy").code == 0
    relu = measured("new2", **busy, gave={"output_reference_norm": 3.0})
    assert ampbench("gate", base, relu).code == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([], 0),
        (["--policy", "2%.toml"], 1),
        (["--metric", "memory, accuracy", "--policy", "2%.toml"], 0),
    ],
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--policy", "absent.toml"], "there is no policy file absent.toml"),
        (["--metric", "tme"], "unknown kind 'tme': did you mean time?"),
    ],
)
def test_what_cannot_be_meant_is_one_line(flags: list[str], message: str, measured: Run, ampbench: Run) -> None:
    said = ampbench("gate", measured("base"), measured("new"), *flags)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err


@pytest.mark.parametrize("combined", list(itertools.product([False, True], repeat=4)))
def test_2_comes_before_5_4_and_3(
    combined: tuple[bool, ...], measured: Run, elsewhere: Any, ampbench: Run, tmp_path: Path
) -> None:
    usage, unselected, incomparable, failed = combined
    fails = (BF16,) if failed else ()
    base = measured("base", fails=fails, **({"environment": elsewhere} if incomparable else {}))
    new = measured("new", fails=fails)
    flags = ["--metric", "time"]
    if usage:
        (tmp_path / "ampbench-gate.toml").write_text("stict = true")
    if unselected:
        flags += ["-k", "nothing"]
    expected = next((code for code, holds in zip((2, 5, 4, 3), combined, strict=True) if holds), 0)
    assert ampbench("gate", base, new, *flags).code == expected


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


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_missing_rounds_never_pass_as_unchanged(rounds: int, measured: Run, ampbench: Run) -> None:
    said = ampbench("gate", measured("base"), measured("new", rounds=rounds), "--metric", "time")
    assert said.code in (1, 4)
    assert "unchanged" not in last_lines(said.out)[-1]


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


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--metric", "rules"], 1),
        (["--metric", "time,memory,accuracy"], 4),
        (["-k", "rms_norm"], 5),
    ],
)
def test_flags_say_whether_rules_are_gated(flags: list[str], code: int, ampbench: Run) -> None:
    assert ampbench("gate", OLD, NEW, *flags).code == code
