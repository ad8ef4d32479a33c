"""What is planned of a run that is gone on with."""

import dataclasses
from pathlib import Path

import pytest

from ampbench.errors import UsageError
from ampbench.planning import PlannedCase
from ampbench.precisions import LOW, PRECISIONS, Precision
from ampbench.records.runs import Selection
from ampbench.running.preparing import require_among, require_own_ops, resumed_plan
from ampbench.store import StoredRun
from ampbench.workloads.index import WORKLOADS, source
from tests.stored_runs import make_case, make_header

ONE, TWO = (make_case("bf16_autocast", workload=name) for name in ("one", "two"))
FOUND = [PlannedCase(case=case, source=source(WORKLOADS["mlp"])) for case in (ONE, TWO)]
BEGUN = StoredRun(path=Path("run.jsonl"), header=make_header(), cases={case.case_id: case for case in (TWO, ONE)})


def test_of_what_is_found_only_what_is_left_is_planned() -> None:
    here = BEGUN.header.environment
    assert [one.case for one in resumed_plan(BEGUN, here, FOUND, {TWO.case_id})] == [TWO]
    assert resumed_plan(BEGUN, here, FOUND, ()) == []


def test_a_run_of_another_machine_or_of_other_cases_is_not_gone_on_with() -> None:
    here = BEGUN.header.environment
    with pytest.raises(UsageError, match="its host was bench, here it is elsewhere"):
        resumed_plan(BEGUN, dataclasses.replace(here, host="elsewhere"), FOUND[:1], ())
    with pytest.raises(UsageError, match="its selection now gives other cases than it began with"):
        resumed_plan(BEGUN, here, FOUND[:1], ())


@pytest.mark.parametrize("row", [row for row in PRECISIONS.values() if row.same_ops])
def test_who_asks_about_ops_is_sent_to_the_precision_whose_ops_they_are(row: Precision) -> None:
    selection = Selection(workloads=["mlp"], precisions=["fp32", row.name])
    said = f"{row.name} runs the ops of {row.same_ops}, with another optimizer step: give that"
    with pytest.raises(UsageError, match=f"^{said}$"):
        require_own_ops(selection)
    with pytest.raises(UsageError, match=f"^{said}$"):
        require_among(selection, ["fp32", *LOW], "{name} is none")
    with pytest.raises(UsageError, match=f"^{row.name} has no autocast: give bf16_autocast$"):
        require_among(Selection(precisions=[row.name]), ["bf16_autocast"], "{name} has no autocast")
