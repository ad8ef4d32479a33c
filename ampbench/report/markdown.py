"""The report in short, as Markdown for a comment on a pull request or a job's summary."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ampbench import __version__
from ampbench.records.changes import Comparison
from ampbench.report.answers import Machine, across, advised_machines, networks
from ampbench.report.facts import changed, parts
from ampbench.report.material import Material
from ampbench.report.result import Result, result
from ampbench.show import page
from ampbench.show.comparison import (
    NOT_IN_TURNS,
    NOT_JUDGED,
    by_weight,
    case_names,
    findings_table,
    means_block,
    measured_lines,
)
from ampbench.show.markdown import block_table, escaped, folded
from ampbench.show.networks import NOTE, brought, tables
from ampbench.trend.series import Trend
from ampbench.trend.show import change_blocks, failures, has_changed_times, series_names, summary

LONGEST = 65_536
"""So many characters does a comment on GitHub hold."""
ROWS = 100
"""A part has at most so many rows: who wants more reads the page."""
FACTS = ("Run", "Label", "Measured", "Explained", "Where", "When", "With", "History")

_FOOT = 400
"""Characters kept free for what is said below the parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Lines under a `title` ("": none), of which `rows` may be cut from the end and are called `what`.

    `head` lines stand above the rows without a blank line, as a table's head does. A `quiet` part is folded away.
    """

    rows: Sequence[str]
    what: str
    title: str = ""
    head: Sequence[str] = ()
    quiet: bool = False


def make_markdown(material: Material) -> str:
    """Return the report as Markdown of at most `LONGEST` characters, which says what was cut.

    Its numbers and sentences are those of the page.
    """
    said = result(material)
    return _assembled([f"## {escaped(said.heading)}"], _parts(material, said))


def _parts(material: Material, said: Result) -> Iterator[Part]:
    """Yield the parts, what matters most first."""
    yield Part(rows=_paragraphs([said.about] if said.about else []), what="sentences")
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in said.counts)
    yield Part(rows=[f"Verdicts on time, memory, accuracy and outcome: {counts}"] if counts else [], what="counts")
    yield Part(rows=_paragraphs(said.warnings, "> "), what="warnings")
    told = [(name, said.facts[name]) for name in FACTS if name in said.facts]
    yield Part(rows=[f"* {name}: {escaped(' / '.join(values))}" for name, values in told], what="facts")
    sides = [f"{escaped(each.baseline)} → {escaped(each.candidate)}\n" for each in said.sides]
    yield Part(rows=sides, what="comparisons")
    comparisons = material.comparisons
    for comparison in comparisons:
        yield from _changes(comparison, several=len(comparisons) > 1)
    yield Part(
        title="Why",
        rows=[f"* {escaped(one.name)}: {escaped('; '.join(one.sentences))}" for one in changed(material)],
        what="reasons",
    )
    machines = advised_machines(material)
    quiet = bool(comparisons)
    for machine in machines:
        yield from _networks(machine, len(machines) > 1, quiet)
    if said.missing.rows:
        yield _table(block_table(said.missing), what="reasons", title=said.missing.title)
    for _, part in parts(material):
        yield _of_instrument(part, quiet)
    for trend in material.trends:
        yield from _trend(trend)
    for comparison in comparisons:
        yield from _details(comparison, several=len(comparisons) > 1)
    yield Part(rows=_paragraphs(said.said), what="notes")


def _of_instrument(part: page.Part, quiet: bool) -> Part:
    """Return what an instrument says of each case, and why it says nothing of others."""
    rows = [(name, " ".join(map(escaped, sentences))) for name, sentences in part.sentences]
    rows += [(one.name, f"without a result: {escaped(one.reason)}") for one in part.untold]
    lines = [f"* {escaped(name)}: {text}" if name else f"* {text}" for name, text in rows]
    return Part(title=part.title, rows=lines, what=part.what, quiet=quiet)


def _changes(comparison: Comparison, several: bool) -> Iterator[Part]:
    """Yield what changed, and what may have, were the control or the machine sound."""
    which = f", {comparison.baseline.run} → {comparison.candidate.run}" if several else ""
    parts, names = by_weight(comparison.findings), case_names(comparison)
    for title, found, what in (
        ("Changed", parts["changed"], "changes"),
        (NOT_JUDGED, parts["not judged"], "findings"),
    ):
        table = findings_table(found, names) if found else ""
        yield _table(table, title=f"{title}{which} ({len(found):,})", what=what)


def _details(comparison: Comparison, several: bool) -> Iterator[Part]:
    """Yield what else a comparison says, folded away."""
    which = f", {comparison.candidate.run}" if several else ""
    undecided = by_weight(comparison.findings)["undecided"]
    names = case_names(comparison)
    means = block_table(means_block(comparison)) if comparison.means else ""
    yield _table(means, title=f"Geometric means of the changes{which}", what="means", quiet=True)
    table = findings_table(undecided, names) if undecided else ""
    title = f"Inconclusive or incomparable{which} ({len(undecided):,})"
    yield _table(table, title=title, what="findings", quiet=True)
    rows = [f"* {escaped(text)}" for text in measured_lines(comparison)]
    yield Part(rows=rows, title=f"How it was measured{which}", what="facts", quiet=True)


def _networks(machine: Machine, several: bool, quiet: bool) -> Iterator[Part]:
    """Yield the networks of a machine, and what each precision brought."""
    where = f", {machine.title}" if several else ""
    own = networks(machine)
    yield Part(rows=[f"{NOTE[:1].upper()}{NOTE[1:]}."], what="notes")
    for found in tables(own, explained=not machine.is_ranked):
        yield _table(block_table(found), what="networks", title=f"{found.title}{where}", quiet=quiet)
    if (found := brought(own)).rows:
        yield _table(block_table(found), what="precisions", title=f"{found.title}{where}", quiet=quiet)
    yield Part(rows=[f"* {escaped(line)}" for line in across(machine)], what="sentences", quiet=quiet)


def _trend(trend: Trend) -> Iterator[Part]:
    """Yield the changes of a trend; where there is none, that."""
    title = f"Over {trend.axis.replace('_', ' ')}s"
    said = [summary(trend), *([NOT_IN_TURNS] if has_changed_times(trend) else []), *failures(trend)]
    yield Part(rows=_paragraphs(said), title=title, what="notes")
    for block in change_blocks(trend, series_names(trend)):
        yield Part(rows=_paragraphs([block.title]), what="notes")
        yield _table(block_table(block), what="changes")


def _table(table: str, what: str, title: str = "", quiet: bool = False) -> Part:
    lines = table.splitlines()
    return Part(rows=lines[2:], head=lines[:2], what=what, title=title, quiet=quiet)


def _paragraphs(texts: Iterable[str], mark: str = "") -> list[str]:
    """Return texts as lines with an empty one between them."""
    return [f"{mark}{escaped(text)}\n" for text in texts]


def _assembled(blocks: list[str], parts: Iterable[Part]) -> str:
    """Return all in one text; of what finds no room as much as does, and how much does not."""
    room = LONGEST - _FOOT - sum(len(block) + 2 for block in blocks)
    lost: Counter[str] = Counter()
    for part in parts:
        if not part.rows:
            continue
        shown, block = _fitted(part, room)
        if block:
            blocks.append(block)
            room -= len(block) + 2
        if shown < len(part.rows):
            lost[part.what] += len(part.rows) - shown
    if lost:
        counts = ", ".join(f"{count:,} {what}" for what, count in lost.items())
        blocks.append(f"Left out to keep this short: {counts}. The page that `ampbench report` writes has all.")
    return "\n\n".join([*blocks, f"ampbench {__version__}"]) + "\n"


def _fitted(part: Part, room: int) -> tuple[int, str]:
    """Return how many rows of a part fit `room` characters, and its text; 0 and "" where none does."""
    rows = part.rows[:ROWS]
    while rows:
        more = len(part.rows) - len(rows)
        text = "\n".join([*part.head, *rows]).rstrip("\n")
        text += f"\n\nand {more:,} more {part.what}" if more else ""
        if part.quiet:
            text = folded(part.title, text)
        elif part.title:
            text = f"### {escaped(part.title)}\n\n{text}"
        if len(text) + 2 <= room:
            return len(rows), text
        rows = rows[: len(rows) * 3 // 4] if len(rows) > 4 else rows[:-1]
    return 0, ""
