import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampbench.errors import UnknownNameError
from ampbench.instruments.keep_fp32.records import SearchSpace, Unit
from ampbench.instruments.keep_fp32.trials import container_units, islands, units_of
from tests.instruments.keep_fp32.planted_spaces import blocks_of, space_of

NET = space_of(["stem", "layer1.a", "layer1.b", "layer10.conv", "layer10.deep.x", "layer10.deep.y", "fc"])


def space_with(*units: list[str], containers: list[str]) -> SearchSpace:
    return SearchSpace(case_id="c", units=[Unit(modules=one, kind="Linear") for one in units], containers=containers)


def test_no_unit_kept_names_nothing():
    assert islands(NET, frozenset()) == []


def test_all_units_kept_name_the_network():
    assert islands(NET, set(range(7))) == [""]


def test_a_network_that_is_one_module_is_named_as_the_network():
    space = space_with([""], containers=[])
    assert islands(space, {0}) == [""]
    assert islands(space, set()) == []
    assert units_of(space, [""]) == {0}


def test_a_space_without_units_keeps_nothing():
    assert islands(space_with(containers=[""]), frozenset()) == []


def test_single_modules_are_named_in_the_order_of_running():
    assert islands(NET, {6, 0, 3}) == ["stem", "layer10.conv", "fc"]


def test_a_container_whose_units_are_all_kept_is_named_in_their_place():
    assert islands(NET, {1, 2, 6}) == ["layer1", "fc"]


def test_the_outermost_whole_container_is_named():
    assert islands(NET, {3, 4, 5}) == ["layer10"]
    assert islands(NET, {4, 5}) == ["layer10.deep"]


def test_a_container_is_not_taken_for_one_whose_name_begins_alike():
    assert islands(NET, {1, 2}) == ["layer1"]
    assert units_of(NET, ["layer1"]) == {1, 2}


def test_a_unit_of_several_modules_names_all_of_them():
    space = space_with(["embed", "head"], ["body.a"], ["body.b"], containers=["", "body"])
    assert islands(space, {0}) == ["embed", "head"]
    assert units_of(space, ["embed", "head"]) == {0}


def test_a_container_is_whole_only_with_the_units_it_shares_with_others():
    space = space_with(["a.x", "b.x"], ["a.y"], ["b.y"], ["b.z", "b.w"], containers=["", "a", "b"])
    assert islands(space, {1}) == ["a.y"]
    assert islands(space, {0, 1}) == ["a", "b.x"]
    assert islands(space, {2, 3}) == ["b.y", "b.z", "b.w"]
    assert islands(space, {0, 2, 3}) == ["a.x", "b"]


def test_a_module_that_holds_no_unit_is_no_container():
    space = space_with(["a.x"], ["b"], containers=["", "a", "unused"])
    assert container_units(space) == {"": {0, 1}, "a": {0}}
    assert islands(space, {0}) == ["a"]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown module 'layer10.cnv': did you mean layer10.conv"):
        units_of(NET, ["stem", "layer10.cnv"])


@given(st.data())
def test_the_units_of_islands_are_those_asked_for(data):
    paths = data.draw(
        st.lists(st.sampled_from([*blocks_of(12, 3), *(f"{p}.in" for p in blocks_of(6, 2))]), unique=True)
    )
    leaves = [path for path in paths if not any(other.startswith(f"{path}.") for other in paths)]
    space = space_of(leaves)
    tied = data.draw(st.integers(0, len(leaves)))
    units = [Unit(modules=leaves[:tied][::-1], kind="Linear")] * bool(tied) + space.units[tied:]
    space = SearchSpace(case_id="c", units=units, containers=space.containers)
    chosen = (
        data.draw(st.frozensets(st.integers(0, max(len(units) - 1, 0)), max_size=len(units))) if units else frozenset()
    )
    named = islands(space, chosen)
    assert units_of(space, named) == chosen
    assert len(set(named)) == len(named)
    assert not any(inner.startswith(f"{outer}.") for outer in named for inner in named)
