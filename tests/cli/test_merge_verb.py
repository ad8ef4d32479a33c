"""`ampbench run --shard` and `ampbench merge`: a run in parts, by plain processes, and whole again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.cli.main import main
from ampbench.records.measured import Divergence, MemoryPass
from ampbench.store import StoredRun, list_runs, read_run, run_files
from tests.stored_runs import change_divergence

QUICK = ["--rounds", "1", "--min-run-time", "0.001", "--threads", "1", "--preset", "tiny"]
SELECTED = ["mlp", "simple_conv", "cross_entropy_head", "--precision", "fp32,bf16_pure", *QUICK]


def bytes_of(found: MemoryPass) -> dict[str, Any]:
    """Return the counts of a memory pass."""
    return {name: getattr(found, name) for name in MemoryPass.__slots__}


@pytest.mark.slow
def test_three_shards_merged_are_the_run_of_one_process(ampbench: Callable[..., Any], tmp_path: Path) -> None:
    assert ampbench("run", *SELECTED, "--results", "whole").code == 0
    for number in range(1, 4):
        assert ampbench("run", *SELECTED, "--shard", f"{number}/3", "--results", "shards").code == 0
    done = ampbench("merge", "shards")
    assert done.code == 0
    (path,) = list_runs("results")
    assert f"3 shards merged: {path}; ampbench show {path.stem}" in done.err
    whole, again = read_run(list_runs("whole")[0]), read_run(path)
    assert list(again.cases.values()) == list(whole.cases.values())
    assert errors_of(again) == errors_of(whole)
    assert {key: bytes_of(one) for key, one in again.memory.items()} == {
        key: bytes_of(one) for key, one in whole.memory.items()
    }
    own = {(each.case_id, each.round) for each in whole.rounds if not each.control}
    assert {(each.case_id, each.round) for each in again.rounds if not each.control} == own
    shown = ampbench("show", path.stem)
    assert shown.code == 0
    assert "bf16_pure" in shown.out


def errors_of(run: StoredRun) -> dict[str, Divergence]:
    """Return what divergence passes found, but for further decisions, of which there are as many as time allows."""
    return {case_id: change_divergence(found, further=None) for case_id, found in run.divergence.items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of two shards, measured once."""
    results = tmp_path_factory.mktemp("two") / "results"
    for number in (1, 2):
        arguments = ["--precision", "fp32", "--shard", f"{number}/2", "--results", str(results)]
        assert main(["run", "mlp", *QUICK, *arguments]) == 0
    return results


@pytest.fixture
def two(measured: Path, tmp_path: Path) -> list[Path]:
    shutil.copytree(measured, tmp_path / "results")
    return list_runs("results")


def test_shards_beside_their_run_are_counted_once(
    ampbench: Callable[..., Any], two: list[Path], tmp_path: Path
) -> None:
    assert ampbench("merge", *two).code == 0
    (merged,) = set(list_runs("results")) - set(two)
    assert run_files(Path("results")) == [merged]
    assert merged.stem in ampbench("list", "runs").out
    again = ampbench("merge", "results")
    assert again.code == 2
    assert "there is no shard in results" in again.err
    again = ampbench("merge", *two)
    assert again.code == 0
    assert f"2 shards were merged before: {merged}" in again.err
    assert len(list_runs("results")) == 3


def test_a_shard_is_resumed_as_the_shard_that_it_is(
    ampbench: Callable[..., Any], two: list[Path], tmp_path: Path
) -> None:
    before = read_run(two[0])
    lines = two[0].read_bytes().splitlines(keepends=True)
    rounds = [place for place, line in enumerate(lines) if line.startswith(b'{"round"')]
    two[0].write_bytes(b"".join(lines[: rounds[-1]]))
    cut = ampbench("merge", *two)
    assert cut.code == 2
    assert "broke off: ampbench run --resume" in cut.err
    assert ampbench("run", "--resume", two[0]).code == 0
    again = read_run(two[0])
    assert again.header == before.header
    assert again.complete
    assert set(again.cases) == set(before.cases)
    assert ampbench("merge", *two).code == 0
