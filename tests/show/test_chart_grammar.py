"""What charts are drawn with: colours, texts and scales.

Colours are legible (WCAG 2.2, 1.4.3 for text and 1.4.11 for marks) on what they stand on, in light and in dark.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ampbench.core.precisions import PRECISIONS
from ampbench.report import page
from ampbench.report.page import LONGEST, breakable, drawn, fit, fitted
from ampbench.show.charts import (
    Chart,
    Picture,
    colour_rules,
    colour_variables,
    label_expression,
    looks_encoded,
    speed_layers,
)

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


FURTHER = [f"series-{place}" for place in range(1, 8)]


def test_every_precision_has_a_colour_in_both_schemes_and_a_shape_of_its_own():
    assert set(precisions("light")) == set(precisions("dark")) == {*PRECISIONS}
    encoding = looks_encoded("precision", [*PRECISIONS, "fp64", *"abcdefg"])
    for channel in ("color", "shape"):
        looks = encoding[channel]["scale"]["range"]
        assert len({*looks}) == len(looks)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", [*PRECISIONS, *FURTHER, "dtype-fp64", "faint", "focus"])
def test_marks_stand_out_from_the_card_that_they_are_on(scheme: str, name: str):
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


def test_other_names_take_the_next_colours_and_shapes():
    encoding = looks_encoded("precision", ["fp32", "a);}", "int8"])
    assert encoding["color"]["scale"]["domain"] == ["fp32", "a);}", "int8"]
    assert encoding["color"]["scale"]["range"] == ["var(--fp32)", "var(--series-1)", "var(--series-2)"]


def test_what_is_marked_with_a_precision_has_its_colour():
    for name in PRECISIONS:
        assert f'[data-precision="{name}"] {{ --c: var(--{name}); }}' in colour_rules()


@pytest.mark.parametrize("text", ["", "mlp[width=512]", "naïve — “quoted”", "日本語", "שלום", "👩", "a\n\tb", "<b>&"])
def test_ordinary_text_is_left_as_it_is(text: str):
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
def test_fit_text_is_short_encodable_and_stays_as_it_is(text: str):
    once = fit(text)
    assert len(once) <= LONGEST
    assert all(character.isprintable() or character in "\n\t" for character in once)
    assert fit(once) == once
    assert fitted({text: [text]}) == {once: [once]}


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
    picture = Picture(spec=spec, rows=[{"x": value}])
    svg = drawn(Chart(id="a", title="a", alt="a", pictures=[picture]), picture)
    found = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    return str(found[0])


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 1.25, "1.25s"),
        ("s", 1.25e-3, "1.25ms"),
        ("s", 12e-6, "12µs"),
        ("B", 3 * 1024**2, "3 MiB"),
        ("ratio", 2.5, "2.5x"),
        ("share", 0.125, "12.5%"),
        ("items/s", 1500.0, "1.5k"),
    ],
)
def test_an_axis_writes_a_number_in_its_unit(unit: str, value: float, text: str):
    assert label(unit, value) == text


@pytest.mark.parametrize(("limit", "count"), [(0.02, 2), (0.0, 0), (float("inf"), 0), (float("nan"), 0)])
def test_a_budget_is_drawn_where_a_log_axis_has_a_place_for_it(limit: float, count: int):
    layers = speed_layers([{"speed": 1.0, "low": None, "high": None, "precision": "fp32"}], limit)
    lines = [layer for layer in layers if layer["encoding"]["y"].get("field") == "limit"]
    assert len(lines) == count
    assert all(layer["data"]["values"][0]["text"] == "error budget 0.02" for layer in lines)
