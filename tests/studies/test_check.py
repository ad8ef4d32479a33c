"""Checks: which are run where, what a program comes to, and what is concluded, compared and pointed to."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec import structs
from msgspec.structs import replace

from ampbench import store
from ampbench.defects import CACHE, COMPILE, Check
from ampbench.errors import NothingComparableError, NothingToRunError, UnknownNameError
from ampbench.judge.compare import compare
from ampbench.records.case import DeviceDescription
from ampbench.records.measured import Failure, Fitness, Update
from ampbench.records.rules import DEVICE, FAKE, NOT_OBSERVED
from ampbench.store import StoredRun
from ampbench.studies import check as instrument
from ampbench.studies import devices_measure as measure
from ampbench.studies.check import (
    DEFECTIVE,
    DIFFERS,
    GOOD,
    NOT_SHOWN,
    STUDY,
    CheckAsked,
    Checked,
    ChecksAsked,
    conclusions,
    diagnosis,
    pointers,
    wanted_of,
)
from ampbench.studies.devices_measure import do_check, run_program
from ampbench.studies.study import Torch, asked_for
from ampbench.worker.worker import Work
from tests.stored_runs import holding, make_case, make_divergence, make_header, write_run

CAST, EPS, MIXED = "stale-weight-cast", "adam-fp16-eps", "promote-other-half"


def checked(check: str, outcome: str, device: str = "cpu", **of: Any) -> Checked:
    common = {"how": "device", "program": "aa", "expected": "a", "seen": "b"}
    return Checked(check=check, outcome=outcome, device=device, **{**common, **of})


def run_of(folder: Path, *found: Checked, **header: Any) -> StoredRun:
    return holding(store.read_run(write_run(folder, [], **header)), *found)


def counts(*results: Checked) -> list[tuple[Any, ...]]:
    statements = conclusions(None, Torch("torch 2.15.0", results))
    names = ("number", "shown", "training", "inference", "traps")
    return [(statement.subject, *(statement.facts.get(name) for name in names)) for statement in statements]


def test_defects_are_counted_by_what_they_matter_for_among_those_that_could_be_shown() -> None:
    results = [checked(EPS, DEFECTIVE), checked(CAST, GOOD), checked(MIXED, NOT_SHOWN)]
    assert counts(*results) == [("cpu", 1, 2, 1, 0, None)]
    assert counts(checked(MIXED, DEFECTIVE, "xpu", how=FAKE)) == [("xpu (fake tensors)", 1, 1, 1, 1, None)]


def test_what_differs_by_design_is_told_as_a_trap_and_counted_among_no_defects() -> None:
    results = [checked("bf16-weight-update", DIFFERS), checked("scale-underflow", GOOD)]
    assert counts(*results) == [("cpu", 0, 0, 0, 0, 1)]
    assert counts(*results, checked(EPS, GOOD)) == [("cpu", 0, 1, 0, 0, 1)]


def test_what_came_is_told_before_what_went_and_other_programs_are_no_change(tmp_path: Path) -> None:
    found = checked(CAST, DEFECTIVE), checked(EPS, GOOD), checked(MIXED, GOOD)
    before = run_of(tmp_path / "1", *found, explains="check")
    found = checked(CAST, GOOD), checked(EPS, DEFECTIVE), checked(MIXED, DEFECTIVE, program="b")
    comparison = compare(before, run_of(tmp_path / "2", *found, explains="check"))
    came, went = comparison.defects
    assert (came.check, came.before, came.after, came.came) == (EPS, GOOD, DEFECTIVE, True)
    assert came.remedy
    assert (went.check, went.came) == (CAST, False)
    assert comparison.checks == 3
    elsewhere = run_of(tmp_path / "3", checked(CAST, GOOD, "cuda"), explains="check")
    with pytest.raises(NothingComparableError, match="nothing in common that can be compared"):
        compare(before, elsewhere)


def test_a_machine_is_told_what_runs_of_this_very_torch_on_this_processor_found(tmp_path: Path) -> None:
    environment = make_header().environment
    own = run_of(tmp_path / "1", checked(EPS, DEFECTIVE), checked(CAST, DIFFERS))
    (first, *_, last) = statements = list(diagnosis([own], environment))
    assert (first.code, first.facts["number"], first.facts["shown"]) == ("check-defects", 1, 2)
    assert (last.code, last.facts["commands"]) == ("check-shown", f"ampbench show {own.path}")
    (nothing,) = diagnosis([own], structs.replace(environment, torch_version="2.16.0"))
    assert (nothing.code, nothing.facts) == ("check-unasked", {"version": "2.16.0"})
    mended = run_of(tmp_path / "2", checked(EPS, GOOD))
    assert list(diagnosis([own, mended], environment))[-1].facts == last.facts
    assert "check-shown" not in [each.code for each in diagnosis([mended], environment)]
    assert list(diagnosis([own], structs.replace(environment, cpu_flags=["avx2"]))) != statements


def test_a_case_that_fails_with_a_known_error_is_pointed_to_its_check(tmp_path: Path) -> None:
    case = make_case("bf16_autocast")
    message = "RuntimeError: Unexpected floating ScalarType in at::autocast::prioritize"
    failure = Failure(case_id=case.case_id, stage="round", cause="exception", message=message)
    (said,) = pointers(store.read_run(write_run(tmp_path, [case], failure)))
    assert (said.code, said.facts["cases"], said.facts["check"]) == ("check-error", 1, MIXED)


def test_still_weights_in_bf16_are_pointed_to_their_check(tmp_path: Path) -> None:
    case = make_case("bf16_pure", phase="training")
    still = Update(steps=3, storage="bf16", moving=100, swallowed=60)
    (said,) = pointers(store.read_run(write_run(tmp_path / "1", [case], make_divergence(case, update=still))))
    assert (said.code, said.facts["cases"], said.facts["check"]) == ("check-unmoved", 1, "bf16-weight-update")
    moving = make_divergence(case, update=structs.replace(still, swallowed=50))
    assert not list(pointers(store.read_run(write_run(tmp_path / "2", [case], moving))))
    full = make_divergence(case, update=structs.replace(still, storage="fp32"))
    assert not list(pointers(store.read_run(write_run(tmp_path / "3", [case], full))))


def row(name: str, **of: object) -> Check:
    common = {"area": CACHE, "title": "t", "threads": ("a/b#1",), "why": "w", "remedy": "r"}
    return Check(name=name, **{**common, **of})  # type: ignore[arg-type]


ROWS = {
    one.name: one
    for one in (
        row("everywhere", fake=True),
        row("real", devices=("cpu", "cuda")),
        row("slow", area=COMPILE, slow=True, compiler=True, devices=("cpu",)),
    )
}


def wanted(*devices: str, names: tuple[str, ...] = (), areas: tuple[str, ...] = (), **environment: object) -> list[str]:
    here = replace(
        make_header().environment,
        devices=[DeviceDescription(type="cpu", available=True)],
        **environment,  # type: ignore[arg-type]
    )
    with mock.patch.object(instrument, "CHECKS", ROWS), mock.patch.object(instrument, "program_of", return_value=""):
        found = wanted_of(here, devices, ChecksAsked(names=[*names, *areas]))
    return [f"{one.check} {one.device}" + (f": {one.why}" if one.why else "") for one in found]


def test_all_fast_checks_are_run_here_and_where_fake_tensors_answer() -> None:
    assert wanted() == ["everywhere cpu", "real cpu", "everywhere cuda", "everywhere xpu"]


def test_a_check_that_needs_a_device_that_is_absent_says_so_where_it_was_named() -> None:
    assert wanted("cuda", names=("real",)) == ["real cuda: needs a real cuda, and there is none"]
    with pytest.raises(NothingToRunError):
        wanted("xpu", names=("real",))


def test_slow_checks_are_run_by_name_or_area_and_those_that_compile_need_a_compiler() -> None:
    assert wanted("cpu", areas=(COMPILE,), compiler="/usr/bin/g++") == ["slow cpu"]
    (said,) = wanted("cpu", names=("slow",), compiler=None)
    assert said.startswith("slow cpu: needs a C++ compiler")


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean stale-weight-cast"):
        asked_for(STUDY, {"names": ["stale-weight-cats"]})
    with pytest.raises(UnknownNameError, match="unknown check 'complie': did you mean compile"):
        asked_for(STUDY, {"names": ["complie"]})


def ran(text: str, device: str = "cpu", *, by_design: bool = False) -> Checked:
    row = Check(
        name="one", area=CACHE, title="t", threads=("a/b#1",), why="w", remedy="r", by_design=by_design, fake=True
    )
    with mock.patch.object(measure, "CHECKS", {"one": row}):
        return run_program("one", text, device)


def test_what_is_seen_as_expected_is_good() -> None:
    found = ran('expected = "a"\nseen = "a"\nprint("expected:", expected)\nprint("more")\n')
    assert (found.outcome, found.how, found.expected, found.seen) == (GOOD, DEVICE, "a", "a")
    assert found.said == ["more"]
    assert found.seconds is not None


@pytest.mark.parametrize(("by_design", "outcome"), [(False, DEFECTIVE), (True, DIFFERS)])
def test_what_is_seen_otherwise_is_a_defect_or_differs_by_design(by_design: bool, outcome: str) -> None:
    assert ran('expected, seen = "a", "b"', by_design=by_design).outcome == outcome


def test_a_program_that_ends_with_an_error_shows_nothing() -> None:
    found = ran('expected = "a"\nraise ValueError("two\\nlines")')
    assert (found.outcome, found.how, found.seen) == (NOT_SHOWN, NOT_OBSERVED, "")
    assert found.why == "the program ended with ValueError: two"


def test_an_absent_device_is_stood_in_for_by_fake_tensors_under_its_own_autocast() -> None:
    text = """import torch
with torch.autocast("xpu", dtype=torch.bfloat16):
    seen = str(torch.mm(torch.ones(2, 2, device="xpu"), torch.ones(2, 2, device="xpu")).dtype)
expected = "torch.bfloat16"
"""
    found = ran(text, "xpu")
    assert (found.outcome, found.how) == (GOOD, FAKE)


@pytest.mark.parametrize(
    ("name", "others", "outcome"),
    [("bf16-matmul-speed", 0.8, NOT_SHOWN), ("bf16-matmul-speed", 0.1, DEFECTIVE), ("adam-fp16-eps", 0.8, DEFECTIVE)],
)
def test_what_goes_by_times_shows_nothing_while_others_use_the_cpu(name: str, others: float, outcome: str) -> None:
    work = mock.Mock(spec=Work, device_type="cpu")
    with mock.patch.object(measure, "FitnessWatch") as watch:
        watch.return_value.seen.return_value = Fitness(other_share=others)
        found = do_check(work, CheckAsked(check=name, text='expected, seen = "a", "b"'))
    assert found.outcome == outcome
    assert ("other work took 80.0% of the CPU" in found.why) == (outcome == NOT_SHOWN)
