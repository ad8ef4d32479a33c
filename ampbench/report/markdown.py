"""The report in short, as Markdown for a comment on a pull request or a job's summary."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ampbench import __version__
from ampbench.report.answers import across, advised_machines, networks
from ampbench.report.facts import parts
from ampbench.report.material import Material
from ampbench.report.result import result
from ampbench.show import page
from ampbench.show.document import Block, block_text, cut, escaped
from ampbench.show.networks import brought, tables
from ampbench.trend.show import trend_document

LONGEST = 65_536
"""So many characters does a comment on GitHub hold."""
ROWS = 100
"""A table has at most so many rows: who wants more reads the page."""
_FOOT = 400
"""Characters kept free for what is said below the tables."""


def make_markdown(material: Material) -> str:
    """Return the report as Markdown of at most `LONGEST` characters, which says what was cut.

    Its numbers and sentences are those of the page.
    """
    said = result(material)
    facts = "\n".join(f"* {name}: {escaped(' / '.join(values))}" for name, values in said.facts.items())
    head = [
        f"## {escaped(said.heading)}",
        escaped(said.about),
        *(f"> {escaped(text)}" for text in said.warnings),
        facts,
    ]
    return _assembled([text for text in head if text], _blocks(material))


def _blocks(material: Material) -> Iterator[Block]:
    """Yield the tables and sentences below the head, the most important first."""
    said, quiet = result(material), bool(material.comparisons)
    for section in said.comparisons:
        yield from [Block(section.title), *(block for block in section.blocks if not block.folded)]
    for machine in advised_machines(material):
        own = networks(machine)
        for table in [*tables(own, explained=not machine.is_ranked), brought(own)]:
            yield replace(
                table, title=": ".join(filter(None, [_place(material, machine.title), table.title])), folded=quiet
            )
        yield from map(Block, across(machine))
    yield said.missing
    for _, part in parts(material):
        yield replace(_of_study(part), folded=quiet)
    for trend in material.trends:
        for section in trend_document(trend, show_all=False).sections():
            yield from [Block(section.title), *section.blocks]
    yield from map(Block, said.said)
    yield from (block for section in said.comparisons for block in section.blocks if block.folded)


def _place(material: Material, title: str) -> str:
    return title if len(advised_machines(material)) > 1 else ""


def _of_study(part: page.Part) -> Block:
    """Return what a study says of each case, and why it says nothing of others."""
    rows = [(name, " ".join(sentences)) for name, sentences in part.sentences]
    rows += [(one.name, f"without a result: {one.reason}") for one in part.untold]
    return Block(part.title, [part.what, "found"], rows)


def _assembled(texts: list[str], blocks: Iterable[Block]) -> str:
    """Return all in one text; of what finds no room as much as does, and how much does not."""
    room = LONGEST - _FOOT - sum(len(text) + 2 for text in texts)
    lost = 0
    for block in blocks:
        if not block.headers or block.rows:
            text = _fitted(block, room)
            lost += not text
            texts += [text] if text else []
            room -= len(text) + 2 if text else 0
    if lost:
        texts.append(f"Left out to keep this short: {lost} more. The page that `ampbench report` writes has all.")
    return "\n\n".join([*texts, f"ampbench {__version__}"]) + "\n"


def _fitted(block: Block, room: int) -> str:
    """Return a block with as many rows as fit `room` characters, at most `ROWS`; "" where none does."""
    rows = min(len(block.rows), ROWS)
    while True:
        text = block_text(cut(block, rows), 3)
        if len(text) + 2 <= room:
            return text
        if rows <= 1:
            return ""
        rows = rows * 3 // 4
