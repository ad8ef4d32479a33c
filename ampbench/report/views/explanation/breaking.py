"""What broke, where and how; and what the divergence passes had to remark."""

from ampbench.frames import WEIGHTS_DIFFER
from ampbench.records.measurements import Failure
from ampbench.report.material import Material
from ampbench.report.views.part import LISTED, Part
from ampbench.units import counted

NAMED = 3
"""So many of the cases that share a failure or a note are named."""


def failures(material: Material) -> Part | None:
    """Return the failures, cases that broke in the same way together."""
    together: dict[tuple[str, str, str, str], list[str]] = {}
    for case in material.cases:
        if case.row["outcome"] == "failed":
            failure = case.shown.stored.failures.get(case.row["case_id"])
            together.setdefault(_broken(failure), []).append(case.name)
    if not together:
        return None
    count = sum(map(len, together.values()))
    rows = [
        {"stage": stage, "cause": cause, "message": message, "frames": frames, "cases": _named(cases)}
        for (stage, cause, message, frames), cases in list(together.items())[:LISTED]
    ]
    ways = f", in {len(together):,} ways" if 1 < len(together) < count else ""
    return Part(
        id="failures",
        title="Failures",
        said=[f"{counted(count, 'case')} failed{ways}."],
        content={"rows": rows},
        left_out=len(together) - len(rows),
    )


def _broken(failure: Failure | None) -> tuple[str, str, str, str]:
    """Return where a case broke, by what, what it said, and its last frames; without a failure its weights differ."""
    if failure is None:
        return "round", WEIGHTS_DIFFER, "", ""
    return failure.stage, failure.cause, failure.message, "\n".join(frame.rstrip("\n") for frame in failure.frames)


def remarks(material: Material) -> Part | None:
    """Return the notes of the divergence passes, each with the cases that share it."""
    together: dict[str, list[str]] = {}
    for case in material.cases:
        found = case.shown.stored.divergence.get(case.row["case_id"])
        for note in dict.fromkeys(found.notes if found else ()):
            together.setdefault(note, []).append(case.name)
    if not together:
        return None
    ordered = sorted(together.items(), key=lambda one: -len(one[1]))
    rows = [{"note": note, "cases": _named(cases)} for note, cases in ordered[:LISTED]]
    return Part(
        id="notes", title="Notes of the divergence pass", content={"rows": rows}, left_out=len(ordered) - len(rows)
    )


def _named(cases: list[str]) -> str:
    """Return how many cases there are and the first of them: "12 cases: a, b, c and 9 more"."""
    more = f" and {len(cases) - NAMED:,} more" if len(cases) > NAMED else ""
    listed = ", ".join(cases[:NAMED]) + more
    return listed if len(cases) == 1 else f"{counted(len(cases), 'case')}: {listed}"
