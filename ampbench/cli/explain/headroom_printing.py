"""How large values are, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.ranges import findings, show
from ampbench.records.ranges import RangePass

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.ranges import RangePass
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print how large the values of the cases `case_ids` were in a run, and what low precisions made of them.

    CSV has a row for what was counted of each module; JSON has these and, beside them, what was predicted and seen.
    """
    print_passes(
        stored, case_ids, format, stored.of(RangePass),
        section=lambda case, found: show.headroom_section(case, found, everything=everything),
        document=_headroom_document,
        rows=lambda found: frame_rows(show.headroom_frame(found)),
        columns=show.HEADROOM_COLUMNS,
    )  # fmt: skip


def _headroom_document(case: "Case", found: "RangePass") -> dict[str, Any]:  # noqa: ARG001 - as all documents
    return {
        "sentences": [
            *findings.headroom_said(found),
            *findings.validated_said(found),
            *findings.arithmetic_said(found),
        ],
        "tables": {
            "values": frame_rows(show.headroom_frame(found)),
            "seen": frame_rows(show.seen_frame(found)),
        },
        "headroom": asdict(found),
    }
