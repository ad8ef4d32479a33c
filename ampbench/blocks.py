"""Tables and lines of text with titles, for a terminal, a Markdown page, anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Block:
    """A table with a title; without rows, the title is all there is to say. `note` explains the title."""

    title: str
    headers: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks about one thing."""

    title: str
    blocks: list[Block] = field(default_factory=list)
