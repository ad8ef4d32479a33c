"""Which runs a page is about, which explain them, what they are compared with, and which trends it has."""

from pathlib import Path

from ampbench.records.run import Entry
from ampbench.report.material import Material, gather
from tests.compared_runs import BF16, FP32, environment, noisy, rounds_of
from tests.report.traced_runs import TRAINED, make_pass
from tests.stored_runs import COMPLETE, make_case, make_header, write_run

FP16 = make_case("fp16_pure")


def run_id(day: int) -> str:
    return f"202601{day:02}T120000Z-bench-{day:06}"


def stored(results: Path, day: int, *entries: Entry, cases=(FP32, BF16), seconds=1e-3, explains="", **place) -> Path:
    """Write a run of `cases` on a day of January 2026."""
    header = environment(make_header(), **place)
    entries = entries or tuple(timing for case in cases for timing in rounds_of(case, noisy(seconds, 4)))
    fields = {"run": run_id(day), "started_at": f"2026-01-{day:02}T12:00:00Z", "explains": explains}
    return write_run(results, list(cases), *entries, COMPLETE, environment=header.environment, **fields)


def traced(results: Path, day: int, **place) -> Path:
    return stored(results, day, make_pass(), cases=(TRAINED,), explains="casts", **place)


def shown(material: Material) -> dict[str, list[str]]:
    return {each.stored.header.run: [row["precision"] for row in each.rows] for each in material.shown}


def explaining(material: Material) -> list[str]:
    return [run.header.run for run in material.explanations]


def test_without_a_name_the_latest_measured_run_comes_with_what_explains_it(tmp_path: Path) -> None:
    stored(tmp_path, 1)
    traced(tmp_path, 2)  # older than the run
    stored(tmp_path, 3)
    traced(tmp_path, 4)
    traced(tmp_path, 5, host="elsewhere")
    traced(tmp_path, 6, torch_version="2.14.0")
    material = gather([], tmp_path)
    assert (shown(material), explaining(material)) == ({run_id(3): ["fp32", "bf16_autocast"]}, [run_id(4)])


def test_what_is_named_is_what_is_shown(tmp_path: Path) -> None:
    path, older = stored(tmp_path, 2), traced(tmp_path, 1)
    traced(tmp_path, 3)
    assert explaining(gather([run_id(2)], tmp_path)) == explaining(gather(["latest"], tmp_path)) == []
    material = gather([str(path), str(older)], tmp_path)
    assert ([*shown(material)], explaining(material)) == ([run_id(2)], [run_id(1)])


def test_a_table_is_shown_as_the_newest_run_has_it_and_never_put_together(tmp_path: Path) -> None:
    stored(tmp_path, 1, cases=(FP32, BF16, FP16))
    stored(tmp_path, 2)
    material = gather([str(tmp_path), str(tmp_path / "runs")], Path("elsewhere"))
    assert shown(material) == {run_id(1): ["fp32", "bf16_autocast", "fp16_pure"], run_id(2): ["fp32", "bf16_autocast"]}
    stored(tmp_path, 3, cases=(FP32, BF16, FP16))
    material = gather([str(tmp_path)], tmp_path)
    assert [*shown(material)] == [run_id(3)]
    assert [trend.axis for trend in material.trends] == ["date"]
    stored(tmp_path, 4, host="else")
    assert [*shown(gather([str(tmp_path)], tmp_path))] == [run_id(3), run_id(4)]
    stored(tmp_path / "pieces", 1)
    stored(tmp_path / "pieces", 2, cases=(FP32,))
    stored(tmp_path / "pieces", 3, cases=(BF16,))
    assert len(shown(gather([str(tmp_path / "pieces")], tmp_path))) == 3


def test_the_baseline_is_what_the_others_are_compared_with_and_not_shown_itself(tmp_path: Path) -> None:
    stored(tmp_path, 1, seconds=2e-3)
    stored(tmp_path, 2)
    material = gather([str(tmp_path)], tmp_path, baseline=run_id(1))
    assert ([*shown(material)], len(material.comparisons)) == ([run_id(2)], 1)
    assert [*shown(gather([run_id(1)], tmp_path, baseline=run_id(1)))] == [run_id(1)]


def test_trends_are_of_all_measured_runs_that_were_named_and_the_baseline(tmp_path: Path) -> None:
    stored(tmp_path, 1, torch_version="2.14.0")
    stored(tmp_path, 2)
    traced(tmp_path, 3)
    assert [trend.axis for trend in gather([str(tmp_path)], tmp_path).trends] == ["torch_version"]
    assert gather([run_id(2)], tmp_path, baseline=run_id(1)).trends == ()  # the comparison says more
    stored(tmp_path, 4)
    [trend] = gather([run_id(2), run_id(4)], tmp_path, baseline=run_id(1)).trends
    assert all(len(series.points) == 2 for series in trend.series)
    stored(tmp_path / "apart", 1, host="one")
    stored(tmp_path / "apart", 2, host="two")
    assert gather([str(tmp_path / "apart")], tmp_path).trends == []
