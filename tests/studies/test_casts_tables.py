"""The tables of a cast pass: groups of the casts, weights, modules, and what rows are called."""

import pytest
import torch

from ampbench.records.casts import CAST_COLUMNS, OP_COLUMNS, Cast, CastPass, CastTrace, Operation, op_rows
from ampbench.show.document import records
from ampbench.studies.casts import (
    ALL,
    MODULES,
    OPS,
    STEP,
    all_casts,
    by_module,
    by_op,
    by_origin,
    by_promoting_op,
    by_weight,
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


def test_casts_are_counted_by_what_is_cast_and_who_asked_inputs_first(step):
    rows = [(row["what"], row["origin"], row["casts"]) for row in by_origin(step)]
    assert rows[:3] == [("input", "autocast", 1), ("weight", "autocast", 2), ("activation", "explicit", 1)]
    # of one kind, those that took longer come first
    assert sorted(rows[3:]) == [("gradient", "autocast", 2), ("gradient", "explicit", 1)]


def test_what_ops_convert_inside_is_counted_beside_the_casts():
    cells, x = torch.nn.GRU(4, 4), torch.randn(3, 2, 4)
    found = passed(trace(lambda: cells(x), cells).trace)
    inside = {row["op"]: (row["casts"], row["forward"], row["dtypes"]) for row in by_promoting_op(found)}
    assert inside["aten.mul_"] == (3, 3, "bf16 → fp32")
    assert sum(count for count, *_ in inside.values()) == len(found.trace.promotions)


@pytest.fixture(scope="module")
def twice():
    """Two layers that do the same, one of them used twice, and one in another dtype."""
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
    model[2].bfloat16()
    return passed(trace(lambda: model[2](model[0](model[1](model[0](torch.randn(4, 8))))), model).trace)


def test_weights_are_counted_by_how_they_reached_their_ops(twice):
    assert [tuple(row.values()) for row in by_weight(twice)] == [
        (1, 1, 0, 384, 128, "0.weight"),
        (1, 0, 0, 384, 128, "1.weight"),
        (0, 0, 1, 0, 0, "2.weight"),
    ]


def test_modules_that_do_the_same_share_a_row(twice):
    rows = [tuple(row[key] for key in ("module", "inputs", "parameters", "calls", "casts")) for row in by_module(twice)]
    # the first call of the first layer casts its input as well
    assert rows == [
        ("0", "fp32", "fp32", 1, 2),
        ("0, 1", "bf16", "fp32", 2, 1),
        ("2", "bf16", "bf16", 1, 0),
    ]
    assert by_module(twice)[0]["cast_seconds"] is None


def test_there_is_a_row_per_op_and_per_cast(step):
    ops, casts = op_rows(step.trace), records(ALL, all_casts(step))
    assert list(ops[0]) == list(OP_COLUMNS)
    assert list(casts[0]) == [*CAST_COLUMNS, "for_op", "function", "source"]
    assert len(ops) == len(step.trace.ops)
    named = {row["index"]: row["tensor_name"] for row in ops if row["tensor_name"] is not None}
    assert named == {row["index"]: row["name"] for row in casts}


def made_up(*casts: Cast) -> CastPass:
    """A pass in which `casts` ran in a row and an addmm read those that say so."""
    ops = [Operation(index=index, name="aten._to_copy", inputs=("fp32",), outputs=("bf16",)) for index, _ in
           enumerate(casts)]  # fmt: skip
    ops.append(Operation(index=len(casts), name="aten.addmm", function="torch.nn.functional.linear"))
    return passed(CastTrace(ops=ops, casts=list(casts)))


def cast(index: int, what: str, name: str = "", **given) -> Cast:
    fields = {"from_dtype": "fp32", "to_dtype": "bf16", "elements": 8, "bytes_read": 32, "bytes_written": 16}
    return Cast(index=index, what=what, name=name, tensor=index, **{**fields, **given})


def cells(columns, rows, *heads):
    told = {column.head: column for column in columns}
    return [tuple(told[head].cell(row) for head in heads) for row in rows]


def test_a_copy_that_no_op_reads_is_called_stored() -> None:
    found = made_up(cast(0, "gradient"), cast(1, "weight", "bias", operation=2))
    assert sorted(cells(OPS, by_op(found), "for op", "called as")) == [("addmm", "F.linear"), ("only stored", "–")]


def test_what_is_cast_is_named_once_with_who_asked_and_the_line_of_code() -> None:
    found = made_up(
        cast(0, "input", "input"), cast(1, "weight", "fc.bias", cached=True), cast(2, "input", "x", origin="explicit")
    )
    (place,) = [column for column in STEP if column.key == "place"]
    assert [place.cell(row) for row in op_rows(found.trace)] == [
        "cast of input",
        "cast of weight fc.bias (put in the cache)",
        "cast of input x (explicit)",
        "",
    ]
    op = Operation(index=0, name="aten.mm", module="fc", source="/home/me/nets/model.py:12")
    assert place.cell(op_rows(CastTrace(ops=[op]))[0]) == "fc (nets/model.py:12)"
