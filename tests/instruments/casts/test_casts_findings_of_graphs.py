"""Graphs against eager traces: written by hand, and of three networks whose disagreements are known to be true."""

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

from ampbench.instruments.casts.findings import (
    ADDED,
    DTYPE,
    GONE,
    OUTSIDE,
    compare_graph,
    graph_sentence,
)
from ampbench.records.casts import (
    AUTOGRAD,
    COMPILED,
    FOLDED,
    FUSED,
    TRACED,
    Cast,
    CastTrace,
    GraphCast,
    GraphTrace,
    Operation,
    WeightUse,
)
from ampbench.trace.graphs.compiled import compiled_graph
from ampbench.trace.graphs.traced import traced_graph
from ampbench.trace.ledger import trace_casts
from tests.traced_programs import Recurrent, autocast, encoder


def cast(index, what="weight", name="fc.weight", module="fc", **options):
    ways = {"from_dtype": "fp32", "to_dtype": "bf16"} | options
    return Cast(
        index=index,
        what=what,
        name=name,
        module=module,
        elements=4,
        bytes_read=16,
        bytes_written=8,
        tensor=index,
        **ways,
    )


def op(index, name="aten.addmm", module="fc", dtype="bf16", **options):
    return Operation(index=index, name=name, module=module, inputs=(dtype,), outputs=(dtype,), **options)


def made(what="weight", name="fc.weight", module="fc", **options):
    return GraphCast(what=what, name=name, module=module, **({"from_dtype": "fp32", "to_dtype": "bf16"} | options))


def eager(*casts, ops=None):
    back = {"phase": "backward", "forward": 0}
    casting = [
        op(each.index, "aten._to_copy", each.module, **(back if each.phase == "backward" else {})) for each in casts
    ]
    ops = ops or [*casting, op(9)]
    weights = [WeightUse(name="fc.weight", operation=9, status="cast")]
    return CastTrace(ops=ops, casts=list(casts), weights=weights, model_ops=10)


def traced(*casts, ops=None):
    return GraphTrace(graph=TRACED, ops=ops or [op(0)], casts=list(casts))


def told(trace, graph):
    return [(difference.kind, difference.module, difference.casts) for difference in compare_graph(trace, graph)]


def test_a_graph_that_makes_the_same_casts_differs_in_nothing():
    assert compare_graph(eager(cast(0)), traced(made())) == []


def test_a_cast_that_is_folded_fused_gone_or_added_is_said_in_a_sentence():
    (folded,) = compare_graph(eager(cast(0)), traced(made(fate=FOLDED)))
    assert (folded.kind, folded.eager, folded.found) == (FOLDED, "fp32 → bf16", "fp32 → bf16")
    assert folded.said == (
        "fc: the traced graph has done 1 cast of weight fc.weight (fp32 → bf16) once and stores the result"
    )
    (fused,) = compare_graph(eager(cast(0)), traced(made(fate=FUSED)))
    assert (fused.kind, fused.casts) == (FUSED, 1)
    (gone,) = compare_graph(eager(cast(0)), traced())
    assert (gone.kind, gone.found) == (GONE, "")
    (added,) = compare_graph(eager(), traced(made()))
    assert (added.kind, added.eager) == (ADDED, "")
    assert added.said.endswith("makes 1 cast of weight fc.weight (fp32 → bf16) that eager mode does not make")


def test_casts_of_one_module_are_told_together_and_what_changes_results_comes_first():
    trace = eager(cast(0), cast(1, name="fc.bias"), cast(2, "input", "x"))
    graph = traced(made(fate=FOLDED), made(name="fc.bias", fate=FOLDED), ops=[op(0, dtype="fp32")])
    assert told(trace, graph) == [(DTYPE, "fc", 0), (GONE, "fc", 1), (FOLDED, "fc", 2)]
    difference = compare_graph(trace, graph)[0]
    assert difference.said == "fc: matmul gives fp32 in the traced graph, bf16 in eager mode"


def test_an_op_goes_by_other_names_in_other_graphs():
    names = ["aten.linear", "aten.mm", "aten.bmm"]
    assert not any(compare_graph(eager(), traced(ops=[op(0, name)])) for name in names)
    norm = CastTrace(ops=[op(0, "aten.native_batch_norm", "bn")])
    assert compare_graph(norm, traced(ops=[op(0, "aten._native_batch_norm_legit_functional", "bn")])) == []
    assert compare_graph(norm, traced(ops=[op(0, "aten.batch_norm", "bn", "fp32")]))[0].kind == DTYPE


def test_a_module_whose_ops_have_nothing_in_common_is_judged_by_its_last():
    trace = CastTrace(ops=[op(0, "aten.mul", "act"), op(1, "aten.sigmoid", "act")])
    assert compare_graph(trace, traced(ops=[op(0, "aten.silu", "act")])) == []
    (difference,) = compare_graph(trace, traced(ops=[op(0, "aten.silu", "act", "fp32")]))
    assert "its last op gives fp32" in difference.said


def test_the_loss_after_the_model_is_in_no_graph_and_not_missed():
    trace = eager(cast(0), cast(10, "activation", "fc", "", from_dtype="bf16", to_dtype="fp32"))
    assert compare_graph(trace, traced(made())) == []
    assert graph_sentence(trace, traced(made())) == "1 cast where eager makes 1; 1 kept"


def test_a_module_that_is_in_no_graph_is_left_to_eager_mode():
    trace = eager(cast(0, module="rnn"))
    assert told(trace, traced()) == [(OUTSIDE, "rnn", 1)]


def test_a_weight_used_twice_and_folded_twice_is_no_cast_more():
    assert told(eager(cast(0)), traced(made(fate=FOLDED), made(fate=FOLDED))) == [(FOLDED, "fc", 1)]
    assert told(eager(cast(0)), traced(made(), made())) == [(ADDED, "fc", 1)]


def test_the_backward_pass_is_compared_only_where_the_graph_has_one():
    backward = cast(10, "gradient", from_dtype="bf16", to_dtype="fp32", phase="backward")
    assert compare_graph(eager(cast(0), backward), traced(made())) == []
    both = traced(made(), ops=[op(0), op(1, "aten.mm", phase="backward")])
    assert told(eager(cast(0), backward), both) == [(GONE, "fc", 1)]


def test_the_casts_of_autograd_s_graph_are_counted_and_compared_with_nothing():
    back = {"from_dtype": "bf16", "to_dtype": "fp32", "phase": "backward"}
    trace = eager(cast(0), cast(1, "input", "x"))
    graph = GraphTrace(graph=AUTOGRAD, casts=[made("gradient", **back)])
    assert compare_graph(trace, graph) == []
    assert graph_sentence(trace, graph) == "undoes 1 cast where eager's forward makes 2"


def test_a_graph_is_said_with_the_fates_of_its_casts_and_one_that_was_not_made_differs_in_nothing():
    graph = traced(made(), made(fate=FOLDED), made("input", "x", fate=FUSED))
    assert graph_sentence(eager(cast(0)), graph) == "3 casts where eager makes 1; 1 folded, 1 fused, 1 kept"
    failed = GraphTrace(graph=COMPILED, error="RuntimeError: no")
    assert compare_graph(eager(cast(0)), failed) == []
    assert graph_sentence(eager(cast(0)), failed) == "not made: RuntimeError: no"


class Halves(torch.nn.Module):
    """Casts of its own around a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, batch):
        return self.layer(self.layer(batch)).softmax(-1).float()


def test_the_model_s_own_casts_after_its_last_module_are_compared_and_those_of_a_loss_are_not():
    model, batch = Halves().eval(), torch.randn(2, 4)
    with trace_casts(model) as ledger:
        inference(model, batch).double()
    graph = traced_graph(model, (batch,), {}, autocast)
    assert graph_sentence(ledger.trace, graph) == "6 casts where eager makes 6; 4 folded, 2 kept"
    without = replace(graph, casts=[one for one in graph.casts if one.module])
    assert told(ledger.trace, without)[0] == (GONE, "", 1)


def test_backward_casts_of_the_model_itself_are_compared_and_those_of_a_loss_are_not():
    model, batch = Halves(), torch.randn(2, 4)
    with trace_casts(model) as ledger:
        with autocast():
            loss = model(batch).half().sum()
        loss.backward()
    trace = ledger.trace
    both = traced(ops=[op(0, module=""), op(1, "aten.mm", module="", phase="backward")])
    assert [(cast.index < trace.model_ops, cast.phase) for cast in trace.casts if not cast.module] == [
        (True, "forward"),
        (False, "forward"),
        (False, "backward"),
        (False, "backward"),
    ]
    differences = [one for one in compare_graph(trace, both) if one.module == ""]
    assert [(one.kind, one.casts, one.eager) for one in differences] == [
        (GONE, 1, "bf16 → fp32"),
        (GONE, 1, "fp32 → bf16"),
    ]


def test_a_module_that_is_a_number_is_said_to_be_one_and_an_input_called_input_is_named_once():
    (difference,) = compare_graph(eager(cast(0, "input", "input", "0")), traced(ops=[op(0, module="0")]))
    assert difference.said == (
        'module "0": the traced graph does without 1 cast of the input (fp32 → bf16) that eager mode makes'
    )


def network(name):
    torch.manual_seed(0)
    if name == "resnet18":
        models = pytest.importorskip("torchvision.models")
        return models.resnet18(), torch.randn(2, 3, 64, 64)
    return (encoder(), torch.randn(2, 5, 16)) if name == "encoder" else (Recurrent(), torch.randn(5, 2, 8))


def training(model, batch):
    with autocast():
        output = model(batch)
        loss = F.mse_loss(output, torch.zeros_like(output))
    loss.backward()


def inference(model, batch):
    with torch.inference_mode(), autocast():
        return model(batch)


def kinds(differences):
    """Return the differences without those that only save work."""
    return [(each.kind, each.module, each.casts) for each in differences if each.kind not in (FUSED, FOLDED)]


@pytest.mark.parametrize("name", ["resnet18", "encoder", "lstm"])
def test_a_traced_network_folds_its_weights_and_computes_in_eager_mode_s_dtypes(name):
    model, batch = network(name)
    model.eval()
    with trace_casts(model) as ledger:
        inference(model, batch)
    graph = traced_graph(model, (batch,), {}, autocast)
    differences = compare_graph(ledger.trace, graph)
    assert kinds(differences) == []
    # Convolutions and the head; an encoder layer and an LSTM are one op each, which casts its weights when it runs.
    folded = {"resnet18": 22, "encoder": 0, "lstm": 2}
    assert sum(difference.casts for difference in differences) == folded[name]


def test_a_frozen_layer_norm_computes_in_fp32_which_is_found_with_the_casts_it_takes():
    # TorchScript's own autocast, which freezing inside a region applies, has layer_norm on its fp32 list; CPU has not.
    model, batch = (
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)),
        torch.ones(2, 8),
    )
    model.eval()
    with trace_casts(model) as ledger:
        inference(model, batch)
    graph = traced_graph(model, (batch,), {}, autocast)
    assert kinds(compare_graph(ledger.trace, graph)) == [(DTYPE, "1", 0), (ADDED, "1", 1), (ADDED, "2", 1)]


TRUE_OF_COMPILED = {
    # The layer's one op has no rule, but casts within, which compiled code, that runs with autocast off, does not.
    ("encoder", "inference"): [(DTYPE, "layers.0", 0), (DTYPE, "layers.1", 0)],
    ("resnet18", "training"): [],
    # Compiled backward passes have the forward's autocast (torch's backward_pass_autocast), so that the products of
    # attention, which eager mode differentiates in fp32, are cast. A copy of its weights that nobody reads is dropped.
    ("encoder", "training"): [
        *[(DTYPE, f"layers.{layer}.self_attn", 0) for layer in (1, 0)],
        *[(ADDED, f"layers.{layer}.self_attn", count) for layer in (1, 0) for count in (4, 6)],
        *[(GONE, f"layers.{layer}.self_attn", 1) for layer in (0, 1)],
    ],
}
SLOW = [key for key in TRUE_OF_COMPILED if key[1] == "training"]


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=pytest.mark.slow) if key in SLOW else key for key in TRUE_OF_COMPILED], ids="-".join
)
def test_where_a_compiled_network_differs_is_what_is_true(key):
    name, phase = key
    model, batch = network(name)
    model.train(phase == "training")
    step = training if phase == "training" else inference
    with trace_casts(model) as ledger:
        step(model, batch)
    graph = compiled_graph(model, lambda forward: step(forward, batch))
    assert graph.error == ""
    assert sorted(kinds(compare_graph(ledger.trace, graph))) == sorted(TRUE_OF_COMPILED[key])


def test_an_lstm_is_not_compiled_and_casts_as_in_eager_mode():
    model, batch = network("lstm")
    with trace_casts(model) as ledger:
        inference(model, batch)
    graph = compiled_graph(model, lambda forward: inference(forward, batch))
    found = compare_graph(ledger.trace, graph)
    assert {(one.kind, one.module) for one in found} == {(OUTSIDE, "rnn")}
    assert sum(one.casts for one in found) == sum(one.module == "rnn" for one in ledger.casts)
    assert len(graph.notes) == 1
    assert graph.notes[0].startswith("the model breaks")


@pytest.mark.slow
def test_the_encoder_that_torch_compiles_really_gives_the_dtype_the_graph_says():
    model, batch = network("encoder")
    model.eval()
    torch.compiler.reset()
    assert inference(model, batch).dtype is torch.bfloat16
    assert inference(torch.compile(lambda inputs: model(inputs) + 0), batch).dtype is torch.float32
