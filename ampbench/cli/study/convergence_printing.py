"""Whether trainings converge as in fp32, on stdout: sections for people, rows and documents for machines."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ampbench.cli.explaining import finite, frame_rows, outcomes, pass_document
from ampbench.cli.printing import OutputFormat, csv_text, json_document, print_sections, print_text
from ampbench.instruments.convergence import show
from ampbench.instruments.convergence.learning import Learned, learned, told_trainings

if TYPE_CHECKING:
    from ampbench.records.case import Case
    from ampbench.records.studies import Training
    from ampbench.store import StoredRun


def print_stored(
    stored: "StoredRun", case_ids: Sequence[str], format: OutputFormat, *, everything: bool = False
) -> None:
    """Print what the trainings of the cases `case_ids` come to, workload by workload, and what became of the others.

    CSV has a row for each training; JSON has each training, and beside the cases what was concluded of each workload.
    With `everything`, each seed has its row.
    """
    trained = told_trainings(stored)
    if format is OutputFormat.JSON:
        document = pass_document(stored, case_ids, trained, _document, {})
        studies = [_study(one) for one in learned(stored, case_ids)]
        print_text(json_document(document | {"studies": finite(studies)}))
    elif format is OutputFormat.CSV:
        frame = show.training_frame(stored)
        rows = frame_rows(frame[frame["case_id"].isin(case_ids)], show.COUNTS)
        print_text(csv_text(list(frame.columns), [list(row.values()) for row in rows]))
    else:
        sections = [show.learned_section(one, everything=everything) for one in learned(stored, case_ids)]
        missing = [
            f"{case_id}: {outcome}: {reason}"
            for case_id, outcome, reason in outcomes(stored, case_ids, trained, {})
            if reason
        ]
        broken = [stored.failures[case_id] for case_id in case_ids if case_id in stored.failures and case_id in trained]
        missing += [f"{failure.case_id}: failed later: {failure.said}" for failure in broken]
        print_sections(sections, format, missing=missing)


def _document(case: "Case", found: "Sequence[Training]") -> dict[str, Any]:  # noqa: ARG001 - as all documents
    return {"trainings": [asdict(one) for one in found]}


def _study(one: Learned) -> dict[str, Any]:
    """Return what was concluded of a workload as plain data."""
    return {
        "workload": one.workload,
        "device": one.device,
        "steps": one.steps,
        "schedule": one.schedule,
        "last_rate": one.last_rate,
        "seeds": one.seeds,
        "seeds_asked": one.asked,
        "metric": asdict(one.metric),
        "margin": one.metric.margin,
        "before": one.before,
        "learns": one.learns,
        "rounding": one.rounding,
        "sentences": show.learned_said(one),
        "verdicts": show.verdict_rows(one),
    }
