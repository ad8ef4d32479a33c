"""What charts are drawn with: colours, texts and scales.

Colours are legible (WCAG 2.2, 1.4.3 for text and 1.4.11 for marks) on what they stand on, in light and in dark.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ampbench.core.precisions import PRECISIONS as EVERY
from ampbench.report import page
from ampbench.report.page import LONGEST, breakable, fit, fitted
from ampbench.show.charts import colour_variables, looks_encoded

PRECISIONS = [name for name, row in EVERY.items() if not row.emulated]
"""Those with a look of their own; others take the next of some."""
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


def test_other_names_take_the_next_colours_and_shapes():
    encoding = looks_encoded("precision", ["fp32", "a);}", "int8"])
    assert encoding["color"]["scale"]["domain"] == ["fp32", "a);}", "int8"]
    assert encoding["color"]["scale"]["range"] == ["var(--fp32)", "var(--series-1)", "var(--series-2)"]


def test_control_characters_and_halves_of_characters_are_written_out():
    assert fit("a\x00b\x1b[31m\r\ud800") == "a\\x00b\\x1b[31m\\r\\ud800"


@given(st.text(st.characters(exclude_categories=()), max_size=300).map(lambda text: text * 12))
def test_fit_text_is_short_encodable_and_stays_as_it_is(text: str):
    once = fit(text)
    assert len(once) <= LONGEST
    assert all(character.isprintable() or character in "\n\t" for character in once)
    assert fit(once) == once
    assert fitted({text: [text]}) == {once: [once]}


def test_a_name_may_break_after_its_joints_alone_and_is_escaped():
    assert breakable("mobilenet_v3_large[batch=8,width=<b>]") == Markup(
        "mobilenet_<wbr>v3_<wbr>large[<wbr>batch=8,<wbr>width=&lt;b&gt;]"
    )
    assert breakable("a, b/c_") == Markup("a, b/<wbr>c_")
    assert breakable("a\u202eb") == Markup("a\\u202eb")
