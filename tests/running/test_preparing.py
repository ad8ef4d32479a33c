"""What is planned of a run that is gone on with."""

import dataclasses
from pathlib import Path

import pytest

from ampbench.errors import UsageError
from ampbench.planning import PlannedCase
from ampbench.running.preparing import resumed_plan
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
