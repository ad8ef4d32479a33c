"""What is said of scopes of autocast: each cost where it is, none where it is not, and never a doubtful one."""

from typing import Any

import pytest
from msgspec import structs

from ampbench.instruments.scope.findings import casts_said, comparisons, scope_said
from ampbench.instruments.scope.records import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopePass,
)
from ampbench.instruments.scope.show import COLUMNS, losses, scope_section
from ampbench.records.measured import Fitness
from ampbench.show.document import records
from tests.instruments.scope.planted_scopes import CASE, run, scope_pass, timed


def said(found: ScopePass) -> list[str]:
    return scope_said(CASE, found)


def test_each_scope_shows_its_costs_and_the_recommended_one_none_of_them() -> None:
    best, forward, backward, whole, uncached = said(scope_pass())
    assert best == (
        "autocast around forward and loss, as PyTorch recommends: 15 casts a step, loss in fp32, every weight read as "
        "the optimizer left it, nothing kept from step to step"
    )
    assert forward == (
        "around the forward pass only: loss in bf16, not fp32; loss: relative error 5.0e-03 against fp64, not 5.0e-06"
    )
    assert backward == (
        "around forward, loss and backward: 21 casts a step, not 15; a step takes 1.25 times (95%: 1.25 to 1.25) as "
        "long; peak 5.00 KiB, not 4.00 KiB"
    )
    assert whole == (
        "around the whole loop: from step 2 on, 6 weights are stale: read as copies made before the optimizer changed "
        "them; the loss stays at 2 for 4 steps, where it should go from 2 to 1.25; a step takes 0.90 times (95%: "
        "0.90 to 0.90) as long; 512 B kept from step to step; what all steps changed in the weights 90.0% off fp64, "
        "not 1.00%"
    )
    assert uncached == "around the whole loop, its weight cache off: 17 casts a step, not 15"


def test_a_scope_that_shows_nothing_is_said_to() -> None:
    assert said(scope_pass(uncached=run(UNCACHED_LOOP)))[-1].endswith("its weight cache off: no cost was seen")


@pytest.mark.parametrize(
    "samples",
    [timed(1.002), [[1e-3 * (2 if build % 2 else 0.5)] for build in range(8)], timed(2.0)[:4], []],
    ids=["within rounding", "noisy", "too few builds", "not timed"],
)
def test_no_difference_in_time_is_claimed_that_is_not_certain(samples: list[list[float]]) -> None:
    found = scope_pass(uncached=run(UNCACHED_LOOP, samples=samples))
    assert "no cost was seen" in said(found)[-1]


def test_growth_is_told_instead_of_what_is_kept() -> None:
    found = scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[100, 300, 500, 700]))
    assert said(found)[-1].endswith("memory grows by 200 B with each step")


def test_what_every_scope_keeps_is_no_cost_of_one_but_no_credit_of_the_recommended_one() -> None:
    kept: dict[str, Any] = {"alive_bytes": [64] * 4}
    best, *_, uncached = said(scope_pass(best=run(FORWARD_AND_LOSS, **kept), uncached=run(UNCACHED_LOOP, **kept)))
    assert best.endswith("every weight read as the optimizer left it; but 64 B kept from step to step")
    assert uncached.endswith("no cost was seen")


def test_a_loss_in_half_within_the_recommended_scope_is_told() -> None:
    low = {"output": "bf16", "loss": "bf16", "gradients": "fp32"}
    best, forward, *_ = said(scope_pass(best=run(FORWARD_AND_LOSS, dtypes=low)))
    assert best.endswith("but the loss is computed in bf16: give it its input in fp32")
    assert "loss in" not in forward


def test_what_a_scope_raises_is_all_that_is_said_of_it() -> None:
    broken = structs.replace(scope_pass().scopes[0], error="RuntimeError: no", casts=[], samples=[], losses=[])
    lines = said(scope_pass(forward=broken))
    assert lines[1] == "around the forward pass only: raises: RuntimeError: no"


def test_where_the_recommended_scope_raises_the_others_are_told_by_themselves() -> None:
    broken = run(FORWARD_AND_LOSS, error="RuntimeError: unsafe", samples=[], casts=[], losses=[], dtypes={})
    best, forward, _, whole, _ = said(scope_pass(best=broken))
    assert best == "autocast around forward and loss, as PyTorch recommends, raises: RuntimeError: unsafe"
    assert forward == "around the forward pass only: no cost was seen"
    assert "6 weights are stale" in whole
    assert "not from" not in whole


def test_an_error_that_is_undefined_where_the_recommended_scope_has_one_is_told() -> None:
    found = scope_pass(uncached=run(UNCACHED_LOOP, output_rel_l2=None, losses=[2.0, None, None, None]))
    assert said(found)[-1].endswith("output: no error is defined, as values are not finite or have another shape")
    found = scope_pass(uncached=run(UNCACHED_LOOP, grad_rel_l2=None))
    assert said(found)[-1].endswith("gradients: no error is defined, as values are not finite")


def test_a_machine_that_was_not_idle_is_doubted() -> None:
    found = structs.replace(scope_pass(), fitness=Fitness(other_share=0.5))
    assert said(found)[-1].startswith("other processes used 50.0% of the CPU")


def test_no_difference_in_time_is_claimed_where_the_machine_was_busy() -> None:
    busy = structs.replace(
        scope_pass(uncached=run(UNCACHED_LOOP, 2.0)), fitness=Fitness(other_share=0.5, steal_share=0.5)
    )
    lines = said(busy)
    assert not any("as long" in line for line in lines)
    assert lines[-2].endswith("no cost was seen; its time is not judged, as the machine was busy")
    assert "a step takes 2.00 times" in said(structs.replace(busy, fitness=Fitness()))[-1]


@pytest.mark.parametrize("reference", [[], [None] * 4, [0.0] * 4], ids=["none", "not finite", "zero"])
def test_without_a_loss_in_fp64_that_is_not_zero_the_loss_has_no_relative_error(reference: list[float | None]) -> None:
    found = structs.replace(scope_pass(), reference_losses=reference)
    assert [one.loss_rel_error for one in comparisons(found)] == [None] * 5
    assert "loss: " not in said(found)[1]


def test_the_error_of_a_loss_is_relative_to_the_size_of_fp64s() -> None:
    found = structs.replace(scope_pass(), reference_losses=[-1e5] * 4)
    assert comparisons(found)[0].loss_rel_error == pytest.approx(1e-7)
    assert records(COLUMNS, comparisons(found))[0]["loss_rel_error"] == pytest.approx(1e-7)
    (numbers,) = (block for block in scope_section(CASE, found).blocks if block.headers[-1:] == ["updates"])
    assert (numbers.headers[2], numbers.rows[0][2]) == ("loss", "1.0e-07")
    assert numbers.title == "Relative errors against fp64"


@pytest.mark.parametrize(
    ("casts", "text"), [([15], "15"), ([15, 15], "15"), ([15, 9, 9], "15, then 9"), ([15, 9, 11], "9 to 15")]
)
def test_casts_per_step_are_as_short_as_can_be(casts: list[int], text: str) -> None:
    assert casts_said(casts) == text


def test_a_section_has_costs_numbers_losses_and_notes() -> None:
    section = scope_section(CASE, scope_pass())
    assert section.title.endswith("training · cpu · 4 steps")
    titles = [block.title for block in section.blocks]
    assert titles[5:] == [
        "What it costs",
        "What it computes in",
        "Relative errors against fp64",
        "Losses",
        "Dropout is off.",
    ]
    costs, dtypes, errors, losses = section.blocks[5:9]
    assert [row[0] for row in costs.rows] == ["forward", "forward and loss", "with backward", "whole loop", "cache off"]
    assert costs.rows[1][4] == ""
    assert costs.rows[3][1:] == ["15, then 9", "1000 B", "903 us", "0.90x 0.90–0.90", "4.02 KiB", "512 B", "0 B"]
    assert dtypes.rows[3][1:] == ["bf16", "fp32", "fp32", "6"]
    assert errors.rows[3][1:] == ["4.0e-03", "5.0e-06", "5.0e-03", "9.0e-01"]
    assert losses.note == "–: not finite, or not reached"
    assert losses.rows[3] == ["4", "–", "1.250", "1.250", "1.250", "2.000", "1.250"]


def test_losses_of_many_steps_are_cut_unless_all_are_asked_for() -> None:
    found = structs.replace(scope_pass(), steps=20, reference_losses=[1.0] * 20)
    short, whole = (
        next(block for block in scope_section(CASE, found, everything=every).blocks if block.title == "Losses")
        for every in (False, True)
    )
    assert (len(short.rows), len(whole.rows)) == (8, 20)
    assert "--all" in short.note
    assert whole.rows[-1][1:] == ["1.000", *["–"] * 5]


def test_a_pass_without_numbers_has_no_tables() -> None:
    found = structs.replace(scope_pass(), scopes=[run(FORWARD, error="no", losses=[]), run(WHOLE_LOOP, error="no")])
    assert [block.headers for block in scope_section(CASE, found).blocks] == [()] * 3
    assert len(records(COLUMNS, comparisons(found))) == 2


def test_machines_have_a_row_for_each_scope_and_each_loss() -> None:
    found = scope_pass(backward=run(WITH_BACKWARD, error="no", samples=[], casts=[], losses=[], dtypes={}))
    rows = {row["scope"]: row for row in records(COLUMNS, comparisons(found))}
    assert rows[WHOLE_LOOP]["ratio"] == pytest.approx(0.9)
    assert rows[WHOLE_LOOP]["later_casts"] == 9
    assert rows[FORWARD]["loss_dtype"] == "bf16"
    assert rows[FORWARD_AND_LOSS]["ratio"] is rows[FORWARD_AND_LOSS]["ratio_low"] is None
    assert rows[WITH_BACKWARD]["reason"] == "no"
    assert len(losses(found)) == 16
    assert [row["reference_loss"] for row in losses(found)].count(None) == 4


def test_growth_is_the_median_so_that_one_step_is_not_taken_for_all() -> None:
    found = scope_pass(uncached=run(UNCACHED_LOOP, alive_bytes=[0, 100, 100, 100]))
    (uncached,) = (one for one in comparisons(found) if one.run.scope == UNCACHED_LOOP)
    assert (uncached.growth_bytes, uncached.kept_bytes) == (0, 100)
