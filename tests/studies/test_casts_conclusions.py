"""What a cast pass comes to: its casts and times, what is in doubt, what was tried and what was not seen."""

from typing import Any

import pytest
from msgspec import structs

from ampbench.records.casts import (
    Cast,
    CastPass,
    CastTrace,
    Operation,
    Promotion,
    WeightUse,
)
from ampbench.records.measured import Fitness
from ampbench.records.rules import FAKE
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


def test_a_step_whose_builds_differ_absurdly_has_no_time():
    facts = told(a_pass(2e-5, 2e-5, 2e-2))
    assert Timing.NOISY in facts
    assert "step" not in facts[Casts.MADE]


def test_the_casts_have_no_time_in_a_step_that_tracing_slows_too_much():
    facts = told(a_pass(6.7e-7, 6.8e-7, 6.83e-7))
    assert "step" not in facts[Casts.MADE]
    assert facts[Casts.MADE]["share"] == 0.25


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


def test_what_is_not_timed_has_no_times():
    facts = told(a_pass(trace=a_trace(None)))
    assert facts[Casts.MADE] == {"casts": 1, "bytes": 1536}
    assert Timing.NOISY not in facts


def test_a_training_step_without_its_backward_pass_is_no_step():
    assert told(a_pass(how=FAKE, trace=a_trace(None)))[Casts.MADE]["forward"]
    assert "forward" not in told(a_pass(how=FAKE, trace=a_trace(None, inference=True)))[Casts.MADE]


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


def test_weights_are_told_by_how_they_reach_their_ops_with_what_the_cache_keeps():
    uses = [WeightUse(name="w", operation=3, status=status) for status in ("cast", "reused", "reused", "not needed")]
    trace = a_trace(None, weights=uses)
    assert told(a_pass(trace=trace))[Casts.WEIGHTS] == {"uses": 4, "cast": 1, "reused": 2, "idle": 1}
    kept = structs.replace(trace, casts=[structs.replace(trace.casts[0], what="weight", cached=True)])
    assert told(a_pass(trace=kept))[Casts.WEIGHTS]["cache"] == 512


def test_ops_that_cast_inside_or_that_are_not_torch_s_are_named():
    ops = [
        Operation(index=0, name="aten._fused", inputs=("fp32",), outputs=("bf16",)),
        Operation(index=1, name="higher_order.cond", inputs=("fp32",), outputs=("fp32",)),
        Operation(index=2, name="mine.op", inputs=("fp32",), outputs=("fp32",)),
        Operation(index=3, name="mine.op", inputs=("fp32",), outputs=("fp32",)),
    ]
    facts = told(a_pass(trace=CastTrace(ops=ops)))
    assert facts[Casts.INSIDE] == {"op": "_fused", "given": "fp32", "made": "bf16", "count": 1}
    assert facts[Casts.UNSEEN] == {"names": "cond, mine.op", "ops": 3}
