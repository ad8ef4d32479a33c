"""What the row of a kind of run (`records.kinds.KINDS`) names of its instrument, imported when it is asked for."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ampbench.records.kinds import KINDS, Kind, named
from ampbench.show import studies, study_words

if TYPE_CHECKING:
    from ampbench.records.case import Environment
    from ampbench.show.document import Document
    from ampbench.show.page import Held, Part
    from ampbench.store import StoredRun


def document(stored: "StoredRun", case_ids: Sequence[str], *, everything: bool = False, **options: Any) -> "Document":
    """Return what a run that explains or studies says of the cases `case_ids`; `everything`: all rows of its tables.

    `options` are those that only some kinds have, such as which table of the casts.
    """
    row = KINDS[stored.header.explains]
    if row.study:
        return studies.document(named(row.study), stored, case_ids, everything=everything)
    make = named(row.document)
    found: Document = make(stored, case_ids, everything=everything, **options)
    return found


def part(row: Kind, held: "Held[Any]") -> "Part | None":
    """Return the part of a report's page of a kind of runs, made of what the page holds; None where that is nothing."""
    found: Part | None = studies.part(named(row.study), held) if row.study else named(row.part)(held)
    return found


def pointers(stored: "StoredRun") -> list[str]:
    """Return in lines what instruments know of what befell the cases of a run."""
    return study_words.lines(each for row in KINDS.values() if row.points for each in named(row.points)(stored))


DIAGNOSING = tuple(row.name for row in KINDS.values() if row.diagnoses)
"""The kinds of runs that know of an environment what spoils more than a case."""


def diagnoses(runs: "Mapping[str, Sequence[StoredRun]]", environment: "Environment") -> list[str]:
    """Return in lines what `runs`, by kind, know of an environment."""
    return study_words.lines(
        each for kind in DIAGNOSING for each in named(KINDS[kind].diagnoses)(runs.get(kind, ()), environment)
    )


def told(kind: str, stored: "StoredRun") -> Mapping[str, Any]:
    """Return what a run found of cases, or devices, for a page to tell, by what it explains or studies."""
    row = KINDS[kind]
    found: Mapping[str, Any] = named(row.told)(stored) if row.told else stored.found.get(row.found.line, {})
    return found
