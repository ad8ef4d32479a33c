"""The words of statements: every code has a line, and facts are spelled in it as their unit is."""

from typing import Any

import pytest

from ampbench.base.statement import Flaw, Refusal, Remedy, Statement, state
from ampbench.present.wording import TEMPLATES, words

CODES = [*Flaw, *Refusal, *Remedy]


def test_every_code_has_one_line() -> None:
    assert sorted(TEMPLATES) == sorted(CODES)
    assert len(set(CODES)) == len(CODES)


def test_a_statement_has_no_words() -> None:
    found = state(Refusal.UPDATE, "a case", kept=0.5, still=None)
    assert found == Statement(code=Refusal.UPDATE, facts={"kept": 0.5}, subject="a case")
    assert set(Statement.__slots__) == {"code", "facts", "severity", "subject"}


@pytest.mark.parametrize(
    ("code", "facts", "line"),
    [
        (Flaw.ELEMENTS, {"count": 1, "what": "output"}, "1 output element is not finite"),
        (Flaw.ELEMENTS, {"count": 1200, "what": "output"}, "1,200 output elements are not finite"),
        (Refusal.UPDATE, {"kept": 0.025}, "it keeps 2.50% of its updates"),
        (
            Refusal.UPDATE,
            {"kept": 0.025, "still": 0.998},
            "it keeps 2.50% of its updates: 99.8% of the weights that should move do not",
        ),
        (
            Refusal.ERROR,
            {"column": "output_rel_l2", "output": "scores", "value": 0.0384, "reference": "fp32", "limit": 0.02},
            "its error in scores is 3.8e-02 (against fp32: fp64 failed), more than 0.02",
        ),
        (
            Refusal.BY_CHANCE,
            {"apart": 1.2},
            (
                "its error means nothing: two fp64 steps already lie 1.2e+00 apart, as the network draws random "
                "numbers, other ones in other dtypes, or keeps state of its own"
            ),
        ),
        (
            Flaw.FP32_GRADIENT,
            {"count": 1, "elements": 1, "what": "gradient", "alone": True},
            (
                "1 of 1 gradient element is not finite in fp32 already, though finite in fp64: the network leaves "
                "fp32's range"
            ),
        ),
        (
            Flaw.FP32_GRADIENT,
            {"count": 3, "what": "gradient", "alone": False},
            "3 gradient elements are not finite in fp32 already",
        ),
        (
            Remedy.OTHER_PRECISION,
            {"precision": "bf16_master", "speed": 1.1, "bytes": 8, "than": "bf16_pure"},
            "bf16_master keeps the updates: 1.10x the speed of fp32, 8 bytes a parameter more than bf16_pure",
        ),
    ],
)
def test_facts_are_spelled_as_their_unit_is(code: Any, facts: dict[str, Any], line: str) -> None:
    assert words(state(code, **facts)) == line
