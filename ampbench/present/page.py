"""What a page is made of: text that is fit to stand on it, its sections, and the parts of a section.

Text of unknown origin (names, reasons, environment strings) is made fit here. Escaping is the template engine's; here
goes what HTML lets through and a reader should not meet: characters that turn the direction of the text around them,
control characters, halves of characters, megabytes.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from markupsafe import Markup, escape

from ampbench.present.charts import Chart, Rows
from ampbench.present.document import Block, Section, as_sentence
from ampbench.records.case import Case
from ampbench.store import StoredRun

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A section of the page: heading `title`, anchor `id`, `template` and the `content` that it reads by name.

    Where it `leads` the page its template writes the heading, an h1 with the id `ID-title`; else the page does.
    Names in `content` must not hide what every template is given: `view`, `views`, `sections`, `figures`.
    """

    id: str
    title: str
    template: str
    content: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    leads: bool = False


LISTED = 200
"""So many rows a part has at most, the worst or the first; a page of 10,000 cases need not repeat them all."""
DETAILED = 20
"""So many cases that a run explains, the worst or the first, are told of one by one."""
ROWS = 40
"""So many rows does a table of one case have, those that say most."""
MODULE_ROWS = 20
"""So many has one of modules where a chart shows all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[T]):
    """A case that a run explains, and what it `found` of it.

    `number` counts from 0, `name` is its short name, with its run where others share it.
    """

    number: int
    name: str
    case: Case
    run: StoredRun
    found: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A case that a run that explains could not explain, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What accounts for a case's change against the baseline, in sentences."""

    name: str
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the section: `id` is unique and names its block of the template, `content` is what that reads.

    `said` are its findings in sentences. `left_out` counts the rows that are not listed. What few look for is `folded`.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    left_out: int = 0
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What is told of one case: a line of it, what to say and show, what is folded, by title, and `code` to paste."""

    name: str
    said: str
    blocks: Sequence[Block] = ()
    folded: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    code: str = ""


def told_part(
    found: Sequence[T],
    missing: Sequence[Untold],
    *,
    id: str,
    title: str,
    said: Sequence[str],
    detail: Callable[[T], Detail],
    row: Callable[[T], Mapping[str, Any]] | None = None,
    drawn: tuple[Sequence[Chart], Mapping[str, Rows]] = ((), {}),
    changed: Sequence[Changed] = (),
) -> Part:
    """Return the part that tells of cases: of several a table with a `row` of each, if given, then some in `detail`.

    `missing` are those without a result, `changed` what differs from the baseline's, `drawn` the charts and their
    data.
    """
    listed = found[:LISTED]
    charts, datasets = drawn
    return Part(
        id=id,
        title=title,
        said=said,
        content={
            "rows": [row(one) for one in listed] if row is not None and len(found) > 1 else [],
            "cases": [detail(one) for one in found[:DETAILED]],
            "undetailed": max(len(listed) - DETAILED, 0),
            "untold": missing[:LISTED],
            "changed": changed[:LISTED],
            "overview": None,
        },
        left_out=sum(max(len(each) - LISTED, 0) for each in (found, missing, changed)),
        charts=charts,
        datasets=datasets,
    )


def cut(block: Block, most: int = ROWS) -> Block:
    """Return a block with so many rows as a page has room for, and in its note how many there are."""
    if len(block.rows) <= most:
        return block
    note = f"{most} of {len(block.rows):,}"
    return replace(block, rows=block.rows[:most], note="; ".join(part for part in (block.note, note) if part))


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
