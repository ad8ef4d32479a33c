"""Which cases are traced once more, and what happens to servers that die while they trace."""

import msgspec
from msgspec import structs

from ampbench.ab import Lane, explain_sides
from ampbench.drive.planning import PlannedCase, find_workloads
from ampbench.records.casts import CastPass, CastTrace
from ampbench.records.kinds import CHECK
from ampbench.records.measured import Failure
from ampbench.records.run import Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.studies.check import TASK, Checked
from tests.drive.test_rounds import Script
from tests.stored_runs import make_case, make_header

CASES = [make_case(precision) for precision in ("fp32", "bf16_autocast", "fp16_autocast")]


def side(name, script, kept):
    source = find_workloads("mlp")[0]
    cases = {case.case_id: PlannedCase(case=case, source=source) for case in CASES}
    return Lane(name, cases, Settings(), script.open, kept.append)


def explain(sides, case_ids, devices, tell, versions=("2.15.0", "2.15.0")):
    environments = [structs.replace(make_header().environment, torch_version=version) for version in versions]
    explain_sides(sides, environments, case_ids, devices, tell)


def traced(request: Request) -> Reply:
    return reply_with(CastPass(case_id=request.case.case_id, how="device", trace=CastTrace()))


def test_a_server_whose_worker_was_killed_is_replaced_and_the_other_side_is_not_asked():
    def answer(request: Request) -> Reply:
        if request.case is CASES[0]:
            return Reply(failure=Failure(case_id=request.case.case_id, stage="casts", cause="killed", message="gone"))
        return traced(request)

    ours, theirs, told = Script(answer), Script(traced), []
    both = [side("baseline", ours, []), side("candidate", theirs, [])]
    explain(both, [case.case_id for case in CASES], [], told.append)
    assert (ours.opened, ours.closed, len(theirs.asked)) == (3, 3, 2)
    assert told[1:] == [f"could not be traced: {CASES[0].case_id} in the baseline: killed: gone"]


def test_rules_are_not_probed_where_both_sides_have_one_torch_and_a_probe_that_dies_is_told():
    def dies(request: Request) -> Reply:
        return Reply(failure=Failure(case_id="", stage="rules", cause="crash", message="signal 6"))

    one, told = Script(dies), []
    explain([side("baseline", one, []), side("candidate", one, [])], [], ["cpu"], told.append)
    assert (one.opened, told) == (0, [])
    explain([side("baseline", one, []), side("candidate", one, [])], [], ["cpu"], told.append, ("2.15.0", "2.16.0"))
    assert told[1] == "autocast on cpu could not be probed in the baseline: crash: signal 6"
    assert one.opened == one.closed


def test_known_defects_are_looked_for_in_turns_where_torch_differs_and_a_crash_is_a_result():
    def answer(request: Request) -> Reply:
        if request.task != CHECK:
            return Reply(failure=Failure(case_id="", stage="rules", cause="crash", message="signal 6"))
        name = msgspec.json.decode(request.asked, type=TASK.asked).check
        if name == "promote-other-half":
            return Reply(failure=Failure(case_id="", stage="check", cause="crash", message="signal 11"))
        return reply_with(Checked(device="cpu", check=name, outcome="good", how="device", program="aa"))

    told, kept = [], ([], [])
    both = [side("baseline", Script(answer), kept[0]), side("candidate", Script(answer), kept[1])]
    explain(both, [], ["cpu"], told.append, ("2.15.0", "2.16.0"))
    assert "probing autocast's rules and known defects on cpu on both sides, whose torch differs" in told
    assert [one.check for one in kept[0]] == [one.check for one in kept[1]]
    assert len(kept[0]) >= 20
    (crashed,) = [one for one in kept[0] if one.outcome != "good"]
    assert (crashed.check, crashed.outcome, crashed.why) == (
        "promote-other-half",
        "not shown here",
        "crash: signal 11",
    )
