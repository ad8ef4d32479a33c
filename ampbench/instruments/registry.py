"""What the row of a kind of run (`records.kinds.KINDS`) names of its instrument, imported when it is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ampbench.records.kinds import KINDS, named

if TYPE_CHECKING:
    from ampbench.present.document import Document
    from ampbench.store import StoredRun


def document(stored: "StoredRun", case_ids: Sequence[str], *, everything: bool = False, **options: Any) -> "Document":
    """Return what a run that explains or studies says of the cases `case_ids`; `everything`: all rows of its tables.

    `options` are those that only some kinds have, such as which table of the casts.
    """
    make = named(KINDS[stored.header.explains].document)
    found: Document = make(stored, case_ids, everything=everything, **options)
    return found
