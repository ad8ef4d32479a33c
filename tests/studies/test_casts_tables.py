"""The tables of a cast pass: groups of the casts, weights, modules, and what rows are called."""

import pytest
import torch

from ampbench.records.casts import Cast, CastPass, CastTrace
from ampbench.show.document import records
from ampbench.studies.casts import (
    MODULES,
    by_module,
    by_op,
)
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import autocast, trace


def passed(trace: CastTrace) -> CastPass:
    return CastPass(case_id="", how="device", trace=trace)


@pytest.fixture(scope="module")
def step():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    with trace_casts(model, time=True) as ledger:
        with autocast():
            loss = model(torch.randn(4, 8)).float().sum()
        loss.backward()
    return passed(ledger.trace)


def test_casts_are_counted_per_op_that_they_are_made_for_a_gradient_s_with_the_cast_it_undoes(step):
    rows = {(row["op"], row["function"]): row for row in by_op(step)}
    linear = rows["aten.addmm", "torch.nn.functional.linear"]
    assert (linear["casts"], linear["forward"], linear["backward"]) == (5, 3, 2)
    assert linear["dtypes"] == "fp32 → bf16, bf16 → fp32"
    assert linear["bytes_moved"] == (8 + 64 + 32) * 6 + (8 + 64) * 6
    assert sum(row["casts"] for row in rows.values()) == len(step.trace.casts)


def test_a_module_tells_the_dtypes_in_and_out(step):
    rows = [tuple(row.values()) for row in records(MODULES, by_module(step))]
    assert [(row[-1], *row[:6]) for row in rows] == [
        ("", "Sequential", "fp32", "bf16", "", 1, 2),
        ("0", "Linear", "fp32", "bf16", "fp32", 1, 5),
        ("1", "Softmax", "bf16", "bf16", "", 1, 0),
    ]


@pytest.fixture(scope="module")
def twice():
    """Two layers that do the same, one of them used twice, and one in another dtype."""
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
    model[2].bfloat16()
    return passed(trace(lambda: model[2](model[0](model[1](model[0](torch.randn(4, 8))))), model).trace)


def test_modules_that_do_the_same_share_a_row(twice):
    rows = [tuple(row[key] for key in ("module", "inputs", "parameters", "calls", "casts")) for row in by_module(twice)]
    # the first call of the first layer casts its input as well
    assert rows == [
        ("0", "fp32", "fp32", 1, 2),
        ("0, 1", "bf16", "fp32", 2, 1),
        ("2", "bf16", "bf16", 1, 0),
    ]
    assert by_module(twice)[0]["cast_seconds"] is None


def cast(index: int, what: str, name: str = "", **given) -> Cast:
    fields = {"from_dtype": "fp32", "to_dtype": "bf16", "elements": 8, "bytes_read": 32, "bytes_written": 16}
    return Cast(index=index, what=what, name=name, tensor=index, **{**fields, **given})
