"""Text of unknown origin (names, reasons, environment strings) made fit to stand on a page.

Escaping is the template engine's; here goes what HTML lets through and a reader should not meet: characters that turn
the direction of the text around them, control characters, halves of characters, megabytes.
"""

import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup, escape

LONGEST = 2000
"""A text takes so many characters at most, the note of how many there were among them."""

_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"  # direction (Unicode UAX 9), invisible characters
    "\ud800-\udfff\ufffe\uffff]"
)

_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_JOINT = re.compile(r"[_/\[,](?=\w)")


def fit(text: str) -> str:
    """Return `text` with unfit characters written out ("\\u202e") and cut to `LONGEST`; what is fit stays as it is."""
    if text.isprintable() and len(text) <= LONGEST:  # nearly all are; Python counts every unfit character as not
        return text
    written = _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), text[: LONGEST + 1])
    if len(written) <= LONGEST:
        return written
    note = f"… ({len(text):,} characters)"
    return written[: LONGEST - len(note)] + note


def breakable(text: str) -> Markup:
    """Return a name or a path as markup whose lines may end after "_", "/", "[" and ",": there rather than anywhere."""
    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(fit(text)))))


def drawable(text: str) -> str:
    """Return `text` fit for a chart, whose labels are cut between two halves of a character: those have none left.

    Vega counts in units of UTF-16, so every character that takes two of them is written out ("\\U0001f680").
    """
    return fit(_TWO_UNITS.sub(lambda found: found[0].encode("unicode_escape").decode(), text))


def fitted(value: Any, made: Callable[[str], str] = fit) -> Any:
    """Return plain nested data with every text in it, keys among them, `made` fit; markup is left as it is."""
    if value is None or isinstance(value, Markup | int | float):
        return value
    if isinstance(value, str):
        return made(value)
    if isinstance(value, dict):
        return {fitted(key, made): fitted(item, made) for key, item in value.items()}
    return [fitted(item, made) for item in value] if isinstance(value, list | tuple) else value
