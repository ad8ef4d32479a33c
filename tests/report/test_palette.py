"""Colours are legible (WCAG 2.2, 1.4.3 for text and 1.4.11 for marks) on what they stand on, in light and in dark."""

import re
from pathlib import Path

import pytest

from ampbench.base.precisions import PRECISIONS
from ampbench.report import drawing

OWN = [f"own-{place}" for place in range(1, len(drawing.OWN) + 1)]
CSS = (Path(drawing.__file__).parent / "assets" / "report.css").read_text(encoding="utf-8")


def variables(scheme: str) -> dict[str, str]:
    """Return the colours of a scheme by name, as the style sheet declares them."""
    light, dark = CSS.split("prefers-color-scheme: dark", 1)
    declared = re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})\b", light if scheme == "light" else dark.split("*,")[0])
    assert declared
    return dict(declared) | precisions(scheme)


def precisions(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#\w{6});", drawing.colour_variables(dark=scheme == "dark")))


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
    assert set(precisions("light")) == set(precisions("dark")) == {*PRECISIONS, *OWN}
    shapes = [*(row.shape for row in PRECISIONS.values()), *(shape for _, _, shape in drawing.OWN)]
    assert len({*shapes}) == len(shapes)
    assert "wedge" not in shapes  # so thin that nobody sees it beside the others
    for scheme in ("light", "dark"):
        assert len(set(precisions(scheme).values())) == len(shapes)


@pytest.mark.parametrize(("scheme", "name"), [(one, name) for one in ("light", "dark") for name in (*PRECISIONS, *OWN)])
def test_marks_of_a_precision_stand_out_from_what_they_are_on(scheme: str, name: str):
    colours = variables(scheme)
    assert contrast(colours[name], colours["card"]) >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "quiet", "link", "regressed", "improved", "inconclusive", "incomparable"])
@pytest.mark.parametrize("behind", ["page", "card", "stripe"])
def test_text_is_legible(scheme: str, name: str, behind: str):
    colours = variables(scheme)
    assert contrast(colours[name], colours[behind]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["regressed", "improved", "inconclusive", "incomparable"])
def test_a_verdict_is_legible_on_its_own_ground(scheme: str, name: str):
    colours = variables(scheme)
    assert contrast(colours[name], colours[f"{name}-back"]) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_outlines_and_the_focus_ring_stand_out(scheme: str):
    colours = variables(scheme)
    for name in ("faint", "focus"):
        assert contrast(colours[name], colours["card"]) >= 3


def test_only_precisions_that_exist_are_encoded_in_the_order_of_every_table():
    encoding = drawing.encoded(["bf16_pure", "fp32", "fp32"])
    assert encoding["color"]["scale"] == {"domain": ["fp32", "bf16_pure"], "range": ["var(--fp32)", "var(--bf16_pure)"]}
    assert encoding["shape"]["scale"] == {"domain": ["fp32", "bf16_pure"], "range": ["circle", "triangle-down"]}


def test_a_precision_of_a_users_own_takes_a_colour_that_is_left_and_comes_last():
    encoding = drawing.encoded(["int8", "fp32", "a);}"])
    assert encoding["color"]["scale"]["domain"] == ["fp32", "a);}", "int8"]
    assert encoding["color"]["scale"]["range"] == ["var(--fp32)", "var(--own-1)", "var(--own-2)"]
    assert encoding["shape"]["scale"]["range"] == ["circle", drawing.OWN[0][2], drawing.OWN[1][2]]


def test_more_of_them_than_there_are_colours_are_grey():
    encoding = drawing.encoded([f"own{number}" for number in range(5)])
    assert encoding["color"]["scale"]["range"][-2:] == ["var(--faint)"] * 2


def test_what_is_marked_with_a_precision_has_its_colour():
    for name in PRECISIONS:
        assert f'[data-precision="{name}"] {{ --c: var(--{name}); }}' in drawing.colour_rules()
