"""What checks come to: sentences, changes between runs, what a machine has, and where cases are pointed to."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import structs

from ampbench import store
from ampbench.defects.catalogue import CHECKS
from ampbench.instruments.check import findings
from ampbench.instruments.check.findings import came_or_went, changes, diagnosis, place_of, pointers, sentences
from ampbench.instruments.check.records import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, Checked
from ampbench.instruments.check.show import sections
from ampbench.records.casts import CastPass, CastTrace, Operation
from ampbench.records.measured import Failure, Update
from ampbench.records.rules import FAKE
from ampbench.store import StoredRun
from tests.stored_runs import holding, make_case, make_divergence, make_header, write_run

CACHE, EPS, MIXED = "stale-weight-cast", "adam-fp16-eps", "promote-other-half"


def checked(check: str, outcome: str, device: str = "cpu", **of: Any) -> Checked:
    common = {"how": "device", "program": "aa", "expected": "a", "seen": "b"}
    return Checked(check=check, outcome=outcome, device=device, **{**common, **of})


def run_of(folder: Path, *found: Checked, **header: Any) -> StoredRun:
    return holding(store.read_run(write_run(folder, [], **header)), *found)


def test_defects_are_counted_by_what_they_matter_for_among_those_that_could_be_shown() -> None:
    found = [checked(EPS, DEFECTIVE), checked(CACHE, GOOD), checked(MIXED, NOT_SHOWN)]
    assert sentences(place_of("2.15.0", "cpu", found), found) == [
        "1 of 2 defects that matter for training is in torch 2.15.0 on cpu: adam-fp16-eps",
        "0 of 1 defect that matters for inference is in torch 2.15.0 on cpu",
    ]
    fake = [checked(MIXED, DEFECTIVE, "xpu", how=FAKE)]
    (said, *_) = sentences(place_of("2.15.0", "xpu", fake), fake)
    assert said.endswith("is in torch 2.15.0 on xpu (fake tensors): promote-other-half")


def test_what_differs_by_design_is_told_as_a_trap_and_counted_among_no_defects() -> None:
    found = [checked("bf16-weight-update", DIFFERS), checked("scale-underflow", GOOD)]
    assert sentences("it", found) == ["1 trap by design is in it: bf16-weight-update"]
    assert sentences("it", [*found, checked(EPS, GOOD)])[0] == "0 of 1 defect that matters for training is in it"


def test_of_a_device_that_is_not_here_only_the_counts_are_told_unless_it_is_asked_for() -> None:
    found = [checked(MIXED, DEFECTIVE), checked(MIXED, DEFECTIVE, "xpu", how=FAKE)]
    here, away = sections("2.15.0", found)
    assert [block.title for block in here.blocks][:1] == ["Defects"]
    assert [block.title for block in away.blocks if block.rows] == []
    assert [block.title for block in away.blocks][-1].startswith("`ampbench check --device xpu` has")
    assert "promote-other-half" in away.blocks[0].title
    for asked in (sections("2.15.0", found, named=["xpu"]), sections("2.15.0", found[1:])):
        assert [block.title for block in asked[-1].blocks if block.rows] == ["Defects"]
    assert sections("2.15.0", found, in_full=True)[-1].blocks[0].rows


def test_what_came_is_told_before_what_went_and_other_programs_are_no_change(tmp_path: Path) -> None:
    before = run_of(tmp_path / "1", checked(CACHE, DEFECTIVE), checked(EPS, GOOD), checked(MIXED, GOOD))
    after = run_of(
        tmp_path / "2", checked(CACHE, GOOD), checked(EPS, DEFECTIVE), checked(MIXED, DEFECTIVE, program="b")
    )
    assert [(one.after.check, one.came, one.went) for one in changes([before], [after])] == [
        (EPS, True, False),
        (CACHE, False, True),
    ]
    came, went = came_or_went(before, after)
    assert (came.check, came.before, came.after, came.came) == (EPS, GOOD, DEFECTIVE, True)
    assert came.remedy
    assert not went.came


def test_a_defect_that_cannot_be_shown_any_more_is_told_to_have_gone_by_nobody(tmp_path: Path) -> None:
    before = run_of(tmp_path / "1", checked(CACHE, DEFECTIVE))
    assert came_or_went(before, run_of(tmp_path / "2", checked(CACHE, NOT_SHOWN))) == []
    assert came_or_went(run_of(tmp_path / "3", checked(CACHE, NOT_SHOWN)), before) == []


def test_a_machine_is_told_what_runs_of_this_very_torch_on_this_processor_found(tmp_path: Path) -> None:
    environment = make_header().environment
    own = run_of(tmp_path / "1", checked(EPS, DEFECTIVE), checked(CACHE, DIFFERS))
    said = diagnosis([own], environment)
    assert said[0].startswith("1 of 2 defects that matter for training")
    assert said[-1] == f"what to do about them: ampbench show {own.path}"
    (nothing,) = diagnosis([own], structs.replace(environment, torch_version="2.16.0"))
    assert nothing.startswith("no run here has looked for known defects of torch 2.16.0 on this processor: `ampbench")
    mended = run_of(tmp_path / "2", checked(EPS, GOOD))
    assert diagnosis([own, mended], environment)[-1] == f"what to do about them: ampbench show {own.path}"
    assert not [line for line in diagnosis([mended], environment) if "what to do" in line]
    assert diagnosis([own], structs.replace(environment, cpu_flags=["avx2"])) != said


def test_a_case_that_fails_with_a_known_error_is_pointed_to_its_check(tmp_path: Path) -> None:
    case = make_case("bf16_autocast")
    message = "RuntimeError: Unexpected floating ScalarType in at::autocast::prioritize"
    failure = Failure(case_id=case.case_id, stage="round", cause="exception", message=message)
    (said,) = pointers(store.read_run(write_run(tmp_path, [case], failure)))
    assert said.startswith(
        f"1 case failed with an error that is known: `ampbench check {MIXED}` looks for that in this torch ("
    )


def test_still_weights_in_bf16_are_pointed_to_their_check(tmp_path: Path) -> None:
    case = make_case("bf16_pure", phase="training")
    still = Update(steps=3, storage="bf16", moving=100, swallowed=60)
    (said,) = pointers(store.read_run(write_run(tmp_path / "1", [case], make_divergence(case, update=still))))
    assert "1 case left most bf16 weights where they were: `ampbench check bf16-weight-update`" in said
    moving = make_divergence(case, update=structs.replace(still, swallowed=50))
    assert pointers(store.read_run(write_run(tmp_path / "2", [case], moving))) == []
    full = make_divergence(case, update=structs.replace(still, storage="fp32"))
    assert pointers(store.read_run(write_run(tmp_path / "3", [case], full))) == []


def test_an_op_of_a_trace_is_pointed_to_a_check_of_its_dtype(tmp_path: Path) -> None:
    case = make_case("fp16_pure")
    run = store.read_run(write_run(tmp_path, [case]))

    def traced(dtype: str, function: str) -> list[str]:
        op = Operation(index=0, name="aten.x", function=f"torch.nn.functional.{function}", inputs=(dtype,))
        found = CastPass(case_id=case.case_id, how="device", trace=CastTrace(ops=[op]))
        return pointers(holding(run, found))

    (said,) = traced("fp16", "cosine_similarity")
    assert said.startswith("1 case called cosine_similarity on fp16: `ampbench check fp16-cosine`")
    assert traced("fp32", "cosine_similarity") == traced("fp16", "relu") == []


def test_nobody_is_pointed_to_what_this_torch_has_mended(tmp_path: Path) -> None:
    case = make_case("bf16_autocast", phase="training")
    message = "RuntimeError: Unexpected floating ScalarType in at::autocast::prioritize"
    failure = Failure(case_id=case.case_id, stage="round", cause="exception", message=message)
    run = store.read_run(write_run(tmp_path, [case], failure))
    for mended, pointed in (("2.11", 0), ("9.0", 1)):
        with mock.patch.object(findings, "CHECKS", {MIXED: replace(CHECKS[MIXED], mended=mended)}):
            assert len(pointers(run)) == pointed
