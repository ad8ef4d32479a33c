"""Two runs compared: which cases belong together, what makes them comparable, what is told first."""

from dataclasses import replace

import pytest
from msgspec import structs

from ampbench.core.statement import Note
from ampbench.errors import NothingComparableError, UsageError
from ampbench.judge.compare import compare
from ampbench.judge.notes import statements
from ampbench.judge.pairing import EnvironmentDifferences, pair_cases
from ampbench.records.case import DeviceDescription, DeviceState, WorkloadSource
from ampbench.records.changes import Caveat, ChangeCode, ChangeStatus
from ampbench.records.measured import Failure
from ampbench.records.run import DIRTY, Arm, Header, Imported
from ampbench.show.comparison import notes, reason
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


PURE = make_case("bf16_pure", input_dtype="bf16")
WIDE = structs.replace(FP32, parameters={"width": 1024, "depth": 4})


def pairs(baseline, candidate, *settings):
    return pair_cases(baseline, candidate, settings)


def test_versions_of_a_workload_meet():
    assert pairs([FP32], [structs.replace(FP32, version=1)]) == [(FP32, structs.replace(FP32, version=1))]


@pytest.mark.parametrize(
    ("setting", "candidate"),
    [
        ("precision", PURE),
        ("precision", structs.replace(FP32, precision="fp16_autocast", scaler=False)),
        ("path", structs.replace(FP32, path="compiled")),
        ("optimizer", structs.replace(FP32, recipe="finetune")),
        ("sdpa", structs.replace(FP32, sdpa="math")),
        ("batch_size", structs.replace(FP32, batch_size=16)),
        ("linear_chain.batch_size", structs.replace(FP32, batch_size=16)),
        ("width", WIDE),
    ],
)
def test_what_an_arm_sets_is_left_out_of_the_comparison(setting, candidate):
    assert pairs([FP32], [candidate], setting) == [(FP32, candidate)]
    assert pairs([candidate], [FP32], setting) == [(candidate, FP32)]
    assert pairs([FP32], [candidate], "threads", "OMP_NUM_THREADS") == []


def test_cases_that_differ_only_in_what_an_arm_sets_leave_a_choice_and_are_refused():
    with pytest.raises(UsageError, match=r"the candidate has .*/fp32/.* and .*/bf16_pure/.* \(precision\)"):
        pair_cases([FP32], [FP32, PURE], ["precision"])


A100 = [DeviceDescription(type="cuda", available=True, name="A100", driver="570")]
H100 = [DeviceDescription(type="cuda", available=True, name="H100", driver="580")]


def differences(candidate, baseline=None, devices=("cpu",), settings=()):
    return EnvironmentDifferences(baseline or make_header(), candidate, devices, dict.fromkeys(settings, ""))


def test_versions_are_named_and_keep_neither_times_nor_memory_from_being_compared():
    found = differences(environment(make_header(), torch_version="2.16.0", torchvision_version="0.31"))
    assert [(one.name, one.baseline, one.candidate) for one in found.found] == [
        ("torch", "2.15.0", "2.16.0"),
        ("torchvision", "none", "0.31"),
    ]
    assert not found.obstacles("cpu")
    assert not found.same("cpu")


def test_the_commit_of_torch_is_named_only_where_its_version_does_not_tell():
    newer = environment(make_header(), torch_version="2.16.0", torch_commit="b")
    assert [one.name for one in differences(newer).found] == ["torch"]
    rebuilt = environment(make_header(), torch_commit="b")
    assert [one.name for one in differences(rebuilt).found] == ["torch build"]
    assert not differences(rebuilt).same("cpu")


def sourced(path, **changes):
    source = WorkloadSource(name="m.py:make", family="user", module=path, function="make", builtin=False)
    return make_header(sources=[source], **changes)


def test_a_workload_of_one_name_from_two_files_is_told_with_the_paths_from_where_they_part():
    (found,) = differences(sourced("/home/me/b/m.py"), sourced("/home/me/a/m.py")).found
    assert (found.name, found.baseline, found.candidate) == ("file of m.py:make", "a/m.py", "b/m.py")
    assert not differences(sourced("/home/me/a/m.py"), sourced("/home/me/a/m.py")).found
    elsewhere = environment(sourced("/ci/a/m.py"), host="runner")
    assert "file of m.py:make" not in [one.name for one in differences(elsewhere, sourced("/home/me/a/m.py")).found]


HERE = WorkloadSource(name="m.py:make", family="user", module="/m.py", function="make", builtin=False)
ELSEWHERE = structs.replace(HERE, elsewhere=("model (/site-packages/model)",))
A, B = "a" * 40, "b" * 40


def session(*given):
    return Arm(session="s", name="baseline", given=list(given), settings={})


@pytest.mark.parametrize(
    ("baseline", "candidate", "same"),
    [
        ({"commit": A}, {"commit": A}, True),
        ({"commit": A}, {"commit": B}, False),
        ({"commit": A + DIRTY}, {"commit": A + DIRTY}, False),
        ({"commit": None}, {"commit": None}, True),
        ({"commit": None, "sources": [HERE]}, {"commit": None, "sources": [HERE]}, False),
        ({"commit": A, "sources": [HERE]}, {"commit": A, "sources": [ELSEWHERE]}, False),
        ({"commit": A + DIRTY, "arm": session("here")}, {"commit": A + DIRTY, "arm": session("depth=5")}, True),
        ({"commit": B, "arm": session("git:main")}, {"commit": A + DIRTY, "arm": session("here")}, False),
        ({"commit": A, "arm": session("git:main")}, {"commit": A, "arm": session("here")}, True),
    ],
)
def test_numbers_must_be_equal_where_the_same_code_is_known_to_have_run(baseline, candidate, same):
    assert differences(make_header(**candidate), make_header(**baseline)).same("cpu") is same


def test_another_accelerator_matters_to_what_runs_on_it_alone():
    before, after = environment(make_header(), devices=A100), environment(make_header(), devices=H100)
    found = differences(after, before, ("cpu", "cuda"))
    assert [one.name for one in found.obstacles("cuda")] == ["cuda device"]
    assert not found.obstacles("cpu")
    assert found.same("cpu")
    assert not found.same("cuda")


def test_settings_of_arms_are_named_and_threads_among_them_are_no_obstacle():
    ours, theirs = arms(threads="1")
    found = differences(environment(theirs, threads=1), ours, settings=["threads"])
    assert {(one.name, one.matters) for one in found.found} == {
        ("number of threads", False),
        ("setting threads", False),
    }
    assert not found.same("cpu")


READ = {"seconds_median": 1e-3, "peak_memory_bytes": 4096.0, "grad_rel_l2": 1e-3}
KINDS = {"seconds_median": "time", "peak_memory_bytes": "memory", "grad_rel_l2": "accuracy"}


def imported(program="asv", readings=READ, cases=(FP32,), **header):
    """Return a run that was read from another program, with the same readings of each case."""
    run = make_run(Times(*((case, []) for case in cases)), header=make_header(**header))
    return replace(
        run,
        header=structs.replace(run.header, imported=Imported(program=program, file="a.json")),
        memory={},
        divergence={},
        readings={metric: {case.case_id: value for case in cases} for metric, value in readings.items()},
    )


def by_metric(baseline, candidate):
    comparison = compare(baseline, candidate)
    return {one.metric: one for one in comparison.findings}


@pytest.mark.parametrize("program", ["asv", "pytest-benchmark"])
def test_two_imported_runs_show_their_numbers_and_get_no_verdict(program):
    found = by_metric(imported(program), imported(program, {**READ, "seconds_median": 9.0}))
    assert {metric: one.kind for metric, one in found.items()} == KINDS
    for one in found.values():
        assert (one.status, one.code, one.change) == (ChangeStatus.INCOMPARABLE, ChangeCode.IMPORTED, None)
    assert (found["seconds_median"].baseline, found["seconds_median"].candidate) == (1e-3, 9.0)
    told = f"imported without samples, the baseline from {program} and the candidate from {program}: "
    assert all(reason(one).startswith(told) for one in found.values())


def test_another_limit_of_an_accelerators_power_keeps_its_times_from_being_compared_and_nothing_else() -> None:
    def header(watts: float | None) -> Header:
        gpu = DeviceDescription(
            type="cuda", available=True, name="H200", state=DeviceState(source="NVML", power_limit_watts=watts)
        )
        return environment(make_header(commit="abc"), devices=[gpu])

    found = EnvironmentDifferences(header(700.0), header(500.0), ["cuda", "cpu"], {})
    assert [(one.name, one.baseline, one.candidate) for one in found.obstacles("cuda")] == [
        ("cuda power limit", "700 W", "500 W")
    ]
    assert found.obstacles("cpu") == []
    assert found.same("cuda")
    for other in (700.0, None):  # the same, or one that is not told
        assert EnvironmentDifferences(header(700.0), header(other), ["cuda"], {}).obstacles("cuda") == []
