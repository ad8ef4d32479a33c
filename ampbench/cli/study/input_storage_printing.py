"""What storing inputs in half saves and loses, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.input_storage.findings import storage_said
from ampbench.instruments.input_storage.show import COLUMNS, storage_frame, storage_section, uses_frame
from ampbench.records.studies import StoragePass

if TYPE_CHECKING:
    from ampbench.records.case import Case
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
        stored, case_ids, format, stored.of(StoragePass),
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
