"""The parts of a page's sections, and text made fit for a page.

Text of unknown origin (names, reasons, environment strings) is made fit here, beyond the escaping of the template
engine: without characters that turn the direction of text, control characters, halves of characters, megabytes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ampbench.records.case import Case
from ampbench.show.charts import Chart, Drawing, Named, Rows, drawn
from ampbench.show.document import Block, Code, Section, cut, written_out
from ampbench.store import StoredRun

if TYPE_CHECKING:
    from markupsafe import Markup

T = TypeVar("T")
N = TypeVar("N", bound=Named)

LONGEST = 2000
"""The most characters of a text, with the note on their number."""

_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")
_JOINT = re.compile(r"[_/\[,](?=\w)|:(?=[^\W\d])")  # not within a time


def fit(text: str) -> str:
    """Return `text` with characters without a shape written out ("\\u202e"), cut to `LONGEST`."""
    written = written_out(text[: LONGEST + 1], "\n\t")
    if len(written) <= LONGEST:
        return written
    note = f"… ({len(text):,} characters)"
    return written[: LONGEST - len(note)] + note


def breakable(text: str) -> "Markup":
    """Return a name or a path as markup whose lines may end after one of "_/[,:" rather than anywhere."""
    from markupsafe import Markup, escape  # an extra that studies do without on a terminal

    return Markup(_JOINT.sub(r"\g<0><wbr>", str(escape(fit(text)))))


def drawable(text: str) -> str:
    """Return `text` fit for a chart, with characters of two UTF-16 units written out.

    Vega counts UTF-16 units, and would cut a label between the two ("\\U0001f680").
    """
    if not text.isascii():
        text = _TWO_UNITS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return fit(text)


def fitted(value: Any, change: Callable[[str], str] = fit) -> Any:
    """Return plain nested data with every text in it, keys among them, `made` fit; markup is left as it is."""
    if type(value) is str:
        return change(value)
    if value is None or isinstance(value, (int, float)) or hasattr(value, "__html__"):
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {fitted(key, change): fitted(item, change) for key, item in value.items()}
    return [fitted(item, change) for item in value] if isinstance(value, list | tuple) else value


LISTED = 200
"""The most cases of a part, the worst or the first; a page of 10,000 cases does not repeat them all."""
DETAILED = 20
"""The most cases of a part with tables, the worst or the first; others have a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[T]):
    """A case that a run explains, with its record `found`.

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
    """The material of a study's part of a page.

    `told` are the cases with a record, the oldest first: the newest of each case, host and torch version. `untold` are
    the cases without one. `elsewhere` names torch versions and hosts with which nothing on the page was measured.
    `runs` are all runs on the page, the oldest first.
    """

    told: Sequence[Told[T]] = ()
    untold: Sequence[Untold] = ()
    elsewhere: Sequence[str] = ()
    runs: Sequence[StoredRun] = ()


def run_name(run: StoredRun) -> str:
    """Return the name of a run on a page: its label, else its id."""
    return run.header.label or run.header.run


def place_of(run: StoredRun) -> tuple[str, str]:
    """Return the host and the torch version of a run."""
    environment = run.header.environment
    return environment.host, environment.torch_version


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """The details of a case on a page: its line, sentences and tables, folded blocks by title, and `code` unchanged."""

    name: str
    said: str
    blocks: Sequence[Block] = ()
    folded: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    code: Code | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a section, `id` is unique: findings in sentences (`said`), charts, `blocks`, and `details` of cases.

    `untold` are the cases without a result, headed by `without`. `left_out` counts the cases that are not listed.
    `finding` is the most important conclusion on all cases, in a line; "": none.
    """

    id: str
    title: str
    said: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    datasets: Mapping[str, Rows] = field(default_factory=dict)
    blocks: Sequence[Block] = ()
    details: Sequence[Detail] = ()
    untold: Sequence[Untold] = ()
    without: str = "Without a result"
    left_out: int = 0
    finding: str = ""


def told_part(
    held: Held[Any],
    cases: Sequence[N],
    section: Callable[[N], Section],
    *,
    id: str,
    title: str,
    drawings: Sequence[Drawing[N]] = (),
    code: Callable[[N], str] | None = None,
    finding: Callable[[N], str] | None = None,
) -> Part | None:
    """Return the part of a page on `cases`, each by its `section`; None without any case.

    `code` returns Python to paste, `finding` the most important conclusion on a case ("": none).
    """
    if not (cases or held.untold):
        return None
    sections = [section(case) for case in cases]
    first_lines = [next((line.title for line in _lines_of(text)), "") for text in sections]
    charts, datasets, cut_short = drawn(cases, first_lines, *drawings)
    elsewhere = [f"Run with {'; '.join(held.elsewhere)}, which measured nothing on this page."]
    findings = (f"{case.name}: {line}" for case in cases if finding is not None and (line := finding(case)))
    return Part(
        id=id,
        title=title,
        said=[*(elsewhere if held.elsewhere else []), *cut_short],
        charts=charts,
        datasets=datasets,
        details=[
            _detail(case.name, text, code(case) if code is not None else "")
            if place < DETAILED
            else Detail(name=case.name, said=first_lines[place])
            for place, (case, text) in enumerate(zip(cases[:LISTED], sections, strict=False))
        ],
        untold=held.untold,
        left_out=sum(max(len(case) - LISTED, 0) for case in (cases, held.untold)),
        finding=next(findings, ""),
    )


def _detail(name: str, section: Section, code: str) -> Detail:
    """Return the details of a case from its section: its first line behind the name, its tables cut, some folded."""
    lines = _lines_of(section)
    tables = [cut(block) for block in section.blocks if block.headers]
    hidden = [block for block in tables if block.folded]
    return Detail(
        name=name,
        said=lines[0].title if lines else section.title,
        blocks=[*lines[1:], *(block for block in tables if block not in hidden)],
        folded={block.title: [replace(block, folded=False)] for block in hidden},
        code=Code("To paste", code) if code else None,
    )


def _lines_of(section: Section) -> list[Block]:
    return [block for block in section.blocks if not block.headers]
