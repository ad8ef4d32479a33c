from pathlib import Path

import pytest

from ampbench.core.budget import Budget
from ampbench.errors import NothingComparableError
from ampbench.records.measured import Skip
from ampbench.report.material import gather, material_of
from tests.compared_runs import BF16, FP32, Times, environment, make_run, noisy, rounds_of
from tests.stored_runs import COMPLETE, make_case, make_header, write_run

FP16 = make_case("fp16_pure")
OLD, NEW, OTHER = "20260101T120000Z-bench-000001", "20260102T120000Z-bench-000002", "20260103T120000Z-else-000003"


def stored(
    results: Path, run: str, seconds: float = 1e-3, cases: tuple = (FP32, BF16), host: str = "bench", **header: object
) -> Path:
    """Write a run of `cases`, started when its id says."""
    started = f"{run[:4]}-{run[4:6]}-{run[6:8]}T12:00:00Z"
    described = environment(make_header(), host=host).environment
    fields = {"run": run, "started_at": started, "environment": described} | header
    rounds = [one for case in cases for one in rounds_of(case, noisy(seconds, 4))]
    return write_run(results, list(cases), *rounds, COMPLETE, **fields)


def shown_ids(material) -> dict[str, list[str]]:
    return {one.stored.header.run: [row["precision"] for row in one.rows] for one in material.shown}


def test_without_a_run_the_latest_is_shown(tmp_path: Path):
    stored(tmp_path, OLD)
    stored(tmp_path, NEW)
    assert shown_ids(gather([], tmp_path)) == {NEW: ["fp32", "bf16_autocast"]}


def test_a_table_of_which_a_newer_run_has_not_every_case_stays_whole(tmp_path: Path):
    stored(tmp_path, OLD, cases=(FP32, BF16, FP16))
    stored(tmp_path, NEW, cases=(FP32, BF16))
    material = gather([NEW, OLD], tmp_path)
    assert shown_ids(material) == {OLD: ["fp32", "bf16_autocast", "fp16_pure"], NEW: ["fp32", "bf16_autocast"]}


def test_tables_that_newer_runs_have_in_pieces_are_not_put_together(tmp_path: Path):
    stored(tmp_path, OLD, cases=(FP32, BF16))
    stored(tmp_path, NEW, cases=(FP32,))
    stored(tmp_path, "20260104T120000Z-bench-000004", cases=(BF16,))
    assert len(shown_ids(gather([str(tmp_path)], tmp_path))) == 3


def test_a_run_whose_cases_are_all_measured_again_is_not_shown_but_followed(tmp_path: Path):
    stored(tmp_path, OLD)
    stored(tmp_path, NEW)
    material = gather([str(tmp_path)], tmp_path)
    assert list(shown_ids(material)) == [NEW]
    assert [trend.axis for trend in material.trends] == ["date"]


def test_cases_of_another_machine_are_shown_beside_them(tmp_path: Path):
    stored(tmp_path, OLD)
    stored(tmp_path, OTHER, host="else")
    assert list(shown_ids(gather([OLD, OTHER], tmp_path))) == [OLD, OTHER]


def test_a_folder_means_all_its_runs_and_one_named_twice_is_one(tmp_path: Path):
    stored(tmp_path, OLD)
    path = stored(tmp_path, OTHER, host="else")
    material = gather([str(tmp_path), str(tmp_path / "runs"), str(path)], Path("elsewhere"))
    assert list(shown_ids(material)) == [OLD, OTHER]


def test_the_baseline_is_what_the_others_are_compared_with_and_not_shown_itself(tmp_path: Path):
    stored(tmp_path, OLD, 2e-3)
    stored(tmp_path, NEW, 1e-3)
    material = gather([str(tmp_path)], tmp_path, baseline=OLD)
    assert list(shown_ids(material)) == [NEW]
    assert material.baseline is not None
    assert material.baseline.header.run == OLD
    assert len(material.comparisons) == 1


def test_a_run_may_be_compared_with_itself(tmp_path: Path):
    stored(tmp_path, OLD)
    assert list(shown_ids(gather([OLD], tmp_path, baseline=OLD))) == [OLD]


def test_a_run_with_nothing_in_common_with_the_baseline_is_an_error_of_its_own(tmp_path: Path):
    stored(tmp_path, OLD, cases=(FP32,))
    stored(tmp_path, NEW, cases=(FP16,))
    with pytest.raises(NothingComparableError):
        gather([NEW], tmp_path, baseline=OLD)


def test_of_several_runs_one_with_nothing_in_common_is_remarked_on(tmp_path: Path):
    stored(tmp_path, OLD, cases=(FP32,))
    stored(tmp_path, NEW, cases=(FP32,))
    stored(tmp_path, OTHER, cases=(FP16,), host="else")
    material = gather([NEW, OTHER], tmp_path, baseline=OLD)
    assert list(shown_ids(material)) == [NEW, OTHER]
    assert len(material.comparisons) == 1
    assert any("20260103T120000Z" in remark for remark in material.remarks)


def test_only_cases_that_match_the_keyword_are_taken(tmp_path: Path):
    stored(tmp_path, OLD, cases=(FP32, BF16, FP16))
    material = gather([OLD], tmp_path, keyword="bf16_autocast")
    assert [row["precision"] for row in material.rows] == ["bf16_autocast"]


def test_a_run_without_cases_is_shown(tmp_path: Path):
    write_run(tmp_path, [], COMPLETE, run=OLD)
    material = gather([OLD], tmp_path)
    assert shown_ids(material) == {OLD: []}
    assert material.rows == []


def test_a_run_of_skips_alone_is_shown(tmp_path: Path):
    write_run(tmp_path, [FP32], Skip(case_id=FP32.case_id, reason="unsupported here"), COMPLETE, run=OLD)
    assert [row["outcome"] for row in gather([OLD], tmp_path).rows] == ["skipped"]


def test_trends_run_over_torch_versions_where_runs_differ_in_them(tmp_path: Path):
    for run, version in ((OLD, "2.14.0"), (NEW, "2.15.0")):
        described = environment(make_header(), torch_version=version).environment
        stored(tmp_path, run, environment=described)
    material = gather([str(tmp_path)], tmp_path)
    assert [trend.axis for trend in material.trends] == ["torch_version"]
    assert not gather([NEW], tmp_path).trends


def test_of_one_run_and_its_baseline_the_comparison_says_all(tmp_path: Path):
    for run, version in ((OLD, "2.14.0"), (NEW, "2.15.0")):
        stored(tmp_path, run, environment=environment(make_header(), torch_version=version).environment)
    assert gather([NEW], tmp_path, baseline=OLD).trends == ()


def test_the_baseline_takes_part_in_trends_of_several_runs(tmp_path: Path):
    for run, version in ((OLD, "2.14.0"), (NEW, "2.15.0"), (OTHER, "2.15.0")):
        stored(tmp_path, run, environment=environment(make_header(), torch_version=version).environment)
    [trend] = gather([NEW, OTHER], tmp_path, baseline=OLD).trends
    assert all(len(one.points) == 2 for one in trend.series)


def test_advice_is_given_within_the_budget():
    run = make_run(Times((FP32, noisy(1e-3)), (BF16, noisy(5e-4))))
    for limit, taken in ((1e-2, "bf16_autocast"), (1e-3, "fp32")):
        [shown] = material_of([run], budget=Budget(output_rel_l2=limit)).shown
        assert [one.precision for one in shown.result.takes.values()] == [taken]
