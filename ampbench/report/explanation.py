"""The sections of why: what studies make of the runs that explain and study, and what broke where."""

from ampbench.core.units import counted
from ampbench.judge.rounds import WEIGHTS_DIFFER
from ampbench.records.labels import few
from ampbench.report.facts import parts
from ampbench.report.material import Material, ShownCase
from ampbench.show.document import Code
from ampbench.show.page import LISTED, Detail, Part, View, view_of_parts

NAMED = 3
"""The number of cases named for a failure that several share."""


def explanation(material: Material) -> View | None:
    """Return the section of what explains; None where no run holds data for any part of it."""
    own = [(kind, part) for kind, part in parts(material) if kind.group == "explain"]
    of_cases = [part for kind, part in own if kind.of_cases]
    of_devices = [part for kind, part in own if not kind.of_cases]
    return view_of_parts("explanation", "Explanation", [failures(material), *of_cases, *of_devices])


def studies(material: Material) -> View | None:
    """Return the section of what studies found; None where no run holds data for any part of it."""
    return view_of_parts("studies", "Studies", [part for kind, part in parts(material) if kind.group != "explain"])


def failures(material: Material) -> Part | None:
    """Return the failures, cases that broke in the same way together."""
    together: dict[tuple[str, str], list[str]] = {}
    for case in material.cases:
        if case.row["outcome"] == "failed":
            together.setdefault(_broken(case), []).append(case.name)
    if not together:
        return None
    count = sum(map(len, together.values()))
    ways = f", in {len(together):,} ways" if 1 < len(together) < count else ""
    return Part(
        id="failures",
        title="Failures",
        said=[f"{counted(count, 'case')} failed{ways}."],
        details=[
            Detail(name=_named(cases), said=said, code=Code("Message and last frames", text))
            for (said, text), cases in list(together.items())[:LISTED]
        ],
        left_out=max(len(together) - LISTED, 0),
    )


def _broken(case: ShownCase) -> tuple[str, str]:
    """Return by what and where a case broke, and its message with its last frames; without a failure weights differ."""
    failure = case.shown.stored.failures.get(case.row["case_id"])
    if failure is None:
        return f"{WEIGHTS_DIFFER} (in the round)", ""
    frames = [frame.rstrip("\n") for frame in failure.frames]
    stage = "round" if failure.stage == "round" else f"{failure.stage} pass"
    return f"{failure.cause} (in the {stage})", "\n".join([failure.message, *frames]).strip("\n")


def _named(cases: list[str]) -> str:
    """Return how many cases there are and the first of them: "12 cases: a, b, c and 9 more"."""
    return cases[0] if len(cases) == 1 else f"{counted(len(cases), 'case')}: {few(cases, NAMED)}"
