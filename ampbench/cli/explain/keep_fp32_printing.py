"""How searches for modules to keep in fp32 ended, on stdout: sections and code for people, rows and documents."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import print_passes
from ampbench.cli.printing import OutputFormat, print_text
from ampbench.instruments.keep_fp32 import show
from ampbench.instruments.keep_fp32.findings import code, points, said, so_far
from ampbench.instruments.keep_fp32.show import COLUMNS, point_rows
from ampbench.records.keeping import KeepSearch, SearchSpace, Trial
from ampbench.records.labels import case_title

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.keeping import KeepSearch
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print how the search of each of the cases `case_ids` ended, and for people the code to paste.

    CSV has a row for each set that was weighed, JSON the space and every trial too. With `everything`, long tables are
    whole.
    """
    print_passes(
        stored, case_ids, format, stored.of(KeepSearch),
        section=lambda case, found: show.section(
            case, found, stored.of(SearchSpace)[found.case_id], stored.several_of(Trial).get(found.case_id, []),
            everything=everything,
        ),
        document=lambda case, found: _document(stored, case, found),
        rows=lambda found: _rows(stored, found),
        columns=COLUMNS,
        begun={name: _begun(stored, name) for name in case_ids if name in stored.of(SearchSpace)},
    )  # fmt: skip
    if format in (OutputFormat.TABLE, OutputFormat.MARKDOWN):
        _print_code(stored, case_ids, format)


def _print_code(stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat) -> None:
    """Print what to paste for each case; which case it is for is said where there are several."""
    found = [stored.of(KeepSearch)[case_id] for case_id in case_ids if case_id in stored.of(KeepSearch)]
    for one in found:
        case = stored.cases[one.case_id]
        text = code(one, case)
        if not text:
            continue
        title = "To paste" if len(found) == 1 else f"To paste for {case_title(case)}"
        if format is OutputFormat.MARKDOWN:
            print_text(f"\n{title}:\n\n```python\n{text}```\n")
        else:
            print_text(f"\n  {title}\n{indent(text, '    ')}")


def _begun(stored: "StoredRun", case_id: str) -> str:
    """Return how far the search of a case got that did not end."""
    told = so_far(stored.of(SearchSpace)[case_id], stored.several_of(Trial).get(case_id, []))
    return f"{told}; ampbench explain keep-fp32 --resume {stored.header.run} goes on"


def _rows(stored: "StoredRun", found: "KeepSearch") -> list[dict[str, Any]]:
    picture = points(found, stored.of(SearchSpace)[found.case_id], stored.several_of(Trial).get(found.case_id, []))
    return [dict(zip(COLUMNS, row, strict=True)) for row in point_rows(picture)]


def _document(stored: "StoredRun", case: "Case", found: "KeepSearch") -> dict[str, Any]:
    space, trials = stored.of(SearchSpace)[found.case_id], stored.several_of(Trial).get(found.case_id, [])
    return {
        "sentences": said(found, space, trials),
        "points": [asdict(point) for point in points(found, space, trials)],
        "code": code(found, case) or None,
        "search": asdict(found),
        "space": asdict(space),
        "trials": [asdict(trial) for trial in trials],
    }
