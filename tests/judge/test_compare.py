"""Two runs compared: what makes them comparable, and what is said first."""

from dataclasses import replace

import pytest
from msgspec import structs

from ampbench.core.statement import Note
from ampbench.errors import NothingComparableError
from ampbench.judge.compare import compare
from ampbench.judge.notes import statements
from ampbench.records.case import DeviceDescription, WorkloadSource
from ampbench.records.changes import Caveat, ChangeStatus
from ampbench.records.measured import Failure
from ampbench.show.comparison import notes
from tests.compared_runs import BF16, FP32, Times, arms, environment, make_run, noisy
from tests.stored_runs import make_case, make_header, make_memory


def run(*times, **changes):
    return make_run(Times(*times), **changes)


def test_runs_without_a_common_case_raise_and_both_are_named_with_an_example():
    with pytest.raises(NothingComparableError) as caught:
        compare(
            run((FP32, noisy(1e-3)), header=make_header(run="one")), run((BF16, [1e-3]), header=make_header(run="two"))
        )
    assert caught.value.exit_code == 4
    assert f"one has 1 case, such as {FP32.case_id}; two has 1 case, such as {BF16.case_id}" in str(caught.value)


def test_findings_come_in_the_order_of_what_matters_and_always_the_same():
    cases = [make_case(parameters={"width": width}) for width in range(7)]
    worst, worse, better, noisy_one, failing, same, lonely = cases
    factors = (1.2, 1.1, 0.9, 1.0, 1.0, 1.0)
    ours = run(*((case, noisy(1e-3, 8, seed=place)) for place, case in enumerate(cases)))
    theirs = run(*((cases[place], noisy(factor * 1e-3, 8, seed=place)) for place, factor in enumerate(factors)))
    theirs.rounds[:] = [one for one in theirs.rounds if one.case_id != noisy_one.case_id or one.round < 2]
    theirs.failures[failing.case_id] = Failure(
        case_id=failing.case_id, stage="round", cause="crash", message="signal 11"
    )
    comparison = compare(ours, theirs)
    decided = [one for one in comparison.findings if one.status is not ChangeStatus.UNCHANGED]
    assert [(one.case, one.status) for one in decided] == [
        (failing, ChangeStatus.REGRESSED),
        (worst, ChangeStatus.REGRESSED),
        (worse, ChangeStatus.REGRESSED),
        (better, ChangeStatus.IMPROVED),
        (noisy_one, ChangeStatus.INCONCLUSIVE),
    ]
    assert comparison.only_baseline == [lonely.case_id]
    theirs.rounds.reverse()
    again = compare(ours, theirs)
    assert [(one.case.case_id, one.metric) for one in again.findings] == [
        (one.case.case_id, one.metric) for one in comparison.findings
    ]
    assert same in [one.case for one in comparison.findings[len(decided) :]]


@pytest.mark.parametrize(
    "candidate", [arms()[1], make_header(arm=structs.replace(arms()[1].arm, session="another")), make_header()]
)
def test_only_the_arms_of_one_session_are_interleaved(candidate):
    comparison = compare(run((FP32, noisy(1e-3)), header=arms()[0]), run((FP32, noisy(1e-3)), header=candidate))
    assert comparison.interleaved is (candidate == arms()[1])
    assert comparison.apart is not comparison.interleaved


@pytest.mark.parametrize(("uuid", "caveats"), [("GPU-1", []), ("GPU-2", [Caveat.OTHER_CARD]), ("", [])])
def test_runs_on_two_cards_of_one_model_are_told_apart(uuid, caveats):
    case = make_case(device="cuda")
    cards = [
        DeviceDescription(type="cuda", available=True, name="H200", details={"uuid": each}) for each in ("GPU-1", uuid)
    ]
    ours, theirs = (
        run((case, noisy(1e-3)), header=environment(make_header(run=card.details["uuid"] or "none"), devices=[card]))
        for card in cards
    )
    found = [caveat for caveat in compare(ours, theirs).caveats if caveat.code is not Caveat.SAME_RUN]
    assert [caveat.code for caveat in found] == caveats


def test_attention_that_runs_by_another_kernel_is_told():
    ours, same, theirs = (
        replace(
            run((FP32, noisy(1e-3)), (BF16, noisy(1e-3))),
            memory={case.case_id: make_memory(case, 100, attention=kernels) for case in (FP32, BF16)},
        )
        for kernels in ({"flash": 2}, {"flash": 3}, {"flash": 1, "math": 1})
    )
    said = "linear_chain fp32, linear_chain bf16_autocast: attention runs by flash and math in the candidate, by flash"
    assert [note for note in notes(compare(ours, theirs)) if "attention" in note] == [f"{said} in the baseline"]
    assert not any("attention" in note for note in notes(compare(ours, same)))
    assert not any("attention" in note for note in notes(compare(run((FP32, noisy(1e-3))), theirs)))


def test_code_that_is_not_the_commits_is_named_in_the_run_and_in_the_comparison():
    source = WorkloadSource(
        name="m", family="user", module="/m.py", function="make", builtin=False, elsewhere=("proj (/site/proj)",)
    )
    odd = run((FP32, noisy(1e-3)), header=make_header(run="odd", commit="d70a2ae" * 5, sources=[source]))
    said = "not all that is measured is commit d70a2ae: imported from elsewhere was proj (/site/proj); install"
    (note,) = [note for note in notes(compare(run((FP32, noisy(1e-3))), odd)) if "elsewhere" in note]
    assert note.startswith(f"the candidate: {said}")
    (shown,) = [note for note in statements(odd, []) if note.code is Note.OTHER_CODE]
    assert str(shown.facts["why"]).startswith(said)
    unknown = replace(odd, header=structs.replace(odd.header, commit=None))
    assert Note.OTHER_CODE not in [note.code for note in statements(unknown, [])]
