import pytest
import torch

from ampbench.casts.tables import by_module, by_operation, by_tensor, cast_frame, module_frame, op_frame
from ampbench.explain.ledger import trace_casts
from tests.traced_programs import autocast, trace


@pytest.fixture(scope="module")
def step():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    with trace_casts(model, time=True) as ledger:
        with autocast():
            loss = model(torch.randn(4, 8)).float().sum()
        loss.backward()
    return ledger.trace


def test_casts_are_counted_per_op_that_used_the_copy(step):
    rows = {row.keys: row for row in by_operation(step)}
    linear = rows["aten.addmm", "torch.nn.functional.linear"]
    assert (linear.casts, linear.forward, linear.backward, linear.dtypes) == (3, 3, 0, ("fp32 → bf16",))
    assert linear.bytes_moved == (8 + 64 + 32) * 6
    assert sum(row.casts for row in rows.values()) == len(step.casts)


def test_casts_are_counted_per_tensor(step):
    rows = {row.keys: row for row in by_tensor(step)}
    assert rows["weight", "0.weight"].casts == rows["gradient", "0.weight"].casts == 1
    assert rows["gradient", "0.weight"].dtypes == ("bf16 → fp32",)
    assert rows["input", "input"].seconds > 0


def test_modules_have_their_own_ops_and_casts(step):
    rows = {row.module: row for row in by_module(step)}
    assert (rows["0"].casts, rows["1"].casts) == (5, 0)
    assert sum(row.ops for row in rows.values()) == len(step.ops)
    assert sum(row.seconds for row in rows.values()) == pytest.approx(sum(o.seconds for o in step.ops))


def test_the_module_table_shows_the_dtypes_in_and_out(step):
    assert module_frame(step).to_numpy().tolist() == [
        ["", "Sequential", "fp32", "bf16", "", 1],
        ["0", "Linear", "fp32", "bf16", "fp32", 1],
        ["1", "Softmax", "bf16", "bf16", "", 1],
    ]


def test_frames_have_a_row_per_op_and_per_cast(step):
    assert len(op_frame(step)) == len(step.ops)
    casts = cast_frame(step)
    assert casts["bytes_read"].sum() == sum(cast.bytes_read for cast in step.casts)
    assert op_frame(step).set_index("index").loc[casts["index"], "tensor_name"].tolist() == casts["name"].tolist()


def test_a_trace_without_casts_has_tables_too():
    x = torch.randn(2)
    empty = trace(lambda: x + 1).trace
    assert by_operation(empty) == by_tensor(empty) == []
    assert len(op_frame(empty)) == 1
    assert by_module(empty)[0].cast_seconds is None
