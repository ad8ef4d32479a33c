"""Tables and lines of text with titles, for a terminal, a Markdown page, anything."""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field, replace


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
