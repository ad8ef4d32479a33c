from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ampbench.core.statement import Flaw, Note, Severity, Statement
from ampbench.judge import frame
from ampbench.judge.notes import statements
from ampbench.records.case import Case, DeviceDescription
from ampbench.records.measured import Late, LossAlone, Stop
from ampbench.records.run import Imported
from ampbench.show.wording import lines
from ampbench.store import StoredRun
from ampbench.studies.ceilings import Ceiling
from tests.compared_runs import BF16, FP32, Times, environment, make_run
from tests.stored_runs import holding, make_case, make_ceiling, make_divergence, make_header, make_memory


def run_of(*cases: Case, **header: Any) -> StoredRun:
    return make_run(Times(*((case, [1e-3] * 4) for case in cases)), header=make_header(**header))


def with_rounds(run: StoredRun, **changes: Any) -> StoredRun:
    return replace(run, rounds=[structs.replace(each, **changes) for each in run.rounds])


def notes(run: StoredRun) -> list[Statement]:
    return statements(run, frame.run_rows(run))


def held(run: StoredRun, *codes: Note | Flaw) -> list[tuple[str, dict[str, float | str]]]:
    """Return the cases that notes of these codes hold for, with their facts."""
    return [(note.subject, dict(note.facts)) for note in notes(run) if note.code in codes]


def texts(run: StoredRun) -> Sequence[str]:
    return lines(notes(run), run.cases)


def test_what_no_reader_may_miss_is_a_problem_and_the_rest_is_none() -> None:
    arithmetic = {"bfloat16": "native", "float16": "emulated"}
    emulating = DeviceDescription(type="cpu", available=True, name="AMD EPYC", arithmetic=arithmetic)
    header = environment(make_header(imported=Imported(program="asv", file="a.json")), devices=[emulating])
    times = Times((FP32, [1e-3] * 4), (make_case("fp16_pure"), [1e-3] * 4))
    run = make_run(times, control=[1e-3] * 4, header=header)
    loud = with_rounds(run, samples=[[1e-3, 2e-3, 2e-3]])
    problems = {note.code: note.severity is Severity.PROBLEM for note in notes(loud)}
    assert problems == {Note.EMULATED: True, Note.IMPORTED: True, Note.CONTROL: False, Note.UNQUIET: True}
    native = structs.replace(emulating, arithmetic={"bfloat16": "native", "float16": "native"})
    codes = [note.code for note in notes(replace(run, header=environment(make_header(), devices=[native])))]
    assert codes == [Note.CONTROL]


def of_work(run: StoredRun, *ceilings: Ceiling, **flops: int) -> StoredRun:
    cases = {"fp32": FP32, "bf16": BF16}
    memory = {
        cases[dtype].case_id: make_memory(cases[dtype], 1, flops={dtype: count}) for dtype, count in flops.items()
    }
    return holding(replace(run, memory=memory), *ceilings)


def test_more_than_the_ceiling_allows_is_said_of_its_cases() -> None:
    run, ceilings = run_of(FP32, BF16), (make_ceiling("fp32", 1e9), make_ceiling("bf16", 1e9))
    assert notes(of_work(run, *ceilings, fp32=1_000_000, bf16=1_050_000)) == []
    ((case_id, facts),) = held(of_work(run, *ceilings, fp32=500_000, bf16=1_170_000), Note.ABOVE_CEILING)
    assert (case_id, facts["share"]) == (BF16.case_id, pytest.approx(1.17))
    both = held(of_work(run, *ceilings, fp32=2_000_000, bf16=1_170_000), Note.ABOVE_CEILING)
    assert [case_id for case_id, _ in both] == [FP32.case_id, BF16.case_id]


def test_notes_on_the_loss_are_of_the_late_place_where_it_exists() -> None:
    first, last = (make_divergence(BF16, loss_alone=LossAlone(grad_at=at, grad_rel_l2=0.5)) for at in ("x4", "x16"))
    late = {BF16.case_id: Late(case_id=BF16.case_id, stop=Stop.PASSES, divergence=last)}
    run = replace(run_of(FP32, BF16), divergence={BF16.case_id: first}, late=late)
    assert held(run, Note.LOSS_ERROR) == [(BF16.case_id, {"at": "x16", "error": 0.5})]


def test_what_is_not_finite_and_what_is_not_against_fp64_is_the_first_thing_said() -> None:
    nan = {"output_elements": 32, "output_reference_nonfinite": 16, "output_reference_nan": 16}
    run = make_run(Times((FP32, [1e-3] * 4), (BF16, [1e-3] * 4)), output_rel_l2=None, **nan)
    assert [note.code for note in notes(run)] == [Flaw.REFERENCE_NAN] * 2
    assert texts(run) == [
        "linear_chain: 16 of 32 output elements are NaN in fp64 already: the network, not a precision, makes them"
    ]


def test_fp32_that_is_not_fp32_is_said_with_what_made_it_so() -> None:
    run = with_rounds(run_of(FP32, BF16), fp32_products={"matmul": "bf16", "conv": "bf16"})
    shell = structs.replace(run.header.environment, variables={"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"})
    run = replace(run, header=structs.replace(run.header, environment=shell))
    assert held(run, Note.ROUNDED)[0] == (
        FP32.case_id,
        {"dtypes": "bf16", "variables": "ONEDNN_DEFAULT_FPMATH_MODE=BF16"},
    )


def test_autocast_that_casts_nothing_is_named() -> None:
    def ids(**flops: int) -> list[str]:
        memory = {each.case_id: make_memory(each, 1, flops=flops) for each in (FP32, BF16)}
        return [case_id for case_id, _ in held(replace(run_of(FP32, BF16), memory=memory), Note.NOTHING_CAST)]

    assert ids(fp32=100) == [BF16.case_id]
    assert ids(fp32=100, bf16=1) == ids() == []


@pytest.mark.parametrize(("device", "conv", "named"), [("cuda", 80, True), ("cuda", 20, False), ("cpu", 80, False)])
def test_channels_last_is_advised_for_convolutions_in_half_on_cuda(device: str, conv: int, named: bool) -> None:
    case = structs.replace(BF16, device=device)
    work = {"flops": {"bf16": 100}, "flops_by_operation": {"conv": {"bf16": conv}, "matmul": {"bf16": 100 - conv}}}
    run = replace(run_of(case), memory={case.case_id: make_memory(case, 1, **work)})
    assert held(run, Note.CHANNELS_LAST) == [(case.case_id, {})] * named


def test_kernels_of_attention_are_told_where_precisions_differ_in_them() -> None:
    def facts(**kernels: dict[str, int] | None) -> list[dict[str, float | str]]:
        cases = ((FP32, "fp32"), (BF16, "bf16"))
        memory = {case.case_id: make_memory(case, 1, attention=kernels[name]) for case, name in cases}
        return [each for _, each in held(replace(run_of(FP32, BF16), memory=memory), Note.ATTENTION)]

    differ = {"kernels": "efficient in fp32; flash and math in bf16_autocast", "held": True}
    assert facts(fp32={"efficient": 2}, bf16={"flash": 1, "math": 1}) == [differ] * 2
    assert not facts(fp32={"native": 2}, bf16={"math": 2})[0]["held"], "--sdpa does not reach encoder layers"
    assert facts(fp32={"flash": 2}, bf16={"flash": 4}) == facts(fp32={"flash": 2}, bf16=None) == []
    assert len(facts(fp32={"flash": 2}, bf16={})) == 2
