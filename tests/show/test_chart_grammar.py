"""What charts are drawn with: colours, texts and scales.

Colours are legible (WCAG 2.2, 1.4.3 for text and 1.4.11 for marks) on what they stand on, in light and in dark.
"""

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ampbench.core.precisions import PRECISIONS
from ampbench.report import page
from ampbench.report.page import drawn
from ampbench.show.charts import (
    DASHED,
    LOOKS,
    OWN,
    Chart,
    budget_rule,
    colour_rules,
    colour_variables,
    label_expression,
    precision_encoded,
    tooltip,
)
from ampbench.show.page import LONGEST, breakable, fit, fitted

SPARE = [f"own-{place}" for place in range(1, len(OWN) + 1)]
CSS = (Path(page.__file__).parent / "assets" / "report.css").read_text(encoding="utf-8")


def variables(scheme: str) -> dict[str, str]:
    """Return the colours of a scheme by name, as the style sheet declares them."""
    light, dark = CSS.split("prefers-color-scheme: dark", 1)
    declared = re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})\b", light if scheme == "light" else dark.split("*,")[0])
    assert declared
    return dict(declared) | precisions(scheme)


def precisions(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#\w{6});", colour_variables(dark=scheme == "dark")))


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_every_precision_has_a_colour_in_both_schemes_and_a_shape_of_its_own():
    assert set(precisions("light")) == set(precisions("dark")) == {*PRECISIONS, *SPARE}
    shapes = [shape for _, _, shape in (*LOOKS.values(), *OWN)]
    assert len({*shapes}) == len(shapes)
    assert "wedge" not in shapes  # so thin that nobody sees it beside the others
    for scheme in ("light", "dark"):
        assert len(set(precisions(scheme).values())) == len(shapes)


@pytest.mark.parametrize(
    ("scheme", "name"), [(one, name) for one in ("light", "dark") for name in (*PRECISIONS, *SPARE)]
)
def test_marks_of_a_precision_stand_out_from_what_they_are_on(scheme: str, name: str):
    colours = variables(scheme)
    assert contrast(colours[name], colours["card"]) >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "quiet", "link", "regressed", "improved", "inconclusive"])
@pytest.mark.parametrize("behind", ["page", "card", "stripe"])
def test_text_is_legible(scheme: str, name: str, behind: str):
    colours = variables(scheme)
    assert contrast(colours[name], colours[behind]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_warning_is_legible_on_its_own_ground(scheme: str):
    colours = variables(scheme)
    assert contrast(colours["ink"], colours["inconclusive-back"]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_outlines_and_the_focus_ring_stand_out(scheme: str):
    colours = variables(scheme)
    for name in ("faint", "focus"):
        assert contrast(colours[name], colours["card"]) >= 3


def test_only_precisions_that_exist_are_encoded_in_the_order_of_every_table():
    encoding = precision_encoded(["bf16_pure", "fp32", "fp32"])
    assert encoding["color"]["scale"] == {"domain": ["fp32", "bf16_pure"], "range": ["var(--fp32)", "var(--bf16_pure)"]}
    assert encoding["shape"]["scale"] == {"domain": ["fp32", "bf16_pure"], "range": ["circle", "triangle-down"]}


def test_a_precision_of_a_users_own_takes_a_colour_that_is_left_and_comes_last():
    encoding = precision_encoded(["int8", "fp32", "a);}"])
    assert encoding["color"]["scale"]["domain"] == ["fp32", "a);}", "int8"]
    assert encoding["color"]["scale"]["range"] == ["var(--fp32)", "var(--own-1)", "var(--own-2)"]
    assert encoding["shape"]["scale"]["range"] == ["circle", OWN[0][2], OWN[1][2]]


def test_more_of_them_than_there_are_colours_are_grey():
    encoding = precision_encoded([f"own{number}" for number in range(5)])
    assert encoding["color"]["scale"]["range"][-2:] == ["var(--faint)"] * 2


def test_what_is_marked_with_a_precision_has_its_colour():
    for name in PRECISIONS:
        assert f'[data-precision="{name}"] {{ --c: var(--{name}); }}' in colour_rules()


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(ANY_TEXT, children, max_size=4),
    max_leaves=12,
)


def unfit(text: str) -> list[str]:
    """Return the characters that turn text around, control a terminal or a parser, or are halves of one."""
    return [
        character
        for character in text
        if (unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n")
        or unicodedata.bidirectional(character) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
        or character in "\u200b\u200e\u200f\u061c\ufeff"
    ]


def test_ordinary_text_is_left_as_it_is():
    for text in (
        "",
        "mlp[width=512]",
        "naïve — “quoted”",
        "日本語",
        "שלום",
        "👩‍💻",
        "two\nlines\tand a tab",
        "<b>&amp;",
    ):
        assert fit(text) == text


def test_a_character_that_turns_the_text_around_is_written_out():
    assert fit("safe\u202ecod.exe") == "safe\\u202ecod.exe"


def test_control_characters_and_halves_of_characters_are_written_out():
    assert fit("a\x00b\x1b[31m\r\ud800") == "a\\x00b\\x1b[31m\\r\\ud800"


def test_long_text_is_cut_and_says_how_long_it_was():
    cut = fit("x" * 1_000_000)
    assert len(cut) == LONGEST
    assert cut.endswith("x… (1,000,000 characters)")


def test_text_that_grows_when_written_out_is_cut_too():
    assert len(fit("\u202e" * LONGEST)) == LONGEST


@given(st.text(st.characters(exclude_categories=()), max_size=300).map(lambda text: text * 12))
def test_what_is_fit_has_no_unfit_character_is_short_and_stays_as_it_is(text: str):
    once = fit(text)
    assert not unfit(once)
    assert len(once) <= LONGEST
    assert fit(once) == once
    once.encode("utf-8")


@given(PLAIN)
def test_every_text_in_nested_data_is_made_fit(value: object):
    written = json.dumps(fitted(value), ensure_ascii=False)
    assert not unfit(written.replace("\\u", ""))
    written.encode("utf-8")


def test_markup_numbers_and_none_are_left_as_they_are():
    markup = Markup("<b>\u202e</b>")
    assert fitted(markup) is markup
    assert fitted([1, 2.5, None, True, (3, "a")]) == [1, 2.5, None, True, [3, "a"]]


def test_a_name_may_break_after_its_joints_alone_and_is_escaped():
    assert breakable("mobilenet_v3_large[batch=8,width=<b>]") == Markup(
        "mobilenet_<wbr>v3_<wbr>large[<wbr>batch=8,<wbr>width=&lt;b&gt;]"
    )
    assert breakable("a, b/c_") == Markup("a, b/<wbr>c_")
    assert breakable("a\u202eb") == Markup("a\\u202eb")


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
    assert budget_rule(limit) == []


def test_a_budget_is_a_dashed_line_with_its_name():
    rule, text = budget_rule(0.02)
    assert rule["mark"] == DASHED
    assert rule["encoding"]["y"]["field"] == "limit"
    assert text["data"]["values"] == [{"limit": 0.02, "text": "error budget 0.02"}]
