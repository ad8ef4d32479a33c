"""What a cast pass comes to: its casts and times, what is in doubt, what was tried and what was not seen."""

from typing import Any

import pytest

from ampbench.records.casts import (
    Cast,
    CastPass,
    CastTrace,
    Operation,
    Promotion,
)
from ampbench.records.measured import Fitness
from ampbench.studies.casts import Casts, conclusions
from ampbench.studies.study import Timing
from tests.stored_runs import make_case

CASE = make_case("bf16_autocast")


def a_trace(seconds: float | None = 1e-5, casts: int = 1, **changes: Any) -> CastTrace:
    """Return four ops of `seconds` each, the first ones casts."""
    made = [
        Cast(
            index=index,
            operation=3,
            what="input",
            name=f"x{index}",
            from_dtype="fp32",
            to_dtype="bf16",
            elements=256,
            bytes_read=1024,
            bytes_written=512,
            seconds=seconds,
            tensor=index,
        )
        for index in range(casts)
    ]
    ops = [Operation(index=index, name="aten._to_copy", seconds=seconds) for index in range(4)]
    return CastTrace(ops=ops, casts=made, timed=seconds is not None, **changes)


def a_pass(*builds: float, trace: CastTrace | None = None, **changes: Any) -> CastPass:
    """Return a pass whose builds' fastest samples are `builds`; each has slower ones too."""
    samples = [[3 * build, build, 2 * build] for build in builds]
    fields: dict[str, Any] = {"case_id": CASE.case_id, "how": "device", "trace": trace or a_trace()}
    return CastPass(**fields | {"step_samples": samples, "traced_steps": 20} | changes)


def told(record, case=CASE):
    """Return the facts of what is concluded, by code."""
    return {each.code: dict(each.facts) for each in conclusions(case, record)}


def test_a_step_is_worth_the_median_of_its_builds_fastest_samples_and_its_casts_their_share_of_that():
    facts = told(a_pass(2e-5, 2.2e-5, 2.1e-5))
    assert facts[Casts.MADE] == {
        "casts": 1, "bytes": 1536, "share": 0.25, "seconds": 1e-5, "step": pytest.approx(0.25 * 2.1e-5),
    }  # fmt: skip
    assert facts[Casts.SAVED] == {"casts": 1}


@pytest.mark.parametrize(
    ("fitness", "spoilt"),
    [
        (Fitness(other_share=0.41, steal_share=0.0), True),
        (Fitness(steal_share=0.5), True),
        (Fitness(other_share=0.1, steal_share=0.05), False),
        (Fitness(), False),
    ],
)
def test_times_of_a_busy_machine_are_not_to_be_trusted(fitness: Fitness, spoilt: bool):
    record = a_pass(2e-5, 2e-5, 2e-5, fitness=fitness)
    assert (Timing.BUSY in told(record)) is spoilt


def test_a_precision_without_autocast_is_said_to_cast_nothing():
    nothing, fp32 = a_pass(2e-5, 2e-5, 2e-5, trace=a_trace(casts=0)), make_case("fp32")
    assert told(nothing, fp32)[Casts.NONE] == {"precision": "fp32"}
    assert told(nothing)[Casts.MADE] == {"casts": 0, "bytes": 0}
    assert told(a_pass(2e-5), fp32)[Casts.MADE]["casts"] == 1  # its own .half()


def test_what_ops_convert_inside_is_told_beside_the_casts_with_its_bytes():
    inside = [
        Promotion(operation=3, from_dtype="bf16", to_dtype="fp32", elements=8, bytes_read=16, bytes_written=32)
        for _ in range(2)
    ]
    record = a_pass(trace=a_trace(None, promotions=inside))
    assert told(record)[Casts.PROMOTED] == {"ops": 1, "inputs": 2, "bytes": 96}
    assert told(record)[Casts.MADE]["casts"] == 1
    assert Casts.PROMOTED not in told(a_pass(trace=a_trace(None)))
