"""Numbers that another program kept without what they were made from: shown side by side, never judged."""

from collections.abc import Mapping

from ampbench.comparing.pairing import Pair
from ampbench.comparing.runs import MeasuredRun
from ampbench.metrics import GATED
from ampbench.verdicts import Code, Finding, Verdict

Values = tuple[float | None, float | None]

_UNGATED: Mapping[str, str] = {"items_per_second": "time", "output_floor_ratio": "accuracy"}
"""What other programs keep of metrics that comparisons never judge, and of which kind that is."""


def imported_finding(
    pair: Pair, metric: str, values: Values, baseline: MeasuredRun, candidate: MeasuredRun
) -> Finding | None:
    """Return the finding on a metric of which a side has a reading alone; None where neither side has.

    `values` are what the sides have raw entries for, None where they have none. It is incomparable: a reading has no
    rounds, no counter and no digests to decide with.
    """
    ids = (pair.baseline_id, pair.candidate_id)
    runs = (baseline, candidate)
    readings = [
        run.reading(metric, case_id) if value is None else None
        for run, case_id, value in zip(runs, ids, values, strict=True)
    ]
    if readings == [None, None]:
        return None
    kind = GATED[metric].kind if metric in GATED else _UNGATED[metric]
    return Finding(
        case=pair.baseline,
        metric=metric,
        kind=kind,
        verdict=Verdict.INCOMPARABLE,
        code=Code.IMPORTED,
        reason=_reason(kind, readings, baseline, candidate),
        baseline=values[0] if readings[0] is None else readings[0],
        candidate=values[1] if readings[1] is None else readings[1],
    )


def _reason(kind: str, readings: list[float | None], baseline: MeasuredRun, candidate: MeasuredRun) -> str:
    sides = {"baseline": baseline, "candidate": candidate}
    named = [side for side, reading in zip(sides, readings, strict=True) if reading is not None]
    programs = list(dict.fromkeys(sides[side].program for side in named))
    lost = "its samples were not kept" if kind == "time" else "what the number was made from was not kept"
    if len(named) == 1:
        return f"the {named[0]} was imported from {programs[0]}: {lost}; measure with ampbench ab"
    if len(programs) == 1:
        return f"imported from {programs[0]}: {lost}; compare with {programs[0]} compare, or measure with ampbench ab"
    return f"imported from {' and '.join(programs)}: {lost}; measure with ampbench ab"
