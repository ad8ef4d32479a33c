import pytest
from msgspec import structs

from ampbench.errors import UsageError
from ampbench.records.case import _test, matches
from tests.stored_runs import make_case


def test_a_case_id_is_readable_and_says_everything():
    assert make_case("bf16_autocast").case_id == (
        "linear_chain[depth=4,width=512]/b8/bf16_autocast/cpu/inference/eager/in-fp32"
    )


def test_what_is_usual_or_missing_is_left_out_of_an_id():
    case = make_case(parameters={}, batch_size=None)
    assert case.case_id == "linear_chain/fp32/cpu/inference/eager/in-fp32"
    assert case.group == "linear_chain"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workload", "other"),
        ("parameters", {"width": 513, "depth": 4}),
        ("precision", "tf32"),
        ("device", "cuda"),
        ("phase", "training"),
        ("path", "compiled"),
        ("input_dtype", "bf16"),
        ("memory_format", "channels_last"),
        ("sdpa", "flash"),
        ("scaler", False),
        ("recipe", "adamw-lm"),
    ],
)
def test_every_field_that_changes_what_is_measured_changes_the_id(field, value):
    assert structs.replace(make_case(), **{field: value}).case_id != make_case().case_id


def test_a_recipe_is_part_of_the_group_and_stands_before_a_missing_scaler():
    case = make_case("fp16_autocast", phase="training", recipe="adamw-lm,lr=1e-05", scaler=False)
    assert case.group == "linear_chain[depth=4,width=512]/b8/recipe-adamw-lm,lr=1e-05"
    assert case.case_id == (
        "linear_chain[depth=4,width=512]/b8/fp16_autocast/cpu/training/eager/in-fp32/recipe-adamw-lm,lr=1e-05/no-scaler"
    )


def test_precisions_of_one_group_share_a_table():
    assert make_case("fp32").group == make_case("bf16_pure", input_dtype="bf16").group


def test_an_expression_is_parsed_once_for_all_cases() -> None:
    _test.cache_clear()
    expression = " or ".join(f"word{number}" for number in range(20_000))
    assert not any(matches(expression, f"case{number}") for number in range(50))
    assert matches(expression, "MLP/word19999")
    assert _test.cache_info().misses == 1


@pytest.mark.parametrize("expression", ["not " * 20_000 + "a", "(" * 20_000 + "a" + ")" * 20_000])
def test_an_expression_nested_without_end_is_refused_in_one_short_line(expression: str) -> None:
    with pytest.raises(UsageError, match="is not an expression of names") as caught:
        matches(expression, "mlp")
    assert len(str(caught.value)) < 200
