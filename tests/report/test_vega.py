import re

import pytest

from ampbench.report.drawing import DASHED, Chart, budget_rule, label_expression, tooltip
from ampbench.report.page import drawn


def label(unit: str, value: float) -> str:
    """Return how an axis of the unit writes a value."""
    axis = {"labelExpr": label_expression(unit), "values": [value]}
    x = {"field": "x", "type": "quantitative", "axis": axis, "scale": {"domain": [value / 2, value * 2]}}
    spec = {"mark": "point", "encoding": {"x": x}}
    svg = drawn(Chart(id="a", title="a", alt="a", spec=spec, dataset="a"), [{"x": value}])
    found = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    return str(found[0])


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 120.0, "2 min"),
        ("s", 1.25, "1.25 s"),
        ("s", 1.25e-3, "1.25 ms"),
        ("s", 12e-6, "12 us"),
        ("s", 1.5e-9, "1.5 ns"),
        ("B", 3 * 1024**2, "3 MiB"),
        ("B", 512.0, "512 B"),
        ("ratio", 2.5, "2.5x"),
        ("share", 0.125, "12.5%"),
        ("items/s", 1500.0, "1.5k"),
    ],
)
def test_an_axis_writes_a_number_as_the_page_does(unit: str, value: float, text: str):
    assert label(unit, value) == text


def test_a_tooltip_tells_fields_under_their_titles():
    assert tooltip(a="first") == [{"field": "a", "type": "nominal", "title": "first"}]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_budget_that_no_log_axis_has_a_place_for_is_not_drawn(limit: float):
    assert budget_rule(limit, "y") == []


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_budget_is_a_dashed_line_with_its_name(axis: str):
    rule, text = budget_rule(0.02, axis)  # type: ignore[arg-type]
    assert rule["mark"] == DASHED
    assert rule["encoding"][axis]["field"] == "limit"
    assert text["data"]["values"] == [{"limit": 0.02, "text": "error budget 0.02"}]
