"""Where errors begin, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.ranges import findings, show
from ampbench.records.ranges import OriginPass

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.ranges import OriginPass
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print where the errors of the cases `case_ids` began in a run; CSV and JSON have a row for each module."""
    print_passes(
        stored, case_ids, format, stored.of(OriginPass),
        section=lambda case, found: show.origin_section(case, found, everything=everything),
        document=_origin_document,
        rows=lambda found: frame_rows(show.origin_frame(found)),
        columns=show.ORIGIN_COLUMNS,
    )  # fmt: skip


def _origin_document(case: "Case", found: "OriginPass") -> dict[str, Any]:  # noqa: ARG001
    return {
        "sentences": findings.origin_said(found),
        "tables": {"modules": frame_rows(show.origin_frame(found))},
        "origin": asdict(found),
    }
