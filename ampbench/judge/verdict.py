"""The verdict on every case of a run."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ampbench.base.budget import Budget
from ampbench.base.precisions import BASELINE, DEFAULT
from ampbench.base.statement import Refusal, Undecided
from ampbench.judge.advice import advise_run
from ampbench.judge.objections import Objection
from ampbench.judge.rows import Row, judged_error, number
from ampbench.records.verdict import Cause, Evidence, Interval, Status, Verdict

if TYPE_CHECKING:
    from ampbench.store import StoredRun


def verdicts_of(stored: "StoredRun", budget: Budget, studies: "Iterable[StoredRun]" = ()) -> Mapping[str, Verdict]:
    """Return the verdict on every case of a run by its id, in the order of its rows."""
    from ampbench.judge import frame

    rows = frame.run_rows(stored)
    advice = advise_run(stored, rows, budget, studies).values()
    taken = {each.case_id for each in advice}
    objections = {case_id: one for each in advice for case_id, one in each.objections.items()}
    return {row["case_id"]: _verdict(row, objections, row["case_id"] in taken, budget) for row in rows}


def _verdict(row: Row, objections: Mapping[str, Objection | None], taken: bool, budget: Budget) -> Verdict:
    training = row["phase"] == "training"
    judged: dict[str, Any] = {"status": Status.OK, "code": Refusal.ERROR}
    judged |= {"number": judged_error(row), "limit": budget.output_rel_l2}
    if row["outcome"] != "ok":
        judged = {"status": Status.UNDECIDED, "code": Undecided.NOT_MEASURED}
    elif row["precision"] in (BASELINE, DEFAULT):
        judged = {"status": Status.BASELINE}
    elif (objection := objections.get(row["case_id"])) is not None:
        facts = objection.reason.facts
        judged = {"status": Status.REFUSED, "code": objection.reason.code}
        judged |= {"number": facts.get("value"), "limit": facts.get("limit")}
    speed = number(row["speedup_vs_fp32"])
    low, high = number(row.get("speedup_low")), number(row.get("speedup_high"))
    cause = Cause.UNKNOWN if speed is None else Cause.FEW_ROUNDS if low is None else Cause.NONE
    memory = number(row["memory_ratio_vs_fp32"])
    return Verdict(
        **{name: row[name] for name in ("case_id", "workload", "phase", "device", "path", "precision")},
        evidence=Evidence.ONE_STEP if training else Evidence.INPUTS,
        speed=Interval(value=speed, low=low, high=high, cause=cause),
        memory=Interval(value=memory, low=memory, high=memory, cause=Cause.UNKNOWN if memory is None else Cause.NONE),
        taken=taken,
        **judged,
    )
