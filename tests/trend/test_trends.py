"""Trends: what makes a series, in which order it stands, where it changes and why."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from ampbench.errors import NothingToRunError, StoreError
from ampbench.records.case import Case, Environment
from ampbench.records.measured import Failure, Fitness, Reading
from ampbench.records.run import Entry, Imported
from ampbench.trend import Change, Point, Rule, Series, Trend, make_trend
from ampbench.trend.show import notes, summary, what
from ampbench.trend.values import Gap, Lack, read_runs, tracked
from tests.stored_runs import COMPLETE, make_case, make_divergence, make_header, make_memory, make_round, write_run

pytest.importorskip("asv.step_detect")

FP32, BF16 = make_case(), make_case("bf16_autocast")


def environment(**changes: Any) -> Environment:
    return replace(make_header().environment, **changes)


def timed(case: Case, seconds: float, rounds: int = 4, spread: float = 0.002, **changes: Any) -> list[Entry]:
    """Return rounds of a case, evenly spread about `seconds`."""
    logs = np.linspace(-spread, spread, rounds)
    return [make_round(case, seconds * math.exp(log), number, **changes) for number, log in enumerate(logs)]


class Folder:
    """A results folder, filled run by run: a day each, one case of 1 ms unless told otherwise."""

    def __init__(self, path: Path):
        self.path = path
        self.count = 0

    def run(self, *entries: Entry, cases: tuple[Case, ...] = (FP32,), torch: str = "2.15.0", **header: Any) -> str:
        self.count += 1
        given = {"environment": environment(torch_version=torch), "started_at": f"2026-01-{self.count:02}T12:00:00Z"}
        name = f"run{self.count:03}"
        write_run(self.path, list(cases), *(entries or timed(FP32, 1e-3)), COMPLETE, **given | header, run=name)
        return name

    def trend(self, axis: str = "torch_version", *metrics: str) -> Trend:
        chosen = tracked(metrics or ("time",))
        return make_trend(read_runs([], self.path).runs, axis, chosen)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "results")


def labels(series: Series) -> list[str]:
    return [point.x.label for point in series.points]


def ids(point: Point) -> list[str]:
    return [measured.run.stored.header.run for measured in point.each]


def only(trend: Trend) -> Series:
    assert len(trend.series) == 1
    return trend.series[0]


def only_change(trend: Trend) -> Change:
    assert len(only(trend).changes) == 1
    return only(trend).changes[0]


def ends(interval: Any) -> tuple[float, float]:
    assert None not in (interval.low, interval.high)
    return interval.low, interval.high


def test_versions_stand_in_their_order_and_builds_of_one_are_one(folder: Folder) -> None:
    for version in ("2.11.0+cpu", "2.9.1", "2.11.0", "2.12.0.dev20260101+cpu", "2.12.0a0+git1234567", "2.12.0"):
        folder.run(torch=version)
    series = only(folder.trend())
    assert labels(series) == ["2.9.1", "2.11.0", "2.12.0.dev20260101", "2.12.0a0", "2.12.0"]
    assert [len(point.each) for point in series.points] == [1, 2, 1, 1, 1]
    assert ids(series.points[1]) == ["run001", "run003"]


@pytest.mark.parametrize("changes", [{"host": "other"}, {"cpu": "AMD Zen"}, {"threads": 4}])
def test_runs_of_another_machine_never_share_a_series(folder: Folder, changes: dict[str, Any]) -> None:
    folder.run()
    folder.run(environment=environment(**changes))
    trend = folder.trend()
    assert [len(one.measured) for one in trend.series] == [1, 1]
    assert len(trend.places) == 2


def test_a_time_of_zero_is_none(folder: Folder) -> None:
    """A step that was held up all the while is worth its CPU time, which a coarse clock may give as zero."""
    for day in range(6):
        folder.run(*timed(FP32, 1e-3, cpu_samples=[[0.0]] if day == 3 else [[1e-3]]))
    points = only(folder.trend("date")).points
    assert [point.value is None for point in points] == [day == 3 for day in range(6)]


def test_over_versions_of_torch_the_commit_is_the_newest_that_has_several_of_them(folder: Folder) -> None:
    """What a commit did is not blamed on the version of torch that it was, for the most part, measured with."""
    for day in range(7):
        error = 8.07e-3 if day < 6 else 64.2
        given = {"commit": f"{day}" * 40, "committed_at": f"2026-01-0{day + 1}T00:00:00Z"}
        folder.run(whole(error), *timed(FP32, 1e-3), **given)
        if day in (2, 6):
            folder.run(whole(error), *timed(FP32, 1e-3), torch="2.14.1", **given)
    folder.run(whole(64.2), *timed(FP32, 1e-3), commit="7" * 40, committed_at="2026-01-09T00:00:00Z")
    trend = folder.trend("torch_version", "floor")
    series = only(trend)
    assert [(point.x.label, point.value) for point in series.points] == [("2.14.1", 6.42e4), ("2.15.0", 6.42e4)]
    assert (series.place.commit, list(series.changes)) == ("6" * 40, [])
    over_commits = [one for one in folder.trend("commit", "floor").series if one.place.torch_version == "2.15.0"]
    assert [change.x.label for change in over_commits[0].changes] == ["6" * 7]


def test_commits_stand_in_their_order_whenever_they_were_measured_and_dirty_ones_follow(folder: Folder) -> None:
    for commit, time in (("b", "02"), ("c", "03"), ("a", "01")):
        folder.run(commit=commit * 40, committed_at=f"2025-01-{time}T00:00:00+00:00")
    folder.run(commit="a" * 40 + "-dirty")
    assert labels(only(folder.trend("commit"))) == ["a" * 7, "a" * 7 + "-dirty", "b" * 7, "c" * 7]


def test_a_point_is_the_median_of_its_runs_and_never_pools_their_rounds(folder: Folder) -> None:
    for seconds, rounds in ((1e-3, 4), (2e-3, 4), (1.1e-3, 40)):
        folder.run(*timed(FP32, seconds, rounds))
    point = only(folder.trend()).points[0]
    assert point.value == pytest.approx(1.1e-3)
    assert len(point.each) == 3
    assert [run.value for run in point.each] == pytest.approx([1e-3, 2e-3, 1.1e-3])


def test_a_failed_a_skipped_and_a_missing_case_are_gaps_that_say_why(folder: Folder) -> None:
    folder.run(torch="2.11.0")
    failure = Failure(case_id=FP32.case_id, stage="round", cause="crash", message="signal 11")
    folder.run(*timed(FP32, 1e-3), failure, torch="2.12.0")
    folder.run(*timed(BF16, 1e-3), cases=(BF16,), torch="2.13.0")
    folder.run(make_memory(FP32, 10), torch="2.14.0")
    points = folder.trend().series[0].points
    assert [point.value for point in points][1:] == [None, None, None]
    failed, skipped = Gap(Lack.FAILED, "crash: signal 11"), Gap(Lack.SKIPPED, "not measured yet")
    assert [point.gap for point in points] == [None, failed, Gap(Lack.NOT_MEASURED), skipped]


def test_a_little_memory_is_tolerated_until_it_adds_up(folder: Folder) -> None:
    for version, peak in (("2.13.0", 100_000), ("2.14.0", 100_900), ("2.15.0", 101_500)):
        folder.run(make_memory(FP32, peak), *timed(FP32, 1e-3), torch=version)
    change = only_change(folder.trend("torch_version", "memory"))
    # 1% is tolerated each time, and held against the first value as well: small losses add up
    assert (change.x.label, change.last.label, change.before, change.after) == ("2.15.0", "2.14.0", 100_000, 101_500)
    assert (change.direction, change.ratio, change.low) == ("regressed", pytest.approx(1.015), None)


@pytest.mark.parametrize(("errors", "changes"), [((0.3, 0.39), 0), ((0.3, 0.45), 1), ((3.0, 3.2), 0), ((3.0, 3.4), 1)])
def test_errors_change_relative_to_what_rounding_costs(
    folder: Folder, errors: tuple[float, float], changes: int
) -> None:
    for version, error in zip(("2.14.0", "2.15.0"), errors, strict=True):
        found = make_divergence(FP32, output_rel_l2=error * 1e-3, output_floor_rel_l2=1e-3)
        folder.run(found, *timed(FP32, 1e-3), torch=version)
    assert len(only(folder.trend("torch_version", "floor")).changes) == changes


def broken(case: Case = FP32, elements: int = 12) -> Entry:
    return make_divergence(case, output_nonfinite=elements, output_floor_rel_l2=1e-3)


def whole(error: float) -> Entry:
    return make_divergence(FP32, output_rel_l2=error, output_floor_rel_l2=1e-3)


def test_an_error_that_is_no_number_any_more_has_regressed_and_one_that_is_again_improved(folder: Folder) -> None:
    versions = {"2.12.0": whole(2e-3), "2.13.0": broken(), "2.14.0": broken(elements=1), "2.15.0": whole(2e-3)}
    for version, found in versions.items():
        folder.run(found, *timed(FP32, 1e-3), torch=version)
    series = only(folder.trend("torch_version", "floor"))
    assert [(one.x.label, one.before, one.after, one.ratio, one.direction) for one in series.changes] == [
        ("2.13.0", 2.0, None, None, "regressed"),
        ("2.15.0", None, 2.0, None, "improved"),
    ]
    assert what(series.changes[0]) == "torch 2.12.0 → 2.13.0"
    assert [point.gap for point in series.points[1:3]] == [
        Gap(Lack.UNDEFINED, "12 output elements are not finite"),
        Gap(Lack.UNDEFINED, "1 output element is not finite"),
    ]
    assert ids(series.points[1]) == ["run002"]


def test_a_slowdown_between_three_versions_is_found_and_explained(folder: Folder) -> None:
    for version, vision, seconds in (("2.11.0", "0.26", 1e-3), ("2.12.0", "0.27", 1e-3), ("2.13.0", "0.28", 1.1e-3)):
        where = environment(torch_version=version, torchvision_version=vision)
        folder.run(*timed(FP32, seconds), *timed(FP32, seconds * 1.003, control=True), environment=where)
    change = only_change(folder.trend())
    assert (change.x.label, change.last.label, change.direction) == ("2.13.0", "2.12.0", "regressed")
    assert change.ratio == pytest.approx(1.1, rel=1e-3)
    assert ends(change)[0] < 1.1 < ends(change)[1]
    assert what(change) == "torch 2.12.0 → 2.13.0; torchvision 0.27 → 0.28"
    assert only(folder.trend()).rule is Rule.NEIGHBOURS


NETWORKS = tuple(
    make_case(precision, workload=name) for name in ("mlp", "vit", "resnet18") for precision in ("fp32", "bf16_pure")
)


def measured(folder: Folder, factors: Sequence[float], seed: int, version: str) -> None:
    """Leave a run of all networks, each so many times slower than 1 ms, with 0.3% of noise and a control."""
    generator = np.random.default_rng(seed)
    entries = [
        make_round(case, 1e-3 * factor * math.exp(generator.normal(0, 0.003)), number, control=control)
        for case, factor in zip(NETWORKS, factors, strict=True)
        for control in ((False, True) if case is NETWORKS[0] else (False,))
        for number in range(4)
    ]
    folder.run(*entries, cases=NETWORKS, torch=version)


def changed(trend: Trend) -> set[tuple[str, str]]:
    return {
        (f"{one.case.workload} {one.case.precision}", change.direction)
        for one in trend.series
        for change in one.changes
    }


def test_a_run_that_was_slower_as_a_whole_is_said_once_and_no_case_is_blamed(folder: Folder) -> None:
    measured(folder, [1.0] * 6, 1, "2.14.0")
    measured(folder, [1.3] * 6, 2, "2.15.0")
    trend = folder.trend()
    assert changed(trend) == set()
    (shift,) = trend.shifts
    assert (shift.x.label, shift.last.label, shift.cases, shift.alike) == ("2.15.0", "2.14.0", 6, 6)
    assert shift.ratio == pytest.approx(1.3, rel=0.01)
    assert summary(trend) == "no change in 6 series beyond what the whole run did"


def test_a_case_that_did_more_than_the_whole_run_is_named_and_one_that_did_less_is_not(folder: Folder) -> None:
    measured(folder, [1.0] * 6, 1, "2.14.0")
    measured(folder, [1.3, 1.3, 1.3, 1.3, 1.8, 1.0], 2, "2.15.0")
    trend = folder.trend()
    # by itself the last is unchanged, and what is said must hold of the runs as `compare` reads them
    assert changed(trend) == {("resnet18 fp32", "regressed")}
    assert len(trend.shifts) == 1


def test_a_run_on_a_disturbed_machine_is_shown_and_not_judged(folder: Folder) -> None:
    busy = Fitness(other_share=0.6)
    folder.run(torch="2.13.0")
    folder.run(*timed(FP32, 2e-3, fitness=busy), torch="2.14.0")
    folder.run(torch="2.15.0")
    trend = folder.trend()
    assert [bool(point.disturbed) for point in only(trend).points] == [False, True, False]
    assert list(only(trend).changes) == []
    assert notes(trend) == [
        "1 value of a time is not judged (-v shows them): other processes used 60% of the CPU in 4 of 4 rounds"
    ]
    folder.run(torch="2.14.0")  # beside a run that was not, a disturbed one is left out
    assert only(folder.trend()).points[1].value == pytest.approx(1e-3)
    assert ids(only(folder.trend()).points[1]) == ["run004"]


def test_the_repositorys_own_runs_change_where_their_comparisons_say_so() -> None:
    chosen = tracked(["time"])
    runs = read_runs([str(Path(__file__).parents[2] / "results" / "runs")], Path("none")).runs
    over_commits = make_trend(runs, "commit", chosen)
    assert changed(over_commits) == set()
    assert [(shift.cases, round(shift.ratio, 2)) for shift in over_commits.shifts] == [(55, 0.95)]
    found = make_trend(runs, "torch_version", chosen)
    named = {"roi_head fp32", "roi_head bf16_autocast", "roi_head bf16_pure"}
    assert changed(found) == {(name, direction) for name in named for direction in ("regressed", "improved")}
    assert {change.x.label for one in found.series for change in one.changes} == {"2.12.1", "2.14.1"}


def imported(folder: Folder, seconds: float, **header: Any) -> None:
    """Leave a run as asv's results give it: a value and an interval."""
    numbers = {"seconds_median": seconds, "seconds_low": 0.99 * seconds, "seconds_high": 1.01 * seconds}
    readings = [Reading(case_id=FP32.case_id, metric=name, value=value) for name, value in numbers.items()]
    folder.run(*readings, imported=Imported(program="asv", file="x.json"), **header)


def test_asvs_values_are_judged_by_their_intervals_and_stand_apart_from_native_ones(folder: Folder) -> None:
    for day, seconds in enumerate((1e-3, 1.01e-3, 1.3e-3)):
        imported(folder, seconds, commit=f"{day}" * 40)
        folder.run(commit=f"{day}" * 40)
    theirs, ours = folder.trend("commit").series
    assert (theirs.place.program, ours.place.program) == ("asv", "ampbench")
    assert [change.x.label for change in theirs.changes] == ["2" * 7]
    assert ends(theirs.points[0].each[0]) == (pytest.approx(0.99e-3), pytest.approx(1.01e-3))
    assert list(ours.changes) == []


def noisy_days(folder: Folder, days: int, step: int, effect: float) -> None:
    generator = np.random.default_rng(7)
    for day in range(days):
        level = 1e-3 * (1 + effect * (day >= step)) * math.exp(generator.normal(0, 0.01))
        when = f"2026-{1 + day // 28:02}-{1 + day % 28:02}T12:00:00Z"
        folder.run(*timed(FP32, level), commit=f"{day:040x}", committed_at=when, started_at=when)


def test_a_step_in_a_long_series_is_found(folder: Folder) -> None:
    noisy_days(folder, 40, 30, 0.05)
    trend = folder.trend("commit")
    change = only_change(trend)
    assert only(trend).rule is Rule.STEPS
    assert change.x.value == f"{30:040x}"
    assert change.last.value == f"{29:040x}"
    assert change.ratio == pytest.approx(1.05, abs=0.01)


def read_ids(sources: list[Any], results: Path) -> list[str]:
    return [run.stored.header.run for run in read_runs([str(source) for source in sources], results).runs]


def test_sources_without_runs_and_damaged_ones_are_refused(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(NothingToRunError, match="there is no run in"):
        read_ids([], tmp_path)
    folder.run()
    with pytest.raises(NothingToRunError, match="no case of 1 runs matches -k 'resnet'"):
        make_trend(read_runs([], folder.path).runs, "date", tracked(), "resnet")
    path = folder.path / "runs" / "run001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round"', b'"rund"', 1))
    with pytest.raises(StoreError, match=r"run001\.jsonl, line"):
        read_ids([], folder.path)


def test_errors_with_other_weights_or_inputs_are_not_compared(folder: Folder) -> None:
    for digest, error in (("aa", 1e-3), ("cc", 5e-3)):
        found = make_divergence(FP32, output_rel_l2=error, output_floor_rel_l2=1e-3, inputs_digest=digest)
        folder.run(found, *timed(FP32, 1e-3), commit=digest * 20)
    series = folder.trend("commit", "floor").series
    assert [len(one.measured) for one in series] == [1, 1]
    assert series[0].points[1].gap == Gap(Lack.OTHER_NUMBERS)
    assert [one.numbers for one in series] == ["aa/aa", "aa/cc"]


def test_smaller_errors_of_another_function_are_no_improvement_and_it_is_said(folder: Folder) -> None:
    for version, error, norm in (("2.14.0", 2e-3, 5.0), ("2.15.0", 1e-3, 6.0)):
        found = make_divergence(FP32, output_rel_l2=error, output_floor_rel_l2=1e-3, output_reference_norm=norm)
        folder.run(found, *timed(FP32, 1e-3), torch=version)
    change = only_change(folder.trend("torch_version", "floor"))
    assert change.direction == "regressed"
    assert what(change) == ("computes something else: the fp64 output moved by at least 20%; torch 2.14.0 → 2.15.0")
