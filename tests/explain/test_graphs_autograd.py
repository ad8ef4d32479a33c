import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ampbench.explain.graphs.traced import autograd_graph
from ampbench.explain.ledger import trace_casts
from tests.traced_programs import autocast, conv_net


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def loss_of(model, batch):
    with autocast():
        return model(batch).float().square().mean()


def test_each_cast_of_a_weight_is_a_node_that_casts_its_gradient_back():
    model = two_layers()
    graph = autograd_graph(loss_of(model, torch.randn(4, 8)), model)
    weights = {cast.name: cast for cast in graph.casts if cast.name.rpartition(".")[2] in ("weight", "bias")}
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert {(cast.from_dtype, cast.to_dtype, cast.what, cast.phase) for cast in weights.values()} == {
        ("bf16", "fp32", "gradient", "backward")
    }
    assert {name: cast.elements for name, cast in weights.items()} == {
        name: parameter.numel() for name, parameter in model.named_parameters()
    }
    assert {cast.module for cast in weights.values()} == {"0", "2"}


def test_the_cast_of_the_output_goes_the_other_way_and_the_input_s_is_not_undone():
    model = two_layers()
    graph = autograd_graph(loss_of(model, torch.randn(4, 8)), model)
    others = [(cast.name, cast.from_dtype, cast.to_dtype) for cast in graph.casts if "." not in cast.name]
    assert others == [("2", "fp32", "bf16")]


def test_nodes_are_in_the_order_in_which_the_backward_pass_runs_them():
    model, batch = conv_net(), torch.randn(2, 3, 8, 8)
    loss = loss_of(model, batch)
    graph = autograd_graph(loss, model)
    ran = []

    def watch(node):
        node.register_prehook(lambda _: ran.append(node.name()))

    seen, nodes = set(), [loss.grad_fn]
    for node in nodes:
        if node not in seen:
            seen.add(node)
            watch(node)
            nodes += [following for following, _ in node.next_functions if following is not None]
    loss.backward()
    assert [op.name for op in graph.ops] == ran
    assert [op.index for op in graph.ops] == list(range(len(ran)))


def test_an_op_has_the_module_of_its_weight_and_the_dtypes_of_its_gradients():
    model = conv_net()
    graph = autograd_graph(loss_of(model, torch.randn(2, 3, 8, 8)), model)
    by_name = {op.name: op for op in graph.ops}
    assert by_name["ConvolutionBackward0"].module == "0"
    assert by_name["NativeBatchNormBackward0"].module == "1"
    assert by_name["ConvolutionBackward0"].inputs == ("bf16",)
    assert by_name["NativeBatchNormBackward0"].outputs == ("bf16", "fp32", "fp32")


def test_the_casts_are_those_that_the_backward_pass_then_makes():
    model, batch = conv_net(), torch.randn(2, 3, 8, 8)
    graph = autograd_graph(loss_of(model, batch), model)
    with trace_casts(model) as ledger:
        loss_of(model, batch).backward()
    made = [(cast.from_dtype, cast.to_dtype, cast.elements) for cast in ledger.casts if cast.phase == "backward"]
    assert [(cast.from_dtype, cast.to_dtype, cast.elements) for cast in graph.casts] == made


def test_a_shared_weight_that_autocast_s_cache_holds_is_one_node():
    layer = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(layer, layer)
    graph = autograd_graph(loss_of(model, torch.randn(2, 4)), model)
    assert sum(cast.name == "0.weight" for cast in graph.casts) == 1


def test_an_output_without_a_gradient_has_no_graph_and_a_note_tells_of_hidden_ones():
    model = two_layers()
    with torch.no_grad():
        assert "no gradient" in autograd_graph(loss_of(model, torch.randn(4, 8)), model).error
    with autocast():
        hidden = checkpoint(model, torch.randn(4, 8, requires_grad=True), use_reentrant=True)
    graph = autograd_graph(hidden, model)
    assert graph.notes == ["1 nodes CheckpointFunction hide a graph that is made only when they run"]


@pytest.mark.parametrize("size", [1, 3])
def test_a_node_that_several_ops_lead_to_is_listed_once(size):
    weight = torch.nn.Linear(3, 3)
    batch = torch.randn(size, 3, requires_grad=True)
    graph = autograd_graph(F.relu(weight(batch) + weight(batch)).sum(), weight)
    assert sum(op.name.endswith("AccumulateGrad") for op in graph.ops) == 3
