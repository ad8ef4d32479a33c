"""Ceilings on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows
from ampbench.cli.printing import OutputFormat, csv_text, json_document, print_sections, print_text
from ampbench.instruments.ceilings import show
from ampbench.instruments.ceilings.findings import ceilings_said, datasheet_of, described, rate, share, top
from ampbench.records.studies import Ceiling

if TYPE_CHECKING:
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun",
    case_ids: Sequence[str],  # noqa: ARG001 - as all that print a run
    format: OutputFormat,
    *,
    everything: bool = False,
) -> None:
    """Print what devices attained in a run; it has no cases. `everything`: every size, and which were left out.

    CSV has a row for each size; JSON has each ceiling with all its samples and what is derived from it.
    """
    environment = stored.header.environment
    if format is OutputFormat.JSON:
        print_text(json_document(_document(stored)))
    elif format is OutputFormat.CSV:
        rows = frame_rows(show.ceiling_frame(environment, stored.every(Ceiling)), whole=("work",))
        print_text(csv_text(show.COLUMNS, (list(row.values()) for row in rows)))
    else:
        sections = show.ceilings_sections(environment, stored.every(Ceiling), everything=everything)
        print_sections(sections, format)


def _document(stored: "StoredRun") -> dict[str, Any]:
    environment = stored.header.environment
    types = dict.fromkeys(found.device for found in stored.every(Ceiling))
    devices = {type: described(environment, type) for type in types}
    ceilings = []
    for found in stored.every(Ceiling):
        one = top(found)
        promised = datasheet_of(devices[found.device].name)
        derived = {
            "per_second": None if one is None else rate(one),
            "size": None if one is None else one.size,
            "datasheet_share": share(found, promised),
        }
        ceilings.append(asdict(found) | derived)
    said = {type: ceilings_said(device, stored.every(Ceiling)) for type, device in devices.items()}
    told = {"run": stored.header.run, "environment": asdict(environment), "ended": stored.ending}
    return told | {"sentences": said, "ceilings": ceilings}
