"""What storing inputs in half saves and loses, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.options import OutputFormat
from ampbench.cli.pass_printing import frame_rows, print_passes
from ampbench.studied.input_storage.blocks import storage_section
from ampbench.studied.input_storage.sentences import storage_said
from ampbench.studied.input_storage.tables import COLUMNS, storage_frame, uses_frame

if TYPE_CHECKING:
    from ampbench.records.cases import Case
    from ampbench.records.studies import StoragePass
    from ampbench.store import StoredRun

WHOLE = ("stored_bytes", "casts", "cast_bytes", "peak_memory_bytes")


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print what storing the inputs of the cases `case_ids` in half saved and lost in a run.

    CSV has a row for each dtype that they are stored in; JSON has these, a row for each input, and the sentences.
    """
    print_passes(
        stored, case_ids, format, stored.input_storage,
        section=lambda case, found: storage_section(case, found, everything=everything),
        document=_document,
        rows=lambda found: frame_rows(storage_frame(found), WHOLE),
        columns=COLUMNS,
    )  # fmt: skip


def _document(case: "Case", found: "StoragePass") -> dict[str, Any]:
    return {
        "sentences": storage_said(case, found),
        "tables": {"inputs": frame_rows(uses_frame(found)), "stored": frame_rows(storage_frame(found), WHOLE)},
        "storage": asdict(found),
    }
