import pytest
import torch

from ampbench.instruments.casts.show import FOR_MACHINES, MODULES, TENSORS
from ampbench.instruments.casts.tables import (
    by_operation,
    by_origin,
    by_tensor,
    by_weight,
    module_groups,
    weight_rows,
)
from ampbench.records.cast_tables import CAST_COLUMNS, OP_COLUMNS, op_rows
from ampbench.records.casts import By, CastPass
from ampbench.show.document import records
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import autocast, trace


@pytest.fixture(scope="module")
def step():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    with trace_casts(model, time=True) as ledger:
        with autocast():
            loss = model(torch.randn(4, 8)).float().sum()
        loss.backward()
    return ledger.trace


def test_casts_are_counted_per_op_that_they_are_made_for_a_gradient_s_with_the_cast_it_undoes(step):
    rows = {row.keys: row for row in by_operation(step)}
    linear = rows["aten.addmm", "torch.nn.functional.linear"]
    assert (linear.casts, linear.forward, linear.backward) == (5, 3, 2)
    assert linear.dtypes == ("fp32 → bf16", "bf16 → fp32")
    assert linear.bytes_moved == (8 + 64 + 32) * 6 + (8 + 64) * 6
    assert sum(row.casts for row in rows.values()) == len(step.casts)


def test_casts_are_counted_per_tensor(step):
    rows = {row.keys: row for row in by_tensor(step)}
    assert rows["weight", "0.weight"].casts == rows["gradient", "0.weight"].casts == 1
    assert rows["gradient", "0.weight"].dtypes == ("bf16 → fp32",)
    assert rows["input", "input"].seconds > 0


def test_the_module_table_shows_the_dtypes_in_and_out(step):
    rows = [list(row.values())[:7] for row in records(MODULES, module_groups(step, collapsed=False))]
    assert rows == [
        ["", "Sequential", "fp32", "bf16", "", 1, 2],
        ["0", "Linear", "fp32", "bf16", "fp32", 1, 5],
        ["1", "Softmax", "bf16", "bf16", "", 1, 0],
    ]


def test_casts_are_counted_by_what_is_cast_and_who_asked_inputs_first(step):
    rows = [(*row.keys, row.casts) for row in by_origin(step)]
    assert rows[:3] == [("input", "autocast", 1), ("weight", "autocast", 2), ("activation", "explicit", 1)]
    # of one kind, those that took longer come first
    assert sorted(rows[3:]) == [("gradient", "autocast", 2), ("gradient", "explicit", 1)]


@pytest.fixture(scope="module")
def twice():
    """Two layers that do the same, one of them used twice, and one in another dtype."""
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8, bias=False) for _ in range(3)])
    model[2].bfloat16()
    return trace(lambda: model[2](model[0](model[1](model[0](torch.randn(4, 8))))), model).trace


def test_weights_are_counted_by_how_they_reached_their_ops(twice):
    rows = {
        row.name: (row.cast, row.reused, row.not_needed, row.cast_bytes, row.cache_bytes) for row in by_weight(twice)
    }
    assert rows == {"0.weight": (1, 1, 0, 384, 128), "1.weight": (1, 0, 0, 384, 128), "2.weight": (0, 0, 1, 0, 0)}
    uses = weight_rows(twice)
    assert [row["status"] for row in uses] == ["cast", "cast", "reused", "not needed"]
    assert [row["bytes_written"] for row in uses] == [128, 128, None, None]


def test_modules_that_do_the_same_share_a_row(twice):
    rows = [(group.modules, group.inputs, group.parameters, group.calls, group.casts) for group in module_groups(twice)]
    # the first call of the first layer casts its input as well
    assert rows == [
        (("0",), ("fp32",), ("fp32",), 1, 2),
        (("0", "1"), ("bf16",), ("fp32",), 2, 1),
        (("2",), ("bf16",), ("bf16",), 1, 0),
    ]
    assert module_groups(twice)[0].cast_seconds is None


def test_tables_for_machines_have_the_same_numbers(twice):
    modules = records(MODULES, module_groups(twice, collapsed=False))
    tensors = records(TENSORS, by_tensor(twice))
    assert [row["module"] for row in modules] == ["0", "0", "1", "2"]
    assert sum(row["casts"] for row in modules) == sum(row["casts"] for row in tensors) == len(twice.casts) == 3
    assert {row["dtypes"] for row in tensors} == {"fp32 → bf16"}


def test_there_is_a_row_per_op_and_per_cast(step):
    columns, rows = FOR_MACHINES[By.CAST]
    ops, casts = op_rows(step), records(columns, rows(CastPass(case_id="", how="", trace=step)))
    assert [list(row) for row in (ops[0], casts[0])] == [list(OP_COLUMNS), list(CAST_COLUMNS)]
    assert len(ops) == len(step.ops)
    assert sum(row["bytes_read"] for row in casts) == sum(cast.bytes_read for cast in step.casts)
    named = {row["index"]: row["tensor_name"] for row in ops if row["tensor_name"] is not None}
    assert named == {row["index"]: row["name"] for row in casts}


def test_a_trace_without_casts_has_tables_too():
    x = torch.randn(2)
    empty = trace(lambda: x + 1).trace
    assert by_operation(empty) == by_tensor(empty) == by_origin(empty) == by_weight(empty) == module_groups(empty) == []
    assert len(op_rows(empty)) == 1
