import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from ampbench.report.drawing import LONGEST, breakable, fit, fitted

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
