"""Text, tables and sections in GitHub's Markdown, where names and reasons of unknown origin stay text."""

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape

from ampbench.show.document import Block, Code, Section, written_out

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


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return a Markdown table, a line per row; the first column and those named in `left` stand left, others right."""
    rule = [":--" if place == 0 or name in left else "--:" for place, name in enumerate(headers)]
    head, *cells = ([escaped(cell) for cell in row] for row in (headers, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


def block_table(block: Block) -> str:
    """Return the table of a block; its numbers stand right."""
    left = [name for name in block.headers if name not in block.numbers]
    return markdown_table(block.headers, block.rows, left=left)


def folded(title: str, text: str) -> str:
    """Return `text` behind a line that unfolds it."""
    return f"<details><summary>{escape(title)}</summary>\n\n{text}\n\n</details>"


def markdown(
    sections: Iterable[Section], level: int = 2, *, missing: Iterable[str] = (), code: Iterable[Code] = ()
) -> str:
    """Return `sections` as Markdown, with titles from `level` on, the lines of what is `missing`, then `code`."""
    parts = []
    for section in sections:
        parts.append(_heading(section.title, level))
        parts += [block_text(block, level + 1) for block in section.blocks]
    pasted = "".join(f"\n{one.title}:\n\n```python\n{one.text}```\n" for one in code)
    return "\n\n".join(filter(None, [*parts, *map(escaped, missing)])) + "\n" + pasted


def block_text(block: Block, level: int) -> str:
    """Return a block: its table under a heading of `level`, or behind it; without rows its sentence."""
    note = escaped(f"{block.note[:1].upper()}{block.note[1:]}.") if block.note else ""
    if not block.rows:
        return "\n\n".join(filter(None, [escaped(block.title), note]))
    text = "\n\n".join(filter(None, [note, block_table(block)]))
    if block.folded:
        return folded(block.title, text)
    return "\n\n".join(filter(None, [_heading(block.title, level), text]))


def _heading(title: str, level: int) -> str:
    return f"{'#' * level} {escaped(title)}" if title else ""
