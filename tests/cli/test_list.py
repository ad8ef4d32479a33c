"""`ampbench list`, and `ampbench check`: names for the command line, and what checks run and store."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench import store
from ampbench.core.precisions import PRECISIONS
from ampbench.defects import AREAS, CHECKS, program_of
from ampbench.records.kinds import CHECK
from ampbench.studies.check import Checked
from ampbench.workloads.index import WORKLOADS
from tests.stored_runs import COMPLETE, make_case, write_run

Run = Callable[..., Any]


def test_workloads_are_listed_with_their_parameters(ampbench: Run) -> None:
    out = ampbench("list", "workloads").out
    assert all(f"\n{name} " in out for name in WORKLOADS)
    assert "classes=1000 image=224" in out


def test_workloads_can_be_searched_and_a_library_is_asked_for_its_own(ampbench: Run) -> None:
    found = ampbench("list", "workloads", "head").out
    assert "cross_entropy_head" in found
    assert "decoder_lm" not in found
    assert "did you mean resnet18" in ampbench("list", "workloads", "resnet1x8").err
    assert "takes no name" in ampbench("list", "runs", "cpu").err
    pytest.importorskip("torchvision")
    rows = json.loads(ampbench("list", "workloads", "torchvision:squeeze", "--json").out)
    assert [row["workload"] for row in rows] == ["torchvision:squeezenet1_0", "torchvision:squeezenet1_1"]
    assert rows[0]["task"] == "image classification"
    assert rows[0]["parameters"] == {"classes": 1000, "image": 224, "batch_size": 1}


@pytest.mark.parametrize("format", ["table", "csv", "markdown", "json"])
def test_precisions_are_listed_in_every_format(format: str, ampbench: Run) -> None:
    said = ampbench("list", "precisions", "--format", format)
    assert said.code == 0
    assert all(name in said.out for name in PRECISIONS)
    assert "bf16-mixed" in said.out


def test_runs_are_listed_with_what_became_of_their_cases(results: Path, ampbench: Run) -> None:
    out = ampbench("list", "runs", "--results", results).out
    assert "20260131T120000Z-bench-1f9a3c  nightly  2.15.0  resnet18 and 3 more: 12 ok, 1" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    rows = json.loads(ampbench("list", "runs", "--results", results, "--json").out)
    assert rows[0]["outcome"] == "12 ok, 1 failed, 4 skipped"
    assert rows[0]["workloads"] == ["resnet18", "mlp", "softmax_head", "kl_head"]


def test_no_runs_is_said_on_stderr(tmp_path: Path, ampbench: Run) -> None:
    said = ampbench("list", "runs", "--results", tmp_path)
    assert (said.code, said.out) == (0, "")
    assert "`ampbench run` makes one" in said.err
    assert ampbench("list", "runs", "--results", tmp_path, "--json").out == "[]\n"
    said = ampbench("list", "runs", "--results", tmp_path / "nosuch")
    assert (said.code, said.out) == (2, "")
    assert f"there is no results folder {tmp_path / 'nosuch'}" in said.err


def test_a_folder_of_runs_is_listed_with_all_that_is_wrong_in_it(ampbench: Run, tmp_path: Path) -> None:
    runs = write_run(tmp_path / "results", [make_case()], COMPLETE).parent
    (runs / "20990101T000000Z-a-bbb111.jsonl").write_bytes(b'{"header":' * 5000 + b"\n")
    os.mkfifo(runs / "20990102T000000Z-a-bbb111.jsonl")
    said = ampbench("list", "runs", "--json")
    rows = json.loads(said.out)
    assert (said.code, len(rows)) == (0, 3)
    assert rows[1]["outcome"].endswith("no header of an ampbench run: this is another program's file or a damaged one")
    assert rows[2]["outcome"].endswith("it is no file")


def test_checks_are_listed_with_their_areas_and_threads(ampbench: Run) -> None:
    rows = json.loads(ampbench("list", "checks", "--json").out)
    assert [row["check"] for row in rows] == list(CHECKS)
    assert {row["area"] for row in rows} == set(AREAS)
    assert any("pytorch/pytorch#48049" in row["threads"] for row in rows)
    out = ampbench("list", "checks").out
    assert all(name in out for name in CHECKS)


def test_a_program_is_printed_to_be_pasted(ampbench: Run) -> None:
    assert ampbench("list", "checks", "stale-weight-cast").out == program_of(CHECKS["stale-weight-cast"])
    assert "did you mean stale-weight-cast?" in ampbench("list", "checks", "stale-weight-cas").err


def test_what_was_found_is_stored_and_told_in_full_where_it_was_asked_for_by_name(
    ampbench: Run, tmp_path: Path
) -> None:
    named = ("stale-weight-cast", "rms-norm-half", "--device", "cpu,xpu")
    found = ampbench("check", *named, "--results", tmp_path, "-v")
    assert "xpu (fake tensors): " in found.out
    assert "threads     pytorch/pytorch#48049" in found.out
    run = store.read_run(next((tmp_path / "runs").iterdir()))
    assert (run.header.explains, run.ended) == (CHECK, "complete")
    told = {(one.check, one.device): one.outcome for one in run.every(Checked)}
    assert told == {
        ("stale-weight-cast", "cpu"): "defective",
        ("rms-norm-half", "cpu"): "good",
        ("rms-norm-half", "xpu"): "defective",
        ("stale-weight-cast", "xpu"): "not shown here",
    }
    again = ampbench("show", run.header.run, "-v", "--results", tmp_path)
    assert again.out == found.out
    since = ampbench("compare", run.header.run, run.header.run, "--results", tmp_path)
    assert "of 4 checks in both runs 0 defects came, 0 went" in since.out
