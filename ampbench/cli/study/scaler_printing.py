"""What studies of loss scaling found, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import frame_rows, print_passes
from ampbench.cli.printing import OutputFormat
from ampbench.instruments.scaler import show
from ampbench.instruments.scaler.findings import scaler_said
from ampbench.instruments.scaler.instrument import unfinished
from ampbench.present.document import Block, Section
from ampbench.records.labels import NOT_REACHED
from ampbench.records.studies import ScalerRun

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.studies import ScalerRun
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print what a run found of the loss scaling of the cases `case_ids`; CSV has a row for each training."""

    def section(case: "Case", runs: "list[ScalerRun]") -> Section:
        made = show.scaling_section(case, runs, everything=everything)
        return Section(made.title, [*made.blocks, *map(Block, _missing(stored, case.case_id))])

    def document(case: "Case", runs: "list[ScalerRun]") -> dict[str, Any]:
        return {
            "sentences": scaler_said(case, runs),
            "missing": _missing(stored, case.case_id),
            "tables": {"settings": _rows(runs)},
            "scalings": [asdict(run) for run in runs],
        }

    print_passes(
        stored, case_ids, format, stored.several_of(ScalerRun),
        section=section, document=document, rows=_rows, columns=show.COLUMNS,
    )  # fmt: skip


def _rows(runs: "list[ScalerRun]") -> list[dict[str, Any]]:
    return frame_rows(show.scaling_frame(runs), show.COUNTS)


def _missing(stored: "StoredRun", case_id: str) -> list[str]:
    """Return what kept settings of a case from being trained."""
    failure = stored.failures.get(case_id)
    if failure is not None:
        return [f"The other settings were not trained: {failure.said}."]
    names = [name for case, name in unfinished(stored) if case == case_id]
    return [f"{', '.join(names)}: {NOT_REACHED}."] if names else []
