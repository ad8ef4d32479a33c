"""What a page is made of: text that is fit to stand on it, its sections, and the parts of a section.

Text of unknown origin (names, reasons, environment strings) is made fit here. Escaping is the template engine's; here
goes what HTML lets through and a reader should not meet: characters that turn the direction of the text around them,
control characters, halves of characters, megabytes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ampbench.core.units import counted
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.show.charts import Chart, Drawing, Named, Rows, drawn
from ampbench.show.document import Block, Code, Section, cut
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from markupsafe import Markup

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


def breakable(text: str) -> "Markup":
    """Return a name or a path as markup whose lines may end after one of "_/[,:" rather than anywhere."""
    from markupsafe import Markup, escape  # an extra that studies do without on a terminal

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
    if value is None or isinstance(value, (int, float)) or hasattr(value, "__html__"):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[T]):
    """A case that a run explains, and what it `found` of it.

    `name` is its short name, with its run where others share it.
    """

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
class Held(Generic[T]):
    """What a page holds that a study makes its part of.

    `told` are the cases in which runs of the study's kind found something, of several runs of one case, host and
    torch version the newest, the oldest first; `untold` are those in which they did not. `elsewhere` says with which
    torch on which host they ran where nothing on the page was measured. `runs` are all runs on the page, the oldest
    first. `compared` are the runs that there are of the baseline, each before what is compared with it.
    """

    told: Sequence[Told[T]] = ()
    untold: Sequence[Untold] = ()
    elsewhere: Sequence[str] = ()
    runs: Sequence[StoredRun] = ()
    compared: Sequence[tuple[StoredRun, StoredRun]] = ()


def run_name(run: StoredRun) -> str:
    """Return what a run is called on a page: its label, else its id."""
    return run.header.label or run.header.run


def place_of(run: StoredRun) -> tuple[str, str]:
    """Return the host and the torch version of a run."""
    environment = run.header.environment
    return environment.host, environment.torch_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a page shows of one case: its line, sentences and tables, folded blocks by title, and `code` unchanged.

    Only one that is `open` shows more than its line at first.
    """

    name: str
    said: str
    blocks: Sequence[Block] = ()
    folded: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    code: Code | None = None
    open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A table of all cases: its `caption`, and for each row the name, under the heading `first`, and sentences."""

    caption: str
    rows: Sequence[tuple[str, Sequence[str]]]
    first: str = "case"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a section, `id` is unique. `said` are its findings in sentences, below its charts stand its `blocks`.

    Of several cases it has an `overview`, some are told of in `details`, and of `undetailed` more only the table tells.
    `untold` are the cases without a result, headed by `without`.
    `left_out` counts the rows that are not listed.

    `sentences` are all that is said of each case, by its name, for those who read no tables; they are called `what`.
    `finding` is the first thing to know of all that, in a line; "": nothing.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    overview: Overview | None = None
    details: Sequence[Detail] = ()
    undetailed: int = 0
    untold: Sequence[Untold] = ()
    without: str = "Without a result"
    left_out: int = 0
    sentences: Sequence[tuple[str, Sequence[str]]] = ()
    what: str = "cases"
    finding: str = ""


def view_of_parts(id: str, title: str, parts: Iterable[Part | None]) -> View | None:
    """Return the section that these parts make, with all their charts; None where there is none."""
    own = [part for part in parts if part is not None]
    if not own:
        return None
    return View(
        id=id,
        title=title,
        template="parts.html",
        content={"parts": own, "listed": LISTED},
        charts=[chart for part in own for chart in part.charts],
        datasets={name: rows for part in own for name, rows in part.datasets.items()},
    )


def told_part(
    held: Held[Any],
    found: Sequence[N],
    section: Callable[[N], Section],
    *,
    id: str,
    title: str,
    caption: str,
    first: str = "case",
    verb: str = "",
    said: Sequence[str] = (),
    drawings: Sequence[Drawing[N]] = (),
    folding: Collection[str] = (),
    code: Callable[[N], str] | None = None,
    finding: Callable[[N], str] | None = None,
    untold: Sequence[Untold] | None = None,
    **others: Any,
) -> Part | None:
    """Return the part that tells of cases what the `section` of each says; None where there is nothing to tell.

    Of several, a table with the heading `first` and this `caption` has what each section begins with; some are told of
    in detail, the first one open, with tables folded whose titles begin as in `folding`, and with `code` to paste.
    `said` is of all cases, `verb` what was done where nothing on the page was measured ("Traced"), `finding` the first
    thing to know of a case ("": nothing), `untold` are those that the page holds, unless others are given, and `others`
    further fields of the part.
    """
    untold = held.untold if untold is None else untold
    if not (found or untold):
        return None
    sections = [section(one) for one in found]
    rows = [(one.name, _beginning(own)) for one, own in zip(found, sections, strict=True)]
    charts, datasets, cut_short = drawn(found, [" ".join(lines[:1]) for _, lines in rows], *drawings)
    elsewhere = [f"{verb} with {'; '.join(held.elsewhere)}, which measured nothing on this page."]
    findings = (f"{one.name}: {line}" for one in found if finding is not None and (line := finding(one)))
    several = len({name for name, _ in rows}) > 1
    return Part(
        id=id,
        title=title,
        said=[*said, *(elsewhere if held.elsewhere else []), *cut_short],
        charts=charts,
        datasets=datasets,
        overview=Overview(caption=caption, rows=rows[:LISTED], first=first) if several else None,
        details=[
            _detail(one.name, own, folding, code(one) if code is not None else "", opened=place == 0)
            for place, (one, own) in enumerate(zip(found[:DETAILED], sections, strict=False))
        ],
        undetailed=max(len(found[:LISTED]) - DETAILED, 0),
        untold=untold,
        left_out=sum(max(len(each) - LISTED, 0) for each in (found, untold)),
        sentences=[(one.name, sentences_of(own)) for one, own in zip(found, sections, strict=True)],
        finding=next(findings, ""),
        **others,
    )


def of_several(
    found: Sequence[N], which: Callable[[N], bool], what: str, case: str = "case", cases: str = ""
) -> list[str]:
    """Return in a sentence of how many of several cases, which are called so, `what` holds, and of which.

    Of one, its own sentences say it.
    """
    if len(found) < 2:
        return []
    own = [one.name for one in found if which(one)]
    return [f"Of {counted(len(found), case, cases)}, {len(own) or 'none'} {what}{f': {few(own)}' if own else ''}."]


def _detail(name: str, section: Section, folding: Collection[str], code: str, *, opened: bool) -> Detail:
    """Return what a section says of a case: its first line beside the name, its tables cut, some folded."""
    lines = _lines_of(section)
    tables = [cut(block) for block in section.blocks if block.headers]
    hidden = [block for block in tables if block.title.startswith(tuple(folding))]
    return Detail(
        name=name,
        said=lines[0].title if lines else section.title,
        blocks=[*lines[1:], *(block for block in tables if block not in hidden)],
        folded={block.title: [block] for block in hidden},
        code=Code("To paste", code) if code else None,
        open=opened,
    )


def _beginning(section: Section) -> list[str]:
    """Return what a section says before its first table."""
    blocks = list(takewhile(lambda block: not block.headers, section.blocks))
    return sentences_of(replace(section, blocks=blocks))


def _lines_of(section: Section) -> list[Block]:
    return [block for block in section.blocks if not block.headers]


def sentences_of(section: Section) -> list[str]:
    """Return the sentences of a section, without its tables."""
    return [said for line in _lines_of(section) for said in (line.title, line.note) if said]
