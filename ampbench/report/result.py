"""What a report says first (the verdict or the advice, what changed, what has no result) and, as Markdown, in short.

Beside numbers stands what no reader of the runs may miss (`warnings`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from ampbench import __version__
from ampbench.core.units import all_of, counted
from ampbench.judge import frame, notes
from ampbench.records.kinds import KINDS
from ampbench.records.labels import few
from ampbench.report.facts import contents, facts, first_finding, over_versions, parts
from ampbench.report.material import Material
from ampbench.report.networks import advised_machines, network_sections
from ampbench.report.networks import heading as heading_of
from ampbench.show import comparison as sentences
from ampbench.show.document import Block, Section, as_sentence, block_text, cut, escaped
from ampbench.show.networks import missing
from ampbench.show.page import Part, View
from ampbench.show.wording import lines
from ampbench.trend.show import trend_document

NAMED = 3
"""So many runs of which the same is to be said are named."""


def warnings(material: Material) -> list[str]:
    """Return what no reader may miss, each once and, where there are several runs, with those that it is said of."""
    several = len(material.shown) > 1
    failed = sum(case.row["outcome"] == "failed" for case in material.cases)
    warned = [f"{failed:,} of {counted(len(material.cases), 'case')} failed"] if failed else []
    for shown in material.shown:
        which = f"{shown.name}: " if several else ""
        if shown.comparison is not None:
            warned += [f"{which}{one}" for one in sentences.warnings(shown.comparison)]
        elif not shown.stored.complete:
            warned.append(f"run {shown.stored.header.run} is not complete: {shown.stored.ending}")
    sides = [(shown.name if several else "candidate", shown.notes) for shown in material.shown]
    if material.baseline is not None:
        sides.insert(0, ("baseline", _of_baseline(material)))
    said: dict[str, list[str]] = {}
    for side, found in sides:
        for note in found:
            said.setdefault(note, []).append(side)
    warned += [text if len(of) == len(sides) else f"{few(of, NAMED)}: {text}" for text, of in said.items()]
    return list(dict.fromkeys([*warned, *material.remarks]))


def _of_baseline(material: Material) -> list[str]:
    """Return the notes of the baseline, as far as its cases are compared."""
    baseline = material.baseline
    assert baseline is not None
    compared = {one for shown in material.shown for one in shown.partners.values()}
    rows = [row for row in frame.run_rows(baseline) if row["case_id"] in compared]
    return lines(notes.statements(baseline, rows), baseline.cases, everything=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a report says first.

    `about` is a sentence on what a page is about whose heading is what a study found, "" of others. `comparisons` have
    a section each, and `missing` are cases without a result.
    """

    heading: str
    about: str
    warnings: Sequence[str]
    comparisons: Sequence[Section]
    missing: Block
    facts: Mapping[str, Sequence[str]]


def banner(material: Material) -> View:
    """Return the view: the page's heading is its verdict or its advice."""
    told = result(material)
    content = {field.name: getattr(told, field.name) for field in fields(told)}
    return View(id="result", title="Result", template="banner.html", content=content, leads=True)


def result(material: Material) -> Result:
    """Return what the report of `material` says first."""
    about = ""
    if material.comparisons:
        heading = sentences.verdict(*material.comparisons)
    elif any(one.row["outcome"] == "ok" for one in material.cases):
        heading = heading_of(advised_machines(material))
    else:
        heading, about = _unmeasured(material)
    versions = {one.stored.header.environment.torch_version for one in material.shown}
    if over_versions(material) and len(versions) == 1 and "" not in versions and not about:
        heading = f"with torch {versions.pop()}: {heading}"  # of a history, it is that of one version
    names = {one.name for one in material.shown}
    return Result(
        heading=heading if about else heading[:1].upper() + heading[1:],
        about=about,
        warnings=[as_sentence(one, names) for one in warnings(material)],
        comparisons=[
            Section(section.title, list(map(cut, section.blocks)))
            for section in map(sentences.comparison_section, (*material.comparisons, *material.explained))
        ],
        missing=missing(one.row for one in material.cases),
        facts=facts(material),
    )


def _unmeasured(material: Material) -> tuple[str, str]:
    """Return the heading where no case was measured, and what the page is about where that is what a study found."""
    if said := _without_result(Counter(one.row["outcome"] for one in material.cases)):
        return f"nothing was measured: {said}", ""
    if explained := contents(material):
        if found := first_finding(material):
            return found, f"This page is about {all_of(explained)}."
        if any(KINDS[one.header.explains].group != "explain" for one in material.explanations):
            return f"this page is about {all_of(explained)}", ""
        return f"nothing was measured; this page explains {all_of(explained)}", ""
    ended = Counter[str]()
    for run in material.explanations:
        ended.update(failed=len(run.failures), skipped=len(run.skips))
    return f"nothing was measured: {_without_result(ended) or 'there are no cases'}", ""


def _without_result(outcomes: Counter[str]) -> str:
    """Return how many cases failed and how many were skipped; "" where none did."""
    return ", ".join(f"{counted(outcomes[name], 'case')} {name}" for name in ("failed", "skipped") if outcomes[name])


LONGEST = 65_536
"""The most characters of a comment on GitHub."""
ROWS = 100
"""The most rows of a table in Markdown; the page has all."""
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
    for section in network_sections(material):
        for block in section.blocks:
            title = ": ".join(filter(None, [section.title, block.title]))
            yield replace(block, title=title, folded=quiet or block.folded) if block.headers else block
    yield said.missing
    for _, part in parts(material):
        yield replace(_of_study(part), folded=quiet)
    for trend in material.trends:
        for section in trend_document(trend, show_all=False).sections():
            yield from [Block(section.title), *section.blocks]
    yield from (block for section in said.comparisons for block in section.blocks if block.folded)


def _of_study(part: Part) -> Block:
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
