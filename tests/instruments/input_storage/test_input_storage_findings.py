"""What a study of input storage says: two situations that are confused, told apart in plain words."""

import pytest
from msgspec import structs

from ampbench.core.units import UNDEFINED
from ampbench.instruments.input_storage.findings import FREE, LOSSY, UNUSED, comes_to, situation, storage_said
from ampbench.instruments.input_storage.records import ACCEPTED, PROMOTED, TO_LOW, UNTOUCHED, InputUse
from ampbench.instruments.input_storage.show import COLUMNS, storage_section, stored_ways, use_columns
from ampbench.instruments.paired import step_seconds
from ampbench.records.measured import Fitness
from ampbench.show.document import records
from tests.instruments.input_storage.storage_passes import FREE_USE, LOSSY_USE, lossy_pass, storage_pass, stored_inputs
from tests.stored_runs import make_case

CASE = make_case(precision="bf16_autocast")
TRAINING = make_case(precision="bf16_autocast", phase="training")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (FREE_USE, FREE),
        (LOSSY_USE, LOSSY),
        (InputUse(name="x", operation="aten.add", use=PROMOTED, read_in_fp32="aten.add"), LOSSY),
        (InputUse(name="x", operation="aten.relu", use=ACCEPTED, read_in_fp32="aten.relu"), LOSSY),
        (InputUse(name="x", operation="aten.mm", use=TO_LOW), FREE),
        (InputUse(name="x", use=UNTOUCHED), UNUSED),
    ],
)
def test_an_input_is_in_one_of_three_situations(use: InputUse, expected: str) -> None:
    assert situation(use) == expected


def test_where_the_first_op_accepts_half_nothing_is_lost_and_a_cast_is_saved() -> None:
    said = storage_said(CASE, storage_pass(CASE))
    assert said == [
        "nothing is lost: with inputs in bf16, outputs are the same to the last bit",
        "first op of x: addmm accepts bf16 as it is; stored in fp32, autocast casts it to bf16: a cast is saved",
        (
            "a batch is stored in 2.00 KiB, not 4.00 KiB; 5 casts a step → 4, moving 600 B → 500 B; "
            "peak memory 8.79 KiB → 7.81 KiB"
        ),
        "the step: 2.00 ms → 1.00 ms, 1.00 ms saved (95%: 1.00 ms to 1.00 ms)",
    ]


def test_where_the_first_op_needs_fp32_it_is_said_what_is_lost_and_by_how_much() -> None:
    said = storage_said(TRAINING, lossy_pass(TRAINING))
    assert said[:2] == [
        (
            "information is lost: with inputs in bf16, outputs, loss and gradients are others: output error "
            "1.0e-03 → 2.0e-03 (2.00x), absolute loss error 1.0e-04 → 2.0e-04 (2.00x), gradient error 2.0e-03 → "
            "6.0e-03 (3.00x)"
        ),
        "first op of x: native_layer_norm needs fp32 and has it cast back: what rounding to bf16 took away is lost",
    ]


@pytest.mark.parametrize(
    ("uses", "sentence"),
    [
        ([InputUse(name="x", operation="aten.add", use=PROMOTED, read_in_fp32="aten.add")],
         ("first op of x: add computes in fp32, as other operands of it are in fp32: what rounding to bf16 took away "
         "is lost")),
        ([InputUse(name="x", operation="aten.mul", use=ACCEPTED, read_in_fp32="aten.mul")],
         ("first op of x: mul computes in the dtype it is given, so in bf16 now and in fp32 before: rounding comes "
         "first, and no cast is saved there")),
        ([InputUse(name="x", operation="aten.addmm", use=ACCEPTED, read_in_fp32="aten.add")],
         ("first op of x: addmm accepts bf16 as it is, and a cast is saved; but add reads it again, in fp32 where "
         "stored in fp32: there what rounding to bf16 took away is lost")),
        ([structs.replace(FREE_USE, name=name) for name in "abcde"],
         ("first op of a, b, c and 2 more: addmm accepts bf16 as it is; stored in fp32, autocast casts them to bf16: a "
         "cast is saved")),
        ([InputUse(name="x", use=UNTOUCHED)], "no op reads x"),
    ],
)  # fmt: skip
def test_each_fate_of_an_input_has_its_sentence(uses: list[InputUse], sentence: str) -> None:
    assert sentence in storage_said(CASE, lossy_pass(CASE, uses=uses))


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({"identical": True, "exact": True}, ("nothing is lost: with inputs in bf16, outputs are the same to the last "
         "bit: bf16 holds these inputs exactly")),
        ({"identical": True}, ("nothing is lost: with inputs in bf16, outputs are the same to the last bit: what reads "
         "them commutes with rounding")),
        ({"repeatable": False}, ("bits do not tell whether anything is lost, as the step itself does not give them "
         "twice: output error")),
        ({"exact": True}, "bf16 holds these inputs exactly, but outputs differ, as ops compute in bf16 then"),
    ],
)  # fmt: skip
def test_the_measured_bits_decide_and_not_what_an_op_is_given(changes: dict[str, object], beginning: str) -> None:
    assert storage_said(CASE, lossy_pass(CASE, **changes))[0].startswith(beginning)


def test_a_step_that_does_not_run_with_half_is_told_with_its_error() -> None:
    low = stored_inputs(
        "bf16", casts=None, cast_bytes=None, samples=[], peak_bytes=None, output_rel_l2=None, error="E: x"
    )
    found = storage_pass(CASE, low=low, identical=None, uses=[])
    assert storage_said(CASE, found) == ["the step does not run with inputs in bf16: E: x"]
    (side,) = [block for block in storage_section(CASE, found).blocks if block.title == "Side by side"]
    assert side.rows[1][1:3] == ["2.00 KiB", "–"]


def test_an_error_of_zero_or_none_gives_no_ratio() -> None:
    found = lossy_pass(CASE, full=stored_inputs("fp32", output_rel_l2=0.0), low=stored_inputs("bf16"))
    assert "output error 0 → 1.0e-03" in storage_said(CASE, found)[0]
    assert "x)" not in storage_said(CASE, found)[0]
    none = lossy_pass(CASE, low=stored_inputs("bf16", output_rel_l2=None))
    assert "output error 1.0e-03 → –" in storage_said(CASE, none)[0]


def test_an_unquiet_machine_is_named() -> None:
    found = storage_pass(CASE, fitness=Fitness(other_share=0.5))
    *_, times, cause = storage_said(CASE, found)
    assert times == "the step's time: not judged, as the machine was busy"
    assert cause.startswith("other processes used 50.0% of the CPU")


def test_no_time_is_claimed_where_others_used_the_machine() -> None:
    copied = [stored_inputs(dtype, copy_samples=[1e-3]) for dtype in ("fp32", "bf16")]
    found = storage_pass(CASE, full=copied[0], low=copied[1], fitness=Fitness(steal_share=0.2))
    assert not any(" ms" in line for line in storage_said(CASE, found))
    assert any(" ms" in line for line in storage_said(CASE, structs.replace(found, fitness=Fitness())))


def test_times_too_noisy_to_say_are_not_told() -> None:
    noisy = stored_inputs("bf16", samples=[[1e-3 * 4**build] for build in range(8)])
    assert storage_said(CASE, storage_pass(CASE, low=noisy))[-1] == (
        "the step's time is too noisy to say: its builds differ more than 3 times"
    )


def test_a_step_without_casts_says_nothing_of_casts() -> None:
    none = [stored_inputs(dtype, casts=0, cast_bytes=0) for dtype in ("fp32", "bf16")]
    savings = storage_said(CASE, storage_pass(CASE, full=none[0], low=none[1]))[2]
    assert savings == "a batch is stored in 2.00 KiB, not 4.00 KiB; peak memory 8.79 KiB → 7.81 KiB"


def test_the_table_of_inputs_calls_nothing_accepted_that_loses() -> None:
    use = InputUse(name="x", operation="aten.relu", use=ACCEPTED, read_in_fp32="aten.relu")
    blocks = storage_section(CASE, lossy_pass(CASE, uses=[use])).blocks
    (inputs,) = (block for block in blocks if "input" in block.headers)
    assert inputs.rows == [["x", "relu", "", "taken as it is", "relu", LOSSY]]


def test_an_error_of_the_loss_is_said_to_be_absolute() -> None:
    side = storage_section(TRAINING, lossy_pass(TRAINING)).blocks[-1]
    assert side.headers[-3:] == ["output error", "absolute loss error", "gradient error"]
    assert "that of the loss absolute, the others relative" in side.note
    assert "absolute" not in storage_section(CASE, storage_pass(CASE)).blocks[-1].note


def test_a_case_comes_to_lost_where_one_of_its_inputs_does() -> None:
    assert comes_to(storage_pass(CASE, uses=[FREE_USE, LOSSY_USE])) == LOSSY
    assert comes_to(storage_pass(CASE)) == FREE
    assert comes_to(storage_pass(CASE, uses=[])) == UNDEFINED


def test_columns_without_a_number_are_left_out_and_copies_are_told_where_there_are_some() -> None:
    def headers(found: object) -> list[str]:
        return list(storage_section(CASE, found).blocks[-1].headers)  # type: ignore[arg-type]

    assert headers(storage_pass(CASE)) == ["inputs in", "stored", "casts", "moved", "step", "peak", "output error"]
    copied = [
        stored_inputs(dtype, copy_samples=[2e-6 * size, 1e-6 * size])
        for dtype, size in (("fp32", 4096), ("bf16", 2048))
    ]
    found = storage_pass(CASE, full=copied[0], low=copied[1])
    assert headers(found)[1:3] == ["stored", "copy"]
    assert "its copy to the device takes 2.05 ms, not 4.10 ms" in storage_said(CASE, found)[2]


def test_machines_have_a_row_for_each_dtype_and_each_input() -> None:
    rows = records(COLUMNS, stored_ways(lossy_pass(CASE)))
    assert [row["dtype"] for row in rows] == ["fp32", "bf16"]
    assert [row["casts"] for row in rows] == [4, 5]
    assert [row["identical"] for row in rows] == [True, False]
    assert [row["seconds"] for row in rows] == pytest.approx([2.0035e-3, 1.0035e-3])
    assert rows[0]["copy_seconds"] is None
    assert records(use_columns("bf16"), lossy_pass(CASE).uses)[0]["situation"] == LOSSY


def test_a_step_is_worth_the_median_of_its_builds_fastest_samples() -> None:
    assert step_seconds([[3.0, 1.0], [2.5], [2.0, 9.0]]) == 2.0
    assert step_seconds([[1.0], [3.5]]) is None
    assert step_seconds([]) is None
