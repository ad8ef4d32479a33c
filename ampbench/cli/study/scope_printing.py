"""What scopes of autocast cost, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.scope.findings import scope_said
from ampbench.instruments.scope.show import COLUMNS, loss_frame, scope_frame, scope_section
from ampbench.records.studies import ScopePass

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.studies import ScopePass
    from ampbench.store import StoredRun

_WHOLE = ("first_casts", "first_cast_bytes", "stale_weights", "peak_memory_bytes", "kept_bytes")


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print what each scope of autocast did to the cases `case_ids` of a run; CSV has a row for each scope."""
    print_passes(
        stored, case_ids, format, stored.of(ScopePass),
        section=lambda case, found: scope_section(case, found, everything=everything),
        document=_document,
        rows=_rows,
        columns=COLUMNS,
    )  # fmt: skip


def _document(case: "Case", found: "ScopePass") -> dict[str, Any]:
    return {
        "sentences": scope_said(case, found),
        "tables": {"scopes": _rows(found), "losses": frame_rows(loss_frame(found))},
        "scope": asdict(found),
    }


def _rows(found: "ScopePass") -> list[dict[str, Any]]:
    return frame_rows(scope_frame(found), _WHOLE)
