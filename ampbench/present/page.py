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

from ampbench.present.charts import Chart, Named, Rows
from ampbench.present.document import Block, Section
from ampbench.records.case import Case
from ampbench.records.verdicts import Comparison
from ampbench.store import StoredRun

T = TypeVar("T")
N = TypeVar("N", bound=Named)

LONGEST = 2000
"""A text takes so many characters at most, the note of how many there were among them."""

_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"  # direction (Unicode UAX 9), invisible characters
    "\ud800-\udfff\ufffe\uffff]"
)

_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_JOINT = re.compile(r"[_/\[,](?=\w)|:(?=[^\W\d])")  # not within a time


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
    """Return a name or a path as markup whose lines may end after one of "_/[,:" rather than anywhere."""
    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(fit(text)))))


def drawable(text: str) -> str:
    """Return `text` fit for a chart, whose labels are cut between two halves of a character: those have none left.

    Vega counts in units of UTF-16, so every character that takes two of them is written out ("\\U0001f680").
    """
    if not text.isascii():
        text = _TWO_UNITS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return fit(text)


def fitted(value: Any, made: Callable[[str], str] = fit) -> Any:
    """Return plain nested data with every text in it, keys among them, `made` fit; markup is left as it is."""
    if type(value) is str:
        return made(value)
    if value is None or isinstance(value, (Markup, int, float)):
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
    Names in `content` must not hide what every template is given: `view`, `sections`, `figures`.
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
    """A case that a `run` that explains could not explain, and why."""

    name: str
    reason: str
    case_id: str
    run: StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What accounts for a case's change against the baseline, in sentences."""

    name: str
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Generic[T]):
    """What a page holds that an instrument makes its part of.

    `told` are the cases in which runs of the instrument's kind found something, of several runs of one case, host and
    torch version the newest, the oldest first; `untold` are those in which they did not. `elsewhere` says with which
    torch on which host they ran where nothing on the page was measured. `runs` are all runs on the page, the oldest
    first. `comparisons` are those with the baseline, `changed` what they say of cases.
    """

    told: Sequence[Told[T]] = ()
    untold: Sequence[Untold] = ()
    elsewhere: Sequence[str] = ()
    runs: Sequence[StoredRun] = ()
    comparisons: Sequence[Comparison] = ()
    changed: Sequence[Changed] = ()

    def strangers_said(self, verb: str) -> list[str]:
        """Return a sentence on what ran elsewhere than what was measured: "Traced with torch 2.9 on …"."""
        return [f"{verb} with {'; '.join(self.elsewhere)}, which measured nothing on this page."] * bool(self.elsewhere)


def run_name(run: StoredRun) -> str:
    """Return what a run is called on a page: its label, else its id."""
    return run.header.label or run.header.run


def place_of(run: StoredRun) -> tuple[str, str]:
    """Return the host and the torch version of a run."""
    environment = run.header.environment
    return environment.host, environment.torch_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What is told of one case: a line of it, what to say and show, what is folded, by title, and `code` to paste.

    Only one that is `open` shows more than its line at first.
    """

    name: str
    said: str
    blocks: Sequence[Block] = ()
    folded: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    code: str = ""
    open: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a section, `id` is unique. `said` are its findings in sentences.

    Of several cases it has an `overview`, some are told of in `details`, and of `undetailed` more only the table tells.
    `changed` is what differs from the baseline's, `untold` are the cases without a result, headed by `without`.
    `left_out` counts the rows that are not listed. `content` is what a template of its own reads.

    `sentences` are all that is said of each case, by its name, for those who read no tables; they are called `what`.
    `finding` is the first thing to know of all that, in a line; "": nothing.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    overview: Overview | None = None
    details: Sequence[Detail] = ()
    undetailed: int = 0
    changed: Sequence[Changed] = ()
    untold: Sequence[Untold] = ()
    without: str = "Without a result"
    left_out: int = 0
    content: Mapping[str, Any] = field(default_factory=dict)
    sentences: Sequence[tuple[str, Sequence[str]]] = ()
    what: str = "cases"
    finding: str = ""


def told_part(
    found: Sequence[N],
    *,
    id: str,
    title: str,
    said: Sequence[str],
    detail: Callable[[N], Detail],
    sentences: Callable[[N], Sequence[str]],
    overview: Overview,
    finding: Callable[[N], str] | None = None,
    drawn: tuple[Sequence[Chart], Mapping[str, Rows]] = ((), {}),
    changed: Sequence[Changed] = (),
    untold: Sequence[Untold] = (),
    **others: Any,
) -> Part:
    """Return the part that tells of cases: of several an `overview`, then some in `detail`, the first one open.

    `sentences` are all that is said of a case, `finding` the first thing to know of it ("": nothing), `drawn` the
    charts and their data, `others` further fields of the part.
    """
    charts, datasets = drawn
    several = len({name for name, _ in overview.rows}) > 1
    lost = sum(max(len(each) - LISTED, 0) for each in (found, untold, changed))
    findings = (f"{one.name}: {line}" for one in found if finding is not None and (line := finding(one)))
    return Part(
        id=id,
        title=title,
        said=said,
        charts=charts,
        datasets=datasets,
        overview=replace(overview, rows=overview.rows[:LISTED]) if several else None,
        details=[replace(detail(one), open=place == 0) for place, one in enumerate(found[:DETAILED])],
        undetailed=max(len(found[:LISTED]) - DETAILED, 0),
        changed=changed[:LISTED],
        untold=untold,
        left_out=max(lost, len(overview.rows) - LISTED) if several else lost,
        sentences=[(one.name, sentences(one)) for one in found],
        finding=next(findings, ""),
        **others,
    )


def cut(block: Block, most: int = ROWS) -> Block:
    """Return a block with so many rows as a page has room for, and in its note how many there are."""
    if len(block.rows) <= most:
        return block
    note = f"{most} of {len(block.rows):,}"
    return replace(block, rows=block.rows[:most], note="; ".join(part for part in (block.note, note) if part))


def detail_of(name: str, section: Section, folded: Collection[str] = (), code: str = "") -> Detail:
    """Return what a section says of a case: its first line beside the name, its tables cut, those of `folded` folded.

    A table is folded where its title begins with one of `folded`.
    """
    lines = lines_of(section)
    tables = [cut(block) for block in section.blocks if block.headers]
    hidden = [block for block in tables if block.title.startswith(tuple(folded))] if folded else []
    return Detail(
        name=name,
        said=lines[0].title if lines else section.title,
        blocks=[*lines[1:], *(block for block in tables if block not in hidden)],
        folded={block.title: [block] for block in hidden},
        code=code,
    )


def lines_of(section: Section) -> list[Block]:
    """Return what a section says beside its tables."""
    return [block for block in section.blocks if not block.headers]


def sentences_of(section: Section) -> list[str]:
    """Return the sentences of a section, without its tables."""
    return [said for line in lines_of(section) for said in (line.title, line.note) if said]
