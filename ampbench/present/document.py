"""Tables and lines of text with titles, for a terminal, Markdown and the report.

Tables and lines of text with titles, for a terminal, a Markdown page, anything.

Text and tables in GitHub's Markdown, where names and reasons of unknown origin stay text.
"""

import re
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape


@dataclass(frozen=True, slots=True)
class Block:
    """A table with a title; without rows, the title is all there is to say. `note` explains the title.

    Columns whose headers are among `numbers` stand to the right and stay on one line.
    """

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""
    numbers: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks about one thing."""

    title: str
    blocks: list[Block] = field(default_factory=list)


def as_sentence(text: str, names: Container[str] = ()) -> str:
    """Return a phrase with a full stop and a capital first letter, unless it begins with a name: "fp16", "a_b", "a.b".

    `names` are others that it may begin with, before a colon or a comma.
    """
    word = text.partition(" ")[0]
    named = text.partition(":")[0].split(", ")[0] in names
    named = named or "." in word[:-1] or any(character.isdigit() or character == "_" for character in word)
    return f"{text[:1] if named else text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def with_rest(block: Block, total: int) -> Block:
    """Return a block that shows the first of `total` rows, with a note that says so and how to list all."""
    if len(block.rows) == total:
        return block
    note = f"{len(block.rows):,} of {total:,}, --all lists the rest"
    return replace(block, note="; ".join(filter(None, [block.note, note])))


def first_rows(block: Block, most: int) -> Block:
    """Return a block with its first `most` rows, which says so if it has more."""
    return with_rest(replace(block, rows=block.rows[:most]), len(block.rows))


LONGEST = 500
"""So many characters of a text are shown: a comment on GitHub holds 65,536, and no reason needs more."""

_SPECIAL = re.compile(
    r"[\\`*|~$]"  # code, emphasis, columns, struck-out text, formulas
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # a tag or a character's name; "<0.01%" is none
    r"|](?=\()"  # the end of a link's text
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # emphasis; within a word an underscore is none
)
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def escaped(text: str) -> str:
    """Return `text` as one line of Markdown that shows it as it is, cut at `LONGEST` characters.

    Characters without a shape (control characters, those that turn the direction of writing) are written out, and
    nobody is notified of a name behind an @.
    """
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[:LONGEST]}… ({len(line):,} characters)"
    line = _MENTION.sub("@&#8203;", _SPECIAL.sub(r"\\\g<0>", line))
    return written_out(line)


def written_out(text: str, keep: str = "") -> str:
    """Return `text` with every character that has no shape spelled as in Python, `\\x1b`, but for those to `keep`.

    These are control characters, which command a terminal, and those that turn the direction of writing.
    """
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return a Markdown table, a line per row; the first column and those named in `left` stand left, others right."""
    rule = [":--" if place == 0 or name in left else "--:" for place, name in enumerate(headers)]
    head, *cells = ([escaped(cell) for cell in row] for row in (headers, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def folded(title: str, text: str) -> str:
    """Return `text` behind a line that unfolds it."""
    return f"<details><summary>{escape(title)}</summary>\n\n{text}\n\n</details>"
