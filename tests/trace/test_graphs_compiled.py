import pytest
import torch
from torch._inductor import config as inductor_config

from ampbench.records.casts import FUSED, KEPT
from ampbench.trace.graphs import compiled_graph
from tests.traced_programs import autocast


class Halves(torch.nn.Module):
    """Casts beside other work (fused), for a library's product (kept), and back and forth (dropped)."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, batch):
        return self.layer(self.norm(batch).relu())


class Breaking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.Linear(4, 4)
        self.after = torch.nn.Linear(4, 4)

    def forward(self, batch):
        half = self.before(batch)
        torch._dynamo.graph_break()
        return self.after(half)


def training(batch):
    def step(forward):
        with autocast():
            loss = forward(batch).float().square().mean()
        loss.backward()

    return step


def inference(batch):
    def step(forward):
        with torch.inference_mode(), autocast():
            forward(batch)

    return step


@pytest.fixture(scope="module")
def trained():
    return compiled_graph(Halves(), training(torch.randn(4, 8)))


def test_a_cast_beside_other_work_is_fused_and_one_for_a_product_of_a_library_is_kept(trained):
    forward = {(cast.what, cast.name): cast for cast in trained.casts if cast.phase == "forward"}
    assert set(forward) == {("weight", "layer.weight"), ("weight", "layer.bias"), ("activation", "")}
    assert forward["weight", "layer.weight"].fate == KEPT
    assert forward["activation", ""].fate == FUSED  # written by the norm's kernel, in bf16
    assert {cast.module for cast in forward.values()} == {"layer"}
    assert {(cast.from_dtype, cast.to_dtype) for cast in forward.values()} == {("fp32", "bf16")}


def test_gradients_have_the_names_of_what_was_cast(trained):
    backward = {cast.name: cast.elements for cast in trained.casts if cast.what == "gradient"}
    assert backward == {"layer.weight": 64, "layer.bias": 8, "": 32}
    assert {cast.phase for cast in trained.casts if cast.what == "gradient"} == {"backward"}


def test_ops_are_aten_s_not_the_parts_that_inductor_splits_them_into(trained):
    forward = [(op.name, op.module) for op in trained.ops if op.phase == "forward" and not op.recomputed]
    assert ("aten.native_layer_norm", "norm") in forward
    assert ("aten.addmm", "layer") in forward
    assert not any(name in ("aten.var_mean", "aten.rsqrt") for name, _ in forward)
    norm = next(op for op in trained.ops if op.name == "aten.native_layer_norm")
    assert (norm.inputs, norm.outputs) == (("fp32", "fp32", "fp32"), ("fp32",))
    assert [op.index for op in trained.ops] == list(range(len(trained.ops)))
    assert "backward" in {op.phase for op in trained.ops}


def test_reading_needs_no_cpp_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(inductor_config.cpp, "cxx", ("none such",))
    graph = compiled_graph(torch.nn.Linear(4, 4), inference(torch.randn(2, 4)))
    assert (graph.error, len(graph.casts)) == ("", 3)
    assert {cast.fate for cast in graph.casts} == {KEPT}


def test_a_model_that_breaks_gives_all_its_graphs_and_a_note():
    graph = compiled_graph(Breaking(), inference(torch.randn(2, 4)))
    assert {op.module for op in graph.ops} == {"before", "after"}
    assert {cast.name for cast in graph.casts if cast.what == "weight"} == {
        "before.weight",
        "before.bias",
        "after.weight",
        "after.bias",
    }
    assert len(graph.notes) == 1
    assert "2 graphs of it" in graph.notes[0]


def test_what_the_step_raises_is_the_error_and_a_model_without_a_tensor_has_no_graph():
    def failing(forward):
        raise ValueError("no\nway")

    assert compiled_graph(torch.nn.Linear(4, 4), failing).error == "ValueError: no"
    assert "no graph" in compiled_graph(torch.nn.Linear(4, 4), lambda forward: None).error
