import pytest

from ampbench.errors import UsageError
from ampbench.records.case import _test, matches


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
