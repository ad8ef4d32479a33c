"""What checks come to: sentences, changes between runs, what a machine has, and where cases are pointed to."""

from pathlib import Path
from typing import Any

from msgspec import structs

from ampbench import store
from ampbench.records.measured import Failure, Update
from ampbench.records.rules import FAKE
from ampbench.store import StoredRun
from ampbench.studies.check import (
    DEFECTIVE,
    DIFFERS,
    GOOD,
    NOT_SHOWN,
    Checked,
    came_or_went,
    conclusions,
    diagnosis,
    pointers,
)
from ampbench.studies.study import Torch
from tests.stored_runs import holding, make_case, make_divergence, make_header, write_run

CACHE, EPS, MIXED = "stale-weight-cast", "adam-fp16-eps", "promote-other-half"


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
    results = [checked(EPS, DEFECTIVE), checked(CACHE, GOOD), checked(MIXED, NOT_SHOWN)]
    assert counts(*results) == [("cpu", 1, 2, 1, 0, None)]
    assert counts(checked(MIXED, DEFECTIVE, "xpu", how=FAKE)) == [("xpu (fake tensors)", 1, 1, 1, 1, None)]


def test_what_differs_by_design_is_told_as_a_trap_and_counted_among_no_defects() -> None:
    results = [checked("bf16-weight-update", DIFFERS), checked("scale-underflow", GOOD)]
    assert counts(*results) == [("cpu", 0, 0, 0, 0, 1)]
    assert counts(*results, checked(EPS, GOOD)) == [("cpu", 0, 1, 0, 0, 1)]


def test_what_came_is_told_before_what_went_and_other_programs_are_no_change(tmp_path: Path) -> None:
    before = run_of(tmp_path / "1", checked(CACHE, DEFECTIVE), checked(EPS, GOOD), checked(MIXED, GOOD))
    after = run_of(
        tmp_path / "2", checked(CACHE, GOOD), checked(EPS, DEFECTIVE), checked(MIXED, DEFECTIVE, program="b")
    )
    came, went = came_or_went(before, after)
    assert (came.check, came.before, came.after, came.came) == (EPS, GOOD, DEFECTIVE, True)
    assert came.remedy
    assert (went.check, went.came) == (CACHE, False)


def test_a_machine_is_told_what_runs_of_this_very_torch_on_this_processor_found(tmp_path: Path) -> None:
    environment = make_header().environment
    own = run_of(tmp_path / "1", checked(EPS, DEFECTIVE), checked(CACHE, DIFFERS))
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
