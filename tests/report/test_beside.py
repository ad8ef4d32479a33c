"""Texts beside points: none covers another, a point, or leaves the drawing."""

from hypothesis import given
from hypothesis import strategies as st

from ampbench.report.views.explanation.keep_fp32 import HEIGHT, SIDES, WIDTH, sides

ACROSS, UP = (0.0, WIDTH), (0.0, HEIGHT)


def test_a_text_stands_above_and_right_of_its_point_where_there_is_room() -> None:
    assert sides([(100, 100), (300, 100)], ["1", "2"], ACROSS, UP) == ["above right", "above right"]


def test_texts_of_points_side_by_side_part() -> None:
    assert sides([(100, 100), (115, 100)], ["22", "21"], ACROSS, UP) == ["above left", "above right"]


def test_at_the_right_edge_a_text_stands_on_the_left() -> None:
    assert sides([(WIDTH, 100)], ["all 52"], ACROSS, UP) == ["above left"]


def test_where_all_sides_are_taken_a_text_is_left_out() -> None:
    assert sides([(100, 100)] * 12, ["all 5,200"] * 12, ACROSS, UP)[-1] is None


def test_points_that_share_all_stand_in_the_middle() -> None:
    assert sides([(1.0, 5.0)], ["none"], (1.0, 1.0), (5.0, 5.0)) == ["above right"]


def test_without_points_there_is_nothing_to_place() -> None:
    assert sides([], [], ACROSS, UP) == []


@given(st.lists(st.tuples(st.floats(0, WIDTH), st.floats(0, HEIGHT)), min_size=1, max_size=8))
def test_no_two_points_far_apart_lose_their_texts(places: list[tuple[float, float]]) -> None:
    found = sides(places, ["12"] * len(places), ACROSS, UP)
    assert set(found) <= {*SIDES, None}
    assert found[0] is not None or len(places) > 1
