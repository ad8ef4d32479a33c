"""A watch prints, draws and saves itself, and is shown like any run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ampbench
from ampbench.report.material import material_of
from ampbench.studies.watch import Watched
from ampbench.watching import Watch
from tests.report.materials import part_of
from tests.watching.loops import trained

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def watch() -> Watch:
    _, watch = trained("fp16", 60, watched=True)
    assert watch is not None
    return watch


def test_a_watch_prints_its_statements_and_tables(watch: Watch) -> None:
    text = str(watch)
    assert "Net, 60 steps" in text
    assert "weights would lose" in text
    assert watch._repr_html_().startswith("<pre")
    assert repr(watch) == "<ampbench.watch: Net, 60 steps>"
    assert list(watch.frame["step"]) == [1, 20, 40, 60]
    assert watch.frame["scale"].notna().all()


def test_a_watch_draws_the_updates_that_arrive(watch: Watch) -> None:
    rows = watch.plot().spec["data"]["values"]
    assert {row["series"] for row in rows} == {"in bf16", "in fp16"}
    assert "var(--" not in str(watch.plot().spec)
    assert "updates that arrive" in repr(watch.plot())


def test_a_saved_watch_is_a_run_that_show_and_the_page_have(watch: Watch, tmp_path: Path) -> None:
    from ampbench.cli.main import main
    from ampbench.store import read_run

    path = watch.save(tmp_path)
    stored = read_run(path)
    assert stored.every(Watched) == [watch.record]
    assert stored.asked.every == 20
    assert str(ampbench.open(path)) == str(watch)
    assert main(["show", str(path)]) == 0
    part = part_of("watch", material_of([], explanations=[stored]))
    assert part is not None
    assert part.charts
    assert "Net, 60 steps" in part.finding
