import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ampbench.records.measured import Failure, Reading
from ampbench.trend.show import curve, relative
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

pytest.importorskip("asv.step_detect")

VERSIONS = ("2.9.1", "2.11.0", "2.12.0", "2.13.0")
CASES = [make_case(precision, workload=name) for name in ("mlp", "resnet18") for precision in ("fp32", "bf16_autocast")]
SLOWED, GROWN, WORSE, LOST = CASES


def entries(version: str) -> list[Any]:
    """Return a run's entries: one case each becomes slower, bigger and less accurate, and one fails in the end."""
    number = VERSIONS.index(version)
    generator = np.random.default_rng(number)
    found: list[Any] = []
    for case in CASES:
        seconds = 1e-3 * (1.2 if case is SLOWED and number >= 2 else 1)
        found += [make_round(case, seconds * math.exp(generator.normal(0, 0.003)), n) for n in range(4)]
        if case is GROWN:
            found += [make_round(case, seconds, n, control=True) for n in range(4)]
        found.append(make_memory(case, 2_000_000 if case is GROWN and number >= 3 else 1_000_000))
        error = 2e-3 if case is WORSE and number == 1 else 4e-3
        found.append(make_divergence(case, output_rel_l2=error, output_floor_rel_l2=1e-3))
    if number == 3:
        found.append(Failure(case_id=LOST.case_id, stage="round", cause="crash", message="signal 11"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, version in enumerate(VERSIONS):
        environment = replace(make_header().environment, torch_version=version)
        write_run(tmp_path / "results", CASES, *entries(version), COMPLETE, run=f"r{number}", environment=environment,
                  commit="c" * 40, started_at=f"2026-01-{number + 1:02}T12:00:00Z")  # fmt: skip
    return tmp_path / "results"


def test_a_damaged_file_is_left_out_and_named_unless_it_is_all_there_is(ampbench: Callable, folder: Path) -> None:
    damaged = folder / "runs" / "zzz.jsonl"
    damaged.write_bytes(b'{"header":' * 5000 + b"\n")
    found = ampbench("trend", "--results", folder)
    assert found.code == 0
    assert f"left out: {damaged}, line 1: " in " ".join((found.out + found.err).split())
    for path in (folder / "runs").glob("r*"):
        path.unlink()
    found = ampbench("trend", "--results", folder)
    assert (found.code, found.out) == (2, "")
    assert f"{damaged}, line 1: " in found.err


def test_changes_come_first_with_what_else_changed_and_the_rest_is_counted(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder)
    assert (found.code, found.err) == (0, "")
    head, *parts = found.out.split("\n\n")
    causes, foot = parts[:3], " ".join(" ".join(parts[3:]).split())
    assert "over torch version: 2.9.1 → 2.13.0" in head
    assert "4 changes in 3 series: 3 regressed (time 1, memory 1, floor 1), 1 improved (floor 1)" in head
    assert [cause.splitlines()[0].strip() for cause in causes] == [
        f"at {after}: torch {before} → {after}" for before, after in pairwise(VERSIONS)
    ]
    slowed = next(line for line in causes[1].splitlines() if "mlp fp32 " in line)
    assert " +20% (" in slowed
    grown = next(line for line in causes[2].splitlines() if "memory" in line)
    assert grown.split()[-6:-2] == ["977", "KiB", "1.91", "MiB"]
    assert "not measured in turns" in foot
    assert "signal 11" in foot
    assert "without a change: time 3, memory 3, floor 3 (--all lists them)" in foot


def test_all_lists_every_series_and_says_where_one_has_gaps(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--all", "--metric", "memory")
    rows = next(part for part in found.out.split("\n\n") if part.startswith("ampbench · ")).splitlines()
    assert len(rows) == 2 + 4
    assert next(line for line in rows if "resnet18 bf16_autocast" in line).split()[-2:] == ["failed", "0%"]


def test_many_points_become_a_curve_that_fits_the_terminal(
    ampbench: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        factor = 1.2 if number >= 40 else 1.0
        rounds = [make_round(SLOWED, 1e-3 * factor, n) for n in range(3)]
        write_run(tmp_path, [SLOWED], *rounds, COMPLETE, run=f"r{number:03}", commit=f"{number:040x}",
                  started_at=f"2026-01-01T12:{number:02}:00Z")  # fmt: skip
    for width in (80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        found = ampbench("trend", "--x", "commit", "--results", tmp_path)
        assert max(len(line) for line in found.out.splitlines() if line.startswith("    ")) <= max(width, 100)
        assert "▁▁▁▁" in found.out
        assert found.out.count("███") > 0


def document(found: Any) -> Any:
    assert (found.code, found.err) == (0, "")
    return json.loads(found.out)


def test_json_has_every_point_with_its_runs_and_every_change(ampbench: Callable, folder: Path) -> None:
    data = document(ampbench("trend", "--results", folder, "--json", "--metric", "time", "-k", "mlp and /fp32/"))
    assert [x["value"] for x in data["x"]] == list(VERSIONS)
    (series,) = data["series"]
    assert series["case_id"] == SLOWED.case_id
    assert [point["run_ids"] for point in series["points"]] == [["r0"], ["r1"], ["r2"], ["r3"]]
    assert all(point["low"] < point["value"] < point["high"] for point in series["points"])
    (change,) = series["changes"]
    assert (change["x"], change["last"], change["direction"]) == ("2.12.0", "2.11.0", "regressed")
    assert series["rule"] == "neighbours"
    assert data["places"][series["place"]]["runs"] == 4


def test_a_gap_is_null_in_json_with_its_reason(ampbench: Callable, folder: Path) -> None:
    data = document(ampbench("trend", "--results", folder, "--json", "--metric", "time", "-k", "resnet18 and bf16"))
    last = data["series"][0]["points"][-1]
    assert (last["value"], last["missing"]) == (None, "failed: crash: signal 11")


def test_csv_has_a_row_a_point(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(found.out)))
    assert len(rows) == 4 * 3 * len(VERSIONS)
    assert {(row["version"], row["cpu"], row["settings"]) for row in rows} == {("0", "AMD EPYC", "")}
    assert {row["numbers"] for row in rows} == {"", "profiler", "aa/bb"}
    changed = [(row["case_id"], row["metric"], row["x"]) for row in rows if row["change"] == "regressed"]
    assert (SLOWED.case_id, "time", "2.12.0") in changed
    assert next(row for row in rows if row["missing"])["value"] == ""


def test_markdown_has_the_changes_and_the_table(ampbench: Callable, folder: Path) -> None:
    found = ampbench("trend", "--results", folder, "--format", "markdown")
    assert "\n4 changes in 3 series" in found.out
    assert "### at 2.12.0: torch 2.11.0 → 2.12.0\n" in found.out
    assert "| mlp fp32 | time | 1.00 ms | 1.20 ms | " in found.out
    assert "\nnot measured in turns: " in found.out
    assert "\nresnet18 bf16_autocast at 2.13.0 failed: crash: signal 11" in found.out


def test_markdown_names_the_place_of_a_change_where_there_are_several(ampbench: Callable, folder: Path) -> None:
    for number, peak in enumerate((1000, 2000)):
        environment = replace(make_header().environment, host="other", torch_version=VERSIONS[number])
        write_run(folder, [GROWN], make_round(GROWN), make_memory(GROWN, peak), COMPLETE, run=f"s{number}",
                  environment=environment)  # fmt: skip
    found = ampbench("trend", "--results", folder, "--format", "markdown", "--metric", "memory")
    causes = [line for line in found.out.splitlines() if line.startswith("### at ")]
    assert [cause.split(" · ")[1] for cause in causes] == ["bench", "other"]


def test_notes_on_series_are_in_markdown_too(ampbench: Callable, tmp_path: Path) -> None:
    for number, version in enumerate(VERSIONS[:2]):
        environment = replace(make_header().environment, torch_version=version)
        reading = Reading(case_id=SLOWED.case_id, metric="seconds_median", value=1e-3)
        write_run(tmp_path, [SLOWED], reading, COMPLETE, run=f"r{number}", environment=environment)
    found = ampbench("trend", "--results", tmp_path, "--format", "markdown")
    assert "\nno series could be judged\n" in found.out
    assert "\n1 series not judged: neither rounds" in found.out
    alone = ampbench("trend", "r0", "--results", tmp_path)
    assert "too few points to look for changes" in alone.out


def write_errors(folder: Path, found: dict[str, Any]) -> None:
    """Write a run for each version of torch, with that divergence."""
    for number, (version, divergence) in enumerate(found.items()):
        environment = replace(make_header().environment, torch_version=version)
        write_run(folder, [SLOWED], make_round(SLOWED), divergence, COMPLETE, run=f"r{number}", environment=environment)


def test_an_error_that_is_no_number_any_more_is_a_change_in_every_format(ampbench: Callable, tmp_path: Path) -> None:
    whole = make_divergence(SLOWED, output_rel_l2=2e-3, output_floor_rel_l2=1e-3)
    write_errors(tmp_path, {"2.14.0": whole, "2.15.0": make_divergence(SLOWED, output_nonfinite=12)})
    arguments = ("trend", "--results", tmp_path, "--metric", "floor")
    found = ampbench(*arguments)
    assert "mlp fp32  floor   2.00x   undefined  not finite  regressed" in found.out
    said = "floor of mlp fp32 at 2.15.0 undefined: 12 output elements are not finite"
    assert said in " ".join(found.out.split())
    (series,) = document(ampbench(*arguments, "--json"))["series"]
    assert series["points"][1]["missing"] == "undefined: 12 output elements are not finite"
    (change,) = series["changes"]
    assert (change["after"], change["ratio"], change["direction"]) == (None, None, "regressed")
    assert "| 2.00x | undefined | not finite | regressed |" in ampbench(*arguments, "--format", "markdown").out


def test_nothing_before_and_nothing_after_is_no_change(ampbench: Callable, tmp_path: Path) -> None:
    write_errors(tmp_path, {version: make_divergence(SLOWED) for version in VERSIONS[:2]})
    found = ampbench("trend", "--results", tmp_path, "--metric", "nonfinite", "--all")
    assert next(line for line in found.out.splitlines() if line.startswith("    mlp")).split()[-3:] == ["0", "0", "0%"]


def test_series_that_differ_in_their_inputs_alone_are_told_apart(ampbench: Callable, tmp_path: Path) -> None:
    changes = {"output_rel_l2": 2e-3, "output_floor_rel_l2": 1e-3}
    digests = dict(zip(VERSIONS, ("cc" * 32, "dd" * 32), strict=False))
    write_errors(tmp_path, {v: make_divergence(SLOWED, inputs_digest=one, **changes) for v, one in digests.items()})
    arguments = ("trend", "--results", tmp_path, "--metric", "floor", "--all")
    found = document(ampbench(*arguments, "--json"))
    assert [one["numbers"] for one in found["series"]] == [f"aa/{one}" for one in digests.values()]
    assert "mlp fp32 aa/ccccccccc  floor" in ampbench(*arguments).out


def test_a_case_that_failed_everywhere_is_told_of_in_every_format(ampbench: Callable, folder: Path) -> None:
    never = make_case("fp16_pure", workload="vit")
    failure = Failure(case_id=never.case_id, stage="round", cause="crash", message="signal 9")
    environment = replace(make_header().environment, torch_version="2.14.0")
    write_run(folder, [never], failure, COMPLETE, run="r9", environment=environment, commit="c" * 40)
    said = "vit fp16_pure at 2.14.0 failed: crash: signal 9"
    assert said in " ".join(ampbench("trend", "--results", folder).out.split())
    assert f"\n{said}" in ampbench("trend", "--results", folder, "--format", "markdown").out
    (lost,) = document(ampbench("trend", "--results", folder, "--json"))["lost"]
    assert (lost["case_id"], lost["x"], lost["reason"]) == (never.case_id, "2.14.0", "failed: crash: signal 9")
    alone = ampbench("trend", "r9", "--results", folder)
    assert (alone.code, "at 2.14.0 failed: crash: signal 9" in alone.err) == (5, True)


def test_runs_without_the_x_are_counted(ampbench: Callable, folder: Path) -> None:
    write_run(folder, CASES, *entries("2.9.1"), COMPLETE, run="r9")
    found = ampbench("trend", "--x", "commit", "--results", folder)
    assert found.code == 0
    assert "left out 1 run with no commit" in found.out


def test_runs_that_only_explain_are_said_to_have_measured_nothing(ampbench: Callable, tmp_path: Path) -> None:
    path = write_run(tmp_path / "results", [], COMPLETE, run="20260101T000000Z-bench-aaaaaa", explains="rules")
    for sources in ([], [path], [path.parent]):
        said = ampbench("trend", *sources)
        assert (said.code, said.out, said.err.count("\n")) == (5, "", 1)
        assert f"run {path.stem} explains rules and measured nothing: ampbench show {path.stem}" in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--x", "torch"), 2, "unknown --x axis 'torch': did you mean torch_version?"),
        (("--metric", "speed"), 2, "unknown metric 'speed'"),
        (("--metric", "gradients"), 5, "no case has a number of these metrics"),
        (("-k", "vit"), 5, "no case of 4 runs matches -k 'vit'"),
        (("-k", "and"), 2, "is not an expression"),
        (("r7",), 2, "unknown run 'r7'"),
        (("--results", "nowhere"), 2, "there is no results folder nowhere"),
        (("--json", "--format", "csv"), 2, "contradict each other"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    ampbench: Callable, folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found = ampbench("trend", "--results", folder, *arguments)
    assert (found.code, found.out) == (code, "")
    assert said in found.err
    assert found.err.count("\n") == 1


def test_five_versions_stand_side_by_side_on_a_hundred_columns(ampbench: Callable, tmp_path: Path) -> None:
    count = 5
    cases = [make_case(precision, workload="transformer_block", phase=phase) for precision in ("fp32", "bf16_autocast")
             for phase in ("inference", "training")]  # fmt: skip
    versions = [f"2.{minor}.0" for minor in range(11, 11 + count)]
    for number, version in enumerate(versions):
        environment = replace(make_header().environment, torch_version=version)
        found: list[Any] = []
        for case in cases:
            found += [make_round(case, 12.3e-3), make_memory(case, 12_900_000 * (2 if number else 1))]
            found.append(make_divergence(case, grad_rel_l2=5.4e-3, output_rel_l2=1e-3, output_floor_rel_l2=2e-4))
        write_run(tmp_path, cases, *found, COMPLETE, run=f"r{number}", environment=environment)
    lines = ampbench("trend", "--results", tmp_path, "--all").out.splitlines()
    header = next(line for line in lines if line.endswith("total"))
    assert header.split()[: 2 + count] == ["case", "metric", *versions]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.072, "+7.2%"),
        (0.5, "-50%"),
        (9.9, "+890%"),
        (12.34, "x 12.3"),
        (8000.0, "x 8.00k"),
        (101_251.9, "x 101k"),
        (0.004, "1/250"),
        (0.0, "-100%"),
    ],
)
def test_large_changes_are_factors(ratio: float, text: str) -> None:
    assert relative(ratio) == text


def test_a_curve_has_gaps_and_no_more_blocks_than_there_is_room() -> None:
    assert curve([1.0, None, 2.0], 40) == "▁·█"
    assert curve([1.0] * 50 + [2.0] * 50, 10) == "▁▁▁▁▁█████"
    assert curve([None, None], 5) == "··"


def test_noise_is_not_stretched_over_the_whole_height() -> None:
    assert set(curve([1.0, 1.01, 0.99, 1.0], 40)) <= set("▄▅")
    assert set(curve([0.0, 0.0], 40)) == {"▅"}


def test_a_trend_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from ampbench.cli.main import main\n"
        f"main(['trend', '--results', {str(folder)!r}])\n"
        "sys.exit('torch' if 'torch' in sys.modules else '')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"
