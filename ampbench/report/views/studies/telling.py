"""Sections of what studies found, as details of the page, and tables of all cases."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.blocks import Block, Section, as_sentence
from ampbench.report.views.part import LISTED, Detail, Part, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A table of all cases: its `caption`, its `headers` behind that of the names, and for each row name and cells.

    A cell of several lines is a list. `numbers` are headers of columns of numbers, `wide` of those of sentences.
    """

    caption: str
    headers: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str | Sequence[str]]]]
    first: str = "case"
    numbers: Collection[str] = ()
    wide: Collection[str] = ()


def detail_of(name: str, section: Section, folded: Collection[str] = ()) -> Detail:
    """Return what a section says of a case: its first line beside the name, its tables cut, those of `folded` folded.

    A table is folded where its title begins with one of `folded`.
    """
    lines = [line_of(block) for block in section.blocks if not block.headers]
    tables = [cut(block) for block in section.blocks if block.headers]
    hidden = [block for block in tables if block.title.startswith(tuple(folded))] if folded else []
    return Detail(
        name=name,
        said=lines[0].title if lines else section.title,
        blocks=[*lines[1:], *(block for block in tables if block not in hidden)],
        folded={block.title: [block] for block in hidden},
    )


def with_overview(part: Part, overview: Overview) -> Part:
    """Return a part with a table of all cases where there are several."""
    if len({name for name, _ in overview.rows}) < 2:
        return part
    rows: list[Mapping[str, Any]] = [
        {"name": name, "cells": [[cell] if isinstance(cell, str) else list(cell) for cell in cells]}
        for name, cells in overview.rows[:LISTED]
    ]
    content = {**part.content, "rows": rows, "overview": overview}
    return replace(part, content=content, left_out=max(part.left_out, len(overview.rows) - LISTED))


def line_of(block: Block) -> Block:
    """Return a line of text; some sections give it as the note of an empty title."""
    return block if block.title else Block(as_sentence(block.note))
