"""A plan shared out without a word between those who measure it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import parse_shard, shared_out, take_shard
from ampbench.errors import UsageError
from ampbench.records.case import WorkloadSource, table_of
from ampbench.records.run import Shard
from tests.stored_runs import make_case

SOURCE = WorkloadSource(name="w", family="f", module="m", function="w", builtin=True)


def planned(workload: str, precision: str = "fp32", skip: str = "") -> PlannedCase:
    return PlannedCase(case=make_case(precision, workload=workload), source=SOURCE, skip=skip)


def plan_of(*workloads: str) -> list[PlannedCase]:
    return [planned(workload, precision) for workload in workloads for precision in ("fp32", "bf16_pure")]


def all_shards(plan: list[PlannedCase], count: int) -> list[tuple[list[PlannedCase], Shard]]:
    return [take_shard(plan, (number, count)) for number in range(1, count + 1)]


def test_every_case_is_in_one_shard_and_tables_stay_whole() -> None:
    plan = plan_of("a", "b", "c", "d", "e")
    found = all_shards(plan, 3)
    assert sorted(place for _, shard in found for place in shard.places) == list(range(len(plan)))
    assert {(shard.plan, shard.cases, shard.count) for _, shard in found} == {(found[0][1].plan, 10, 3)}
    for cases, shard in found:
        assert [plan[place] for place in shard.places] == cases
        assert len({table_of(one.case) for one in cases}) * 2 == len(cases)


def test_tables_of_which_nothing_can_run_are_in_the_first_shard() -> None:
    plan = [planned("none", skip="no loss"), *plan_of("a", "b"), planned("also", skip="no loss")]
    found = all_shards(plan, 2)
    assert {one.case.workload for one in found[0][0] if one.skip} == {"none", "also"}
    assert not [one for one in found[1][0] if one.skip]


@pytest.mark.parametrize("text", ["", "2", "2/", "/5", "a/5", "2/b", "2/5/7", "-1/5", "1.5/5", "²/5"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected I/N, as in --shard 2/5"):
        parse_shard(text)


def test_a_shard_is_typed_as_its_number_and_how_many_there_are() -> None:
    assert parse_shard("2/5") == parse_shard(" 2 / 5 ") == (2, 5)


@given(
    st.dictionaries(st.integers(), st.integers(min_value=0, max_value=10**6), max_size=40),
    st.integers(min_value=1, max_value=12),
)
def test_parts_hold_each_once_and_none_is_longer_than_need_be(seconds: dict[int, int], count: int) -> None:
    parts = shared_out(seconds, count)
    assert len(parts) == count
    assert sorted(one for part in parts for one in part) == sorted(seconds)
    lengths = [sum(seconds[one] for one in part) for part in parts]
    longest = max(seconds.values(), default=0)
    # Graham's bound for a list in any order: no part is longer than the mean and the longest piece together
    assert max(lengths) <= sum(seconds.values()) / count + longest + 1e-6
