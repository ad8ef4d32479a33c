"""`ampbench check`: what it lists, prints, runs and refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench import store
from ampbench.defects import AREAS, CHECKS, program_of
from ampbench.records.kinds import CHECK
from ampbench.studies.check import Checked

Run = Callable[..., Any]


def test_checks_are_listed_with_their_areas_and_threads(ampbench: Run) -> None:
    rows = json.loads(ampbench("list", "checks", "--json").out)
    assert [row["check"] for row in rows] == list(CHECKS)
    assert {row["area"] for row in rows} == set(AREAS)
    assert any("pytorch/pytorch#48049" in row["threads"] for row in rows)
    assert all(name in ampbench("list", "checks").out for name in CHECKS)


def test_a_program_is_printed_to_be_pasted(ampbench: Run) -> None:
    assert ampbench("list", "checks", "stale-weight-cast").out == program_of(CHECKS["stale-weight-cast"])
    assert "did you mean stale-weight-cast?" in ampbench("list", "checks", "stale-weight-cas").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stale-weight-cas"], "unknown check 'stale-weight-cas': did you mean stale-weight-cast?"),
        (["complie"], "unknown check 'complie': did you mean compile"),
        (["--device", "gpu"], "unknown device 'gpu': did you mean"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest(words: list[str], said: str, ampbench: Run) -> None:
    found = ampbench("check", *words)
    assert found.code == 2
    assert said in found.err
    assert found.out == ""


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
