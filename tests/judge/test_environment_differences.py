from dataclasses import replace

import pytest

from ampbench.judge.pairing import EnvironmentDifferences
from ampbench.records.case import DeviceDescription, WorkloadSource
from ampbench.records.run import DIRTY, Arm, Settings
from tests.compared_runs import arms, environment
from tests.stored_runs import make_header

A100 = [DeviceDescription(type="cuda", available=True, name="A100", driver="570")]
H100 = [DeviceDescription(type="cuda", available=True, name="H100", driver="580")]


def differences(candidate, baseline=None, devices=("cpu",), settings=()):
    return EnvironmentDifferences(baseline or make_header(), candidate, devices, dict.fromkeys(settings, ""))


def test_equal_environments_differ_in_nothing():
    found = differences(make_header(run="other", label="other"))
    assert found.found == []
    assert found.same("cpu")
    assert not found.obstacles("cpu")


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


def test_what_changes_no_number_leaves_numbers_exact():
    found = differences(environment(make_header(), python_version="3.12.1", system="Linux-6.19"))
    assert {one.name for one in found.found} == {"python", "system"}
    assert found.same("cpu")


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
ELSEWHERE = replace(HERE, elsewhere=("model (/site-packages/model)",))
A, B = "a" * 40, "b" * 40


def session(*given):
    return Arm(session="s", name="baseline", given=list(given), settings={})


@pytest.mark.parametrize(
    ("baseline", "candidate", "same"),
    [
        ({"commit": A}, {"commit": A}, True),
        ({"commit": A}, {"commit": B}, False),
        ({"commit": A}, {"commit": A + DIRTY}, False),
        ({"commit": A + DIRTY}, {"commit": A + DIRTY}, False),
        ({"commit": None}, {"commit": A}, False),
        ({"commit": None}, {"commit": None}, True),
        ({"commit": None, "sources": [HERE]}, {"commit": None, "sources": [HERE]}, False),
        ({"commit": A, "sources": [HERE]}, {"commit": A, "sources": [HERE]}, True),
        ({"commit": A, "sources": [HERE]}, {"commit": A, "sources": [ELSEWHERE]}, False),
        ({"commit": A + DIRTY, "arm": session("here")}, {"commit": A + DIRTY, "arm": session("depth=5")}, True),
        ({"commit": B, "arm": session("git:main")}, {"commit": A + DIRTY, "arm": session("here")}, False),
        ({"commit": A, "arm": session("git:main")}, {"commit": A, "arm": session("here")}, True),
        ({"commit": A, "arm": session("git:main")}, {"commit": B, "arm": session("git:topic")}, False),
    ],
)
def test_numbers_must_be_equal_where_the_same_code_is_known_to_have_run(baseline, candidate, same):
    assert differences(make_header(**candidate), make_header(**baseline)).same("cpu") is same


def test_environment_variables_are_compared_one_by_one():
    found = differences(environment(make_header(), variables={"KMP_AFFINITY": "compact"}))
    assert [(one.name, one.baseline, one.candidate) for one in found.found] == [("KMP_AFFINITY", "none", "compact")]
    assert not found.same("cpu")


def test_another_accelerator_matters_to_what_runs_on_it_alone():
    before, after = environment(make_header(), devices=A100), environment(make_header(), devices=H100)
    found = differences(after, before, ("cpu", "cuda"))
    assert [one.name for one in found.obstacles("cuda")] == ["cuda device"]
    assert not found.obstacles("cpu")
    assert found.same("cpu")
    assert not found.same("cuda")


def test_a_device_that_nothing_runs_on_is_not_mentioned():
    found = differences(environment(make_header(), devices=H100), environment(make_header(), devices=A100))
    assert found.found == []


def test_settings_of_arms_are_named_and_threads_among_them_are_no_obstacle():
    ours, theirs = arms(threads="1")
    found = differences(environment(theirs, threads=1), ours, settings=["threads"])
    assert {(one.name, one.matters) for one in found.found} == {
        ("number of threads", False),
        ("setting threads", False),
    }
    assert not found.same("cpu")


def test_another_heap_keeps_times_on_a_cpu_apart_and_nothing_else():
    plain = make_header(settings=Settings(heap="plain"))
    found = differences(plain, devices=("cpu", "cuda"))
    assert [(one.name, one.baseline, one.candidate) for one in found.obstacles("cpu")] == [("heap", "kept", "plain")]
    assert not found.obstacles("cuda")
    assert found.same("cpu")
    assert not differences(plain, devices=("cuda",)).found
    assert not differences(plain, settings=("heap",)).obstacles("cpu")


def test_times_under_the_users_own_switches_are_not_those_under_torchs():
    source = WorkloadSource(
        name="net.py:f", family="user", module="/net.py", function="f", builtin=False,
        switches=("torch.backends.cudnn.benchmark = True",),
    )  # fmt: skip
    kept = make_header(settings=Settings(keep_flags=True), sources=[source])
    found = differences(kept)
    (obstacle,) = [one for one in found.obstacles("cpu") if one.name == "switches of torch"]
    assert (obstacle.baseline, obstacle.candidate) == (
        "as torch ships them",
        "the user's own (torch.backends.cudnn.benchmark = True)",
    )
    assert not found.same("cpu")


def test_switches_that_the_arms_of_one_session_differ_in_are_told_and_their_times_compared():
    ours, theirs = (make_header(arm=session("here"), settings=Settings(keep_flags=kept)) for kept in (False, True))
    found = differences(theirs, ours)
    assert [(one.name, one.baseline, one.candidate) for one in found.found] == [
        ("switches of torch", "as torch ships them", "the user's own (none is set)")
    ]
    assert not found.obstacles("cpu")
    assert not found.same("cpu")
    other = replace(theirs, arm=replace(session("here"), session="another"))
    assert [one.name for one in differences(other, ours).obstacles("cpu")] == ["switches of torch"]
