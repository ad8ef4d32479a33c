"""The words of statements: every code has a line, and facts are spelled in it as their unit is."""

from typing import Any

import pytest

from ampbench.core.statement import Answer, Arithmetic, Flaw, Hint, Note, Refusal, Statement, Undecided, state
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

COMPOSED = {Answer.TAKE, Answer.SAVE, Answer.REFUSED, Answer.UNDECIDED}
"""Answers that are made of the words of others."""
CODES = [*Flaw, *Refusal, *Undecided, *Note, *Arithmetic, *Hint, *Answer]


def test_every_code_has_one_line() -> None:
    assert sorted(TEMPLATES) == sorted(set(CODES) - COMPOSED - {*Refusal})
    assert REFUSALS.keys() == {*Refusal}
    assert len(set(CODES)) == len(CODES)
    assert {*Refusal, *Undecided, *Answer} - COMPOSED == BRIEFLY.keys()
    assert {*Cause} - {Cause.NONE} == CAUSES.keys()
    assert max(map(len, [*BRIEFLY.values(), briefly(Flaw.FP32_LOSS)])) < 20


@pytest.mark.parametrize(
    ("status", "code", "number", "limit", "cell"),
    [
        ("baseline", None, None, None, "baseline"),
        ("ok", Refusal.ERROR, 1e-3, 2e-2, "ok"),
        ("refused", Refusal.ERROR, 0.0384, 2e-2, "refused: output error 3.8e-02 > 0.02 in waves"),
        ("refused", Refusal.SPREAD, 1.38, 0.2, "refused: error over spread 1.38x > 0.20x in waves"),
        ("refused", Refusal.UPDATE, 0.042, 0.02, "refused: updates lost 4.2% > 2% in waves"),
        ("refused", Refusal.OUTPUTS, 1200, 0, "refused: not finite: 1,200"),
        ("refused", Refusal.SCALE, 8192, 1, "refused: loss scale 1/8.19e+03 < 1"),
        ("refused", Refusal.SCALE, 2.0**149, 1, "refused: loss scale 1/7.14e+44 < 1"),
        ("refused", Refusal.INPUT_RANGE, 1.53, 1, "refused: input range 1.53x > 1.00x in waves"),
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


def test_a_statement_has_no_words() -> None:
    found = state(Refusal.UPDATE, "a case", number=0.5, limit=None)
    assert found == Statement(code=Refusal.UPDATE, facts={"number": 0.5}, subject="a case")
    assert set(Statement.__slots__) == {"code", "facts", "severity", "subject"}


@pytest.mark.parametrize(
    ("code", "facts", "line"),
    [
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
            Hint.SCALE,
            {"steps": 1, "default": 65536.0, "scale": 32768.0},
            "GradScaler skips 1 step at first, by its default scale of 65,536: begin at init_scale=32768",
        ),
        (
            Hint.LAUNCH_BOUND,
            {"bound": "fp32, bf16_pure", "helps": "no", "fewer": "--path compiled", "low": 0.404, "high": 0.5},
            (
                "launch-bound in fp32, bf16_pure: no precision helps; larger batch, or --path compiled (the device has "
                "work for 40.4%–50.0% of a step)"
            ),
        ),
        (
            Hint.OTHER_TABLE,
            {
                "tables": 2,
                "workload": "mlp",
                "batch": 8,
                "phase": "inference",
                "precision": "bf16_pure",
                "there": "compiled",
                "here": "eager",
                "speed": 2.123,
                "than": "fp32",
            },
            (
                "of the 2 tables of mlp batch 8 inference, bf16_pure in compiled is fastest: 2.12x the speed of fp32 "
                "in eager"
            ),
        ),
    ],
)
def test_facts_are_spelled_as_their_unit_is(code: Any, facts: dict[str, Any], line: str) -> None:
    assert words(state(code, **facts)) == line


OK = {"code": Refusal.ERROR, "number": 5e-3, "limit": 0.02, "evidence": Evidence.INPUTS}
TAKES = {"precision": "bf16_pure", "than": "fp32", "speed": 2.5} | OK
LOST = {"passed_code": Refusal.UPDATE, "passed_number": 0.042, "passed_limit": 0.02, "passed_speed": 3.0}
PASSED = {"passed": "bf16_pure", "remedy": "bf16_master"} | LOST


@pytest.mark.parametrize(
    ("code", "facts", "sentence"),
    [
        (Answer.TAKE, TAKES, "take bf16_pure: 2.50x the speed of fp32"),
        (
            Answer.TAKE,
            TAKES | {"subject": "scores", "memory": 0.5, "than": "default", "over_fp32": 3.0},
            ("take bf16_pure: 2.50x the speed and 0.50x the memory of default (3.00x the speed of fp32 with tf32 off)"),
        ),
        (
            Answer.TAKE,
            TAKES | PASSED | {"precision": "bf16_autocast", "evidence": Evidence.ONE_STEP},
            (
                "take bf16_autocast: 2.50x the speed of fp32; bf16_pure is 3.00x as fast, but refused (updates lost); "
                "try bf16_master"
            ),
        ),
        (
            Answer.TAKE,
            TAKES | {"looks": "fp16_pure", "looks_speed": 51.77, "looks_cause": Cause.CONTROL},
            (
                "take bf16_pure: 2.50x the speed of fp32; fp16_pure looks 51.77x as "
                "fast, but not certainly; one case, measured twice, differs by more"
            ),
        ),
        (
            Answer.SAVE,
            TAKES | {"memory": 0.52, "code": Refusal.DECISIONS, "number": 0.001, "limit": 0.01},
            "take bf16_pure: 0.52x the memory of fp32 at its speed",
        ),
        (
            Answer.STAY,
            {"precision": "fp32", "best": "bf16_pure", "best_speed": 0.83},
            "stay in fp32: nothing is faster, at best bf16_pure with 0.83x",
        ),
        (
            Answer.UNCERTAIN,
            {"precision": "fp32", "best": "bf16_pure", "best_speed": 1.03, "cause": Cause.BUSY},
            "stay in fp32: no speedup is certain, at best bf16_pure with 1.03x; the machine was busy",
        ),
        (
            Answer.UNCERTAIN,
            {"precision": "fp32", "best": "bf16_pure", "best_speed": 1.03, "cause": Cause.OPEN, "longer": "budget="},
            "stay in fp32: no speedup is certain, at best bf16_pure with 1.03x; raise budget= to decide",
        ),
        (
            Answer.REFUSED,
            {"precision": "fp32"} | PASSED,
            "stay in fp32: bf16_pure is 3.00x as fast, but refused (updates lost); try bf16_master",
        ),
        (
            Answer.UNDECIDED,
            {"passed": "bf16_autocast", "passed_speed": 2.0, "passed_code": Undecided.NO_OPTIMIZER},
            (
                "no advice: bf16_autocast is 2.00x as fast, but it is not judged without an optimizer: --optimizer "
                "adamw:lr=3e-4"
            ),
        ),
        (
            Flaw.REFERENCE_NAN,
            {"count": 128, "elements": 256, "what": "output", "dtype": "fp64"},
            ("no advice: 128 of 256 output elements are NaN in fp64 already: the network, not a precision, makes them"),
        ),
    ],
)
def test_an_answer_is_a_sentence_that_its_reason_ends(code: Any, facts: dict[str, Any], sentence: str) -> None:
    statement = state(code, **facts)
    assert answer(statement) == sentence
    assert sentence.endswith(why(statement))
    assert gains(statement) in sentence
