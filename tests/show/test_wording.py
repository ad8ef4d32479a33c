"""The words of statements: every code has a line, and facts are spelled in it as their unit is."""

from string import Formatter
from typing import Any

import pytest

from ampbench.core.statement import Answer, Arithmetic, Crossing, Flaw, Hint, Note, Refusal, Undecided, state
from ampbench.records.changes import Cause, Evidence
from ampbench.show.wording import (
    BRIEFLY,
    CAUSES,
    REFUSALS,
    TEMPLATES,
    answer,
    briefly,
    gains,
    verdict_words,
    why,
    words,
)

COMPOSED, GAINS = {Answer.REFUSED, Answer.UNDECIDED}, {Answer.TAKE, Answer.SAVE}
"""Answers that are made of the words of others, and answers that tables of many networks show in numbers."""
CODES = [*Flaw, *Refusal, *Undecided, *Note, *Arithmetic, *Hint, *Crossing, *Answer]


def test_every_code_has_one_line() -> None:
    worded = set(CODES) - COMPOSED - {*Refusal}
    assert TEMPLATES.keys() == worded, "TEMPLATES of show/wording.py has a line for each code, and no other"
    assert all(list(Formatter().parse(template)) for template in TEMPLATES.values())
    assert REFUSALS.keys() == {*Refusal}
    assert len(set(CODES)) == len(CODES)
    assert {*Refusal, *Undecided, *Answer} - COMPOSED - GAINS == BRIEFLY.keys()
    assert {*Cause} - {Cause.NONE} == CAUSES.keys()
    assert max(map(len, [*BRIEFLY.values(), briefly(Flaw.FP32_LOSS)])) < 20


@pytest.mark.parametrize(
    ("status", "code", "number", "limit", "cell"),
    [
        ("baseline", None, None, None, "baseline"),
        ("refused", Refusal.ERROR, 0.0384, 2e-2, "refused: output error 3.8e-02 > 0.02 in waves"),
        ("refused", Refusal.SPREAD, 1.38, 0.2, "refused: error over spread 1.38x > 0.20x in waves"),
        ("refused", Refusal.UPDATE, 0.042, 0.02, "refused: updates lost 4.2% > 2% in waves"),
        ("refused", Refusal.OUTPUTS, 1200, 0, "refused: not finite: 1,200"),
        ("refused", Refusal.SCALE, 2.0**149, 1, "refused: loss scale 1/7.14e+44 < 1"),
        ("refused", Refusal.TRAINS_WORSE, 0.26, None, "refused: training 26% worse"),
        ("refused", Refusal.TRAINS_WORSE, None, None, "refused: training"),
        ("undecided", Undecided.NO_OPTIMIZER, None, None, "undecided: no optimizer"),
        ("undecided", Flaw.REFERENCE_NAN, None, None, "undecided: network not finite"),
    ],
)
def test_a_cell_has_the_verdict_with_the_number_that_decided(
    status: str, code: Any, number: float | None, limit: float | None, cell: str
) -> None:
    row = {"verdict": status, "verdict_code": code and str(code), "verdict_number": number, "verdict_limit": limit}
    assert verdict_words({"outcome": "ok", "verdict_subject": "waves", **row}) == cell
    assert verdict_words({"outcome": "failed", **row}) == ""


def test_facts_are_spelled_as_their_unit_is() -> None:
    facts = {"count": 1, "elements": 1, "what": "gradient", "alone": True}
    assert words(state(Flaw.FP32_GRADIENT, **facts)) == (
        "1 of 1 gradient element is not finite in fp32 already, though finite in fp64: the network leaves fp32's range"
    )
    bound = {"bound": "fp32, bf16_pure", "helps": "no", "fewer": "--path compiled", "low": 0.404, "high": 0.5}
    assert words(state(Hint.LAUNCH_BOUND, **bound)) == (
        "launch-bound in fp32, bf16_pure: no precision helps; larger batch, or --path compiled (the device has work "
        "for 40.4%–50.0% of a step)"
    )


OK = {"code": Refusal.ERROR, "number": 5e-3, "limit": 0.02, "evidence": Evidence.INPUTS}
TAKES = {"precision": "bf16_pure", "than": "fp32", "speed": 2.5} | OK
LOST = {"passed_code": Refusal.UPDATE, "passed_number": 0.042, "passed_limit": 0.02, "passed_speed": 3.0}
PASSED = {"passed": "bf16_pure", "remedy": "bf16_master"} | LOST


@pytest.mark.parametrize(
    ("code", "facts", "sentence"),
    [
        (
            Answer.TAKE,
            TAKES | {"subject": "scores", "memory": 0.5, "than": "default", "over_fp32": 3.0},
            ("take bf16_pure: 2.50x the speed and 0.50x the memory of default (3.00x the speed of fp32 with tf32 off)"),
        ),
        (
            Answer.UNCERTAIN,
            {"precision": "fp32", "best": "bf16_pure", "best_speed": 1.03, "cause": Cause.OPEN, "longer": "budget="},
            "stay in fp32: nothing is certainly faster, at best bf16_pure with 1.03x; raise budget= to decide",
        ),
        (
            Answer.REFUSED,
            {"precision": "fp32"} | PASSED,
            "stay in fp32: bf16_pure is 3.00x as fast, but refused (updates lost); try bf16_master",
        ),
    ],
)
def test_an_answer_is_a_sentence_that_its_reason_ends(code: Any, facts: dict[str, Any], sentence: str) -> None:
    statement = state(code, **facts)
    assert answer(statement) == sentence
    assert sentence.endswith(why(statement))
    assert gains(statement) in sentence
