import base64
import gzip
import json
from typing import Any
from xml.etree import ElementTree

import pytest

from ampbench.report import page
from ampbench.report.views import View
from ampbench.show.charts import Chart, Choice, Rows
from ampbench.show.page import LONGEST, Part

SVG = "{http://www.w3.org/2000/svg}"
SPEC = {
    "mark": "point",
    "encoding": {
        "x": {"field": "speed", "type": "quantitative"},
        "y": {"field": "name", "type": "nominal"},
        "color": {"field": "name", "type": "nominal"},
    },
}


def make_chart(**changes: Any) -> Chart:
    fields: dict[str, Any] = {"id": "a", "title": "Speed", "alt": "b is fastest", "spec": SPEC, "dataset": "rows"}
    return Chart(**fields | changes)


def make_view(*made: Chart, **datasets: Rows) -> View:
    return View(id="view", title="A view", parts=[Part(id="part", title="", charts=made, datasets=datasets)])


def unpacked(payload: str) -> dict[str, Any]:
    """Return what the browser reads."""
    found: dict[str, Any] = json.loads(payload)
    return found


def texts(svg: str) -> list[str]:
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


ROWS = [{"name": "b", "speed": 2.0}, {"name": "c", "speed": 1.5}]


def test_a_chart_is_an_image_with_its_title_and_finding_as_its_text():
    drawn = ElementTree.fromstring(page.drawn(make_chart(), ROWS))
    assert drawn.tag == f"{SVG}svg"
    assert (drawn.get("role"), drawn.get("aria-label")) == ("img", "Speed. b is fastest")


def test_the_text_of_a_chart_is_escaped_and_made_fit():
    alt = '"><img src=x onerror=alert(1)> & \u202e' + "x" * 5000
    label = ElementTree.fromstring(page.drawn(make_chart(alt=alt), ROWS)).get("aria-label")
    assert label is not None
    assert label.startswith('Speed. "><img src=x onerror=alert(1)> & \\u202exxx')
    assert len(label) == LONGEST


@pytest.mark.parametrize(
    "name",
    [
        '<b>&amp;"quoted"\'',
        "</text><script>alert(1)</script>",
        "datum.x",
        "${alert(1)}",
        "]]>",
        "<!--",
        "a.b[0]",
        "\u202eab",
    ],
)
def test_a_name_in_the_data_reaches_axis_and_legend_as_text_alone(name: str):
    svg = page.drawn(make_chart(), [{"name": name, "speed": 2.0}, *ROWS])
    shown = name.replace("\u202e", "\\u202e")[:12]  # a long one is cut
    assert len([text for text in texts(svg) if text.startswith(shown)]) == 2  # at the axis and in the legend
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "g", "path", "text", "rect", "line", "defs", "clipPath", "title"}


def test_a_name_is_not_an_address_nor_an_attribute():
    svg = page.drawn(make_chart(), [{"name": '" onload="alert(1)', "speed": 2.0}])
    for element in ElementTree.fromstring(svg).iter():
        assert not [name for name in element.attrib if name.startswith("on") or name.endswith("href")]


def test_a_chart_without_rows_and_one_with_gaps_are_drawn():
    assert ElementTree.fromstring(page.drawn(make_chart(), [])).tag == f"{SVG}svg"
    gaps: list[dict[str, Any]] = [{"name": None, "speed": None}, {"name": "b", "speed": None}, *ROWS]
    assert "c" in texts(page.drawn(make_chart(), gaps))


def test_only_the_first_of_the_choices_is_drawn():
    rows = [{"name": f"{kind}{number}", "speed": 1.0, "kind": kind} for kind in ("cpu", "gpu") for number in range(3)]
    choices = (Choice(value="gpu", label="GPU", alt="gpu0 leads."), Choice(value="cpu", label="CPU", alt="cpu2 leads."))
    drawn = page.drawn(make_chart(choose="kind", choices=choices), rows)
    assert ElementTree.fromstring(drawn).get("aria-label") == "Speed. gpu0 leads. b is fastest"
    found = texts(drawn)
    assert "gpu0" in found
    assert "cpu0" not in found


def test_a_browser_gets_the_specification_and_the_data_by_column():
    choices = (Choice(value="b", label="only b", alt="b takes 2 s"),)
    view = make_view(make_chart(choose="name", choices=choices), rows=ROWS, other=[])
    found = unpacked(page.chart_payload([view]))
    assert found["datasets"] == {"rows": {"name": ["b", "c"], "speed": [2.0, 1.5]}, "other": {}}
    chart = found["charts"]["a"]
    assert (chart["dataset"], chart["choose"], chart["choices"]) == (
        "rows",
        "name",
        [["b", "only b", "b takes 2 s", []]],
    )
    assert chart["spec"] == json.loads(json.dumps(page.specification(make_chart())))
    assert "data" not in chart["spec"]


def test_every_text_for_a_browser_is_made_fit():
    rows = [{"name": "a\u202eb\x00\ud800" + "x" * 10_000, "speed": 1.0}]
    name = unpacked(page.chart_payload([make_view(make_chart(), rows=rows)]))["datasets"]["rows"]["name"][0]
    assert name.startswith("a\\u202eb\\x00\\ud800")
    assert len(name) == LONGEST


def test_the_same_views_are_packed_the_same():
    view = make_view(make_chart(), rows=ROWS)
    assert page.chart_payload([view]) == page.chart_payload([view])
    assert gzip.decompress(base64.b64decode(page.packed("naïve 日本"))).decode() == "naïve 日本"


def test_two_charts_or_datasets_of_one_name_are_refused():
    view = make_view(make_chart(), rows=ROWS)
    with pytest.raises(ValueError, match="two datasets are called rows"):
        page.chart_payload([view, make_view(rows=ROWS)])
    with pytest.raises(ValueError, match="two charts are called a"):
        page.chart_payload([view, make_view(make_chart(dataset="others"), others=ROWS)])


def test_a_number_that_is_not_finite_is_refused_rather_than_sent():
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.chart_payload([make_view(make_chart(), rows=[{"name": "b", "speed": float("nan")}])])


def test_rows_of_other_names_than_the_first_are_refused():
    with pytest.raises(ValueError, match="rows of a dataset differ in their names: odd"):
        page.chart_payload([make_view(make_chart(), rows=[*ROWS, {**ROWS[0], "odd": 1}])])


def test_a_browser_gets_as_many_digits_as_a_screen_can_show():
    rows = [{"name": "b", "speed": 1.23456789e-7, "count": 123_456_789, "ok": True}]
    found = unpacked(page.chart_payload([make_view(make_chart(), rows=rows)]))["datasets"]["rows"]
    assert found == {"name": ["b"], "speed": [1.2346e-7], "count": [123_456_789], "ok": [True]}


@pytest.mark.parametrize(
    ("name", "places"),  # as many places to begin at as are cut in different ones
    [
        ("experiments_2026_vision_transformer_\U0001f680" + "x" * 30, 12),
        ("\U0001f680" * 60, 1),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 20, 5),
    ],
    ids=["one", "many", "families"],
)
def test_a_label_that_is_cut_has_no_half_of_a_character(name: str, places: int):
    svg = page.drawn(make_chart(), [{"name": name[place:], "speed": 2.0} for place in range(places)])
    assert not any("\ud800" <= one <= "\udfff" or one > "\uffff" for one in svg.partition(">")[2])
    seen = unpacked(page.chart_payload([make_view(make_chart(), rows=[{"name": name, "speed": 2.0}])]))
    assert r"\U0001f" in seen["datasets"]["rows"]["name"][0]
