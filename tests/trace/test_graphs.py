"""The graphs of compiled and of traced networks, and of the backward pass."""

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.utils.checkpoint import checkpoint

from ampbench.records.casts import FOLDED, FUSED, KEPT
from ampbench.trace.graphs import autograd_graph, compiled_graph, trace_frozen, traced_graph
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import autocast, conv_net


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
    names = {f"{module}.{name}" for module in ("before", "after") for name in ("weight", "bias")}
    assert {cast.name for cast in graph.casts if cast.what == "weight"} == names
    assert len(graph.notes) == 1
    assert "2 graphs of it" in graph.notes[0]


def test_what_the_step_raises_is_the_error_and_a_model_without_a_tensor_has_no_graph():
    def failing(forward):
        raise ValueError("no\nway")

    assert compiled_graph(torch.nn.Linear(4, 4), failing).error == "ValueError: no"
    assert "no graph" in compiled_graph(torch.nn.Linear(4, 4), lambda forward: None).error


class Mixed(torch.nn.Module):
    """Two inputs, one by name; casts of its own; a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, batch, extra):
        return self.layer(batch) * self.scale + extra.half()


def test_weights_are_folded_and_what_comes_in_is_cast_at_each_call():
    graph = traced_graph(conv_net().eval(), (torch.randn(2, 3, 8, 8),), {}, autocast)
    assert graph.error == ""
    folded = {cast.name: (cast.module, cast.elements) for cast in graph.casts if cast.fate == FOLDED}
    assert folded == {"0.weight": ("0", 216), "0.bias": ("0", 8), "4.weight": ("4", 1152), "4.bias": ("4", 4)}
    (kept,) = [cast for cast in graph.casts if cast.fate == KEPT]
    assert (kept.what, kept.module, kept.from_dtype, kept.to_dtype) == ("input", "0", "fp32", "bf16")
    assert kept.elements == 2 * 3 * 8 * 8
    assert graph.notes == ["freezing folded 1 batch norms into the weights of the op before them"]


def test_ops_have_module_paths_and_the_dtypes_that_really_come_out():
    graph = traced_graph(conv_net().eval(), (torch.randn(2, 3, 8, 8),), {}, autocast)
    ops = [(op.name, op.module, op.outputs) for op in graph.ops]
    assert ops == [
        ("aten._to_copy", "0", ("bf16",)), ("aten._convolution", "0", ("bf16",)), ("aten.relu", "2", ("bf16",)),
        ("aten.view", "3", ("bf16",)), ("aten.t", "4", ("bf16",)), ("aten.addmm", "4", ("bf16",)),
    ]  # fmt: skip
    assert graph.ops[1].inputs == ("bf16", "bf16", "bf16")


def test_the_casts_that_freezing_adds_inside_a_region_belong_to_the_op_that_reads_the_copy():
    # TorchScript has an autocast of its own, which takes layer_norm for an op of the fp32 list on a CPU too.
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).eval()
    batch = torch.randn(2, 4)
    graph = traced_graph(model, (batch,), {}, autocast)
    added = [cast for cast in graph.casts if cast.module == "1"]
    assert [(cast.what, cast.name, cast.from_dtype, cast.to_dtype) for cast in added] == [
        ("activation", "0", "bf16", "fp32")
    ]
    _, frozen = trace_frozen(model, (batch,), {}, autocast)
    with torch.no_grad(), autocast(cache_enabled=False):
        assert frozen(batch).dtype is torch.float32
        assert model(batch).dtype is torch.bfloat16
    assert graph.ops[-1].outputs[0] == "fp32"


@pytest.mark.parametrize("by_name", [False, True])
def test_inputs_by_place_and_by_name_are_told_apart(by_name):
    batch, extra = torch.randn(2, 4), torch.randn(2, 4)
    args, kwargs = ((), {"extra": extra, "batch": batch}) if by_name else ((batch, extra), {})
    graph = traced_graph(Mixed().eval(), args, kwargs, autocast)
    assert graph.error == ""
    ways = {(cast.name, cast.to_dtype) for cast in graph.casts if cast.what == "input"}
    assert ways == {("batch", "bf16"), ("extra", "fp16")}


def test_a_model_that_cannot_be_traced_or_frozen_is_an_error_of_one_line():
    training = traced_graph(conv_net(), (torch.randn(2, 3, 8, 8),), {}, autocast)
    assert training.error.startswith("RuntimeError: Freezing")
    assert "\n" not in training.error
    assert traced_graph(conv_net().eval(), (torch.randn(2, 5, 8, 8),), {}, autocast).error.startswith("RuntimeError")


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def loss_of(model, batch):
    with autocast():
        return model(batch).float().square().mean()


def test_the_casts_are_those_that_the_backward_pass_then_makes():
    model, batch = conv_net(), torch.randn(2, 3, 8, 8)
    graph = autograd_graph(loss_of(model, batch), model)
    with trace_casts(model) as ledger:
        loss_of(model, batch).backward()
    made = [(cast.from_dtype, cast.to_dtype, cast.elements) for cast in ledger.casts if cast.phase == "backward"]
    assert [(cast.from_dtype, cast.to_dtype, cast.elements) for cast in graph.casts] == made


def test_a_note_tells_of_graphs_that_the_autograd_graph_hides():
    model = two_layers()
    with autocast():
        hidden = checkpoint(model, torch.randn(4, 8, requires_grad=True), use_reentrant=True)
    graph = autograd_graph(hidden, model)
    assert graph.notes == ["1 nodes CheckpointFunction hide a graph that is made only when they run"]
