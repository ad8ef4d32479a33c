"""Graphs against eager traces: written by hand, and of three networks whose disagreements are known to be true."""

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

from ampbench.records.casts import (
    AUTOGRAD,
    COMPILED,
    FOLDED,
    FUSED,
    TRACED,
    Cast,
    CastPass,
    CastTrace,
    GraphCast,
    GraphTrace,
    Operation,
    WeightUse,
)
from ampbench.studies.casts import (
    ADDED,
    DTYPE,
    GONE,
    STUDY,
    Casts,
    compare_graph,
    conclusions,
    differences,
)
from ampbench.trace.graphs import compiled_graph, traced_graph
from ampbench.trace.ledger import trace_casts
from tests.stored_runs import make_case
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


def eager(*casts, ops=None, **fields):
    back = {"phase": "backward", "forward": 0}
    casting = [
        op(each.index, "aten._to_copy", each.module, **(back if each.phase == "backward" else {})) for each in casts
    ]
    ops = ops or [*casting, op(9)]
    weights = [WeightUse(name="fc.weight", operation=9, status="cast")]
    return CastTrace(ops=ops, casts=list(casts), weights=weights, inference=True, **{"model_ops": 10} | fields)


def traced(*casts, ops=None):
    return GraphTrace(graph=TRACED, ops=ops or [op(0)], casts=list(casts))


def told(trace, graph):
    return [(row["kind"], row["module"], row["casts"]) for row in compare_graph(trace, graph)]


def graph_facts(trace, graph):
    record = CastPass(case_id="", how="device", trace=trace, graphs=[graph])
    codes = (Casts.GRAPH, Casts.NO_GRAPH)
    return [each.facts for each in conclusions(make_case("bf16_autocast"), record) if each.code in codes]


def test_a_graph_that_makes_the_same_casts_differs_in_nothing():
    assert compare_graph(eager(cast(0)), traced(made())) == []


def test_a_cast_that_one_side_alone_makes_is_told_and_one_that_a_graph_folds_or_fuses_is_none():
    assert compare_graph(eager(cast(0)), traced(made(fate=FOLDED))) == []
    assert compare_graph(eager(cast(0)), traced(made(fate=FUSED))) == []
    (gone,) = compare_graph(eager(cast(0)), traced())
    assert (gone["kind"], gone["what"], gone["dtypes"], gone["casts"]) == (GONE, "weight fc.weight", "fp32 → bf16", 1)
    (added,) = compare_graph(eager(), traced(made()))
    assert (added["kind"], added["module"], added["casts"]) == (ADDED, "fc", 1)


def test_a_module_is_judged_by_what_its_last_op_gives():
    trace = CastTrace(
        inference=True, ops=[op(0, "aten.mul", "act"), op(1, "aten.sigmoid", "act"), op(2, "aten.view", "act", "fp32")]
    )
    assert compare_graph(trace, traced(ops=[op(0, "aten.silu", "act")])) == []
    assert told(trace, traced(ops=[op(0, "aten.silu", "act", "fp32")])) == [(DTYPE, "act", 0)]


def test_the_loss_after_the_model_is_in_no_graph_and_not_missed():
    trace = eager(cast(0), cast(1, "activation", "fc", "", from_dtype="bf16", to_dtype="fp32"), model_ops=1)
    assert compare_graph(trace, traced(made())) == []
    assert graph_facts(trace, traced(made())) == [{"casts": 1, "eager": 1, "kept": 1}]


def test_a_weight_used_twice_and_folded_twice_is_no_cast_more():
    assert told(eager(cast(0)), traced(made(fate=FOLDED), made(fate=FOLDED))) == []
    assert told(eager(cast(0)), traced(made(), made())) == [(ADDED, "fc", 1)]


def test_a_graph_tells_the_fates_of_its_casts_and_one_that_was_not_made_or_autograd_s_differs_in_nothing():
    graph = traced(made(), made(fate=FOLDED), made("input", "x", fate=FUSED))
    assert graph_facts(eager(cast(0)), graph) == [{"casts": 3, "eager": 1, "kept": 1, "folded": 1, "fused": 1}]
    failed = GraphTrace(graph=COMPILED, error="RuntimeError: no")
    assert graph_facts(eager(cast(0)), failed) == [{"error": "RuntimeError: no"}]
    autograd = GraphTrace(graph=AUTOGRAD, casts=[made("gradient")])
    record = CastPass(case_id="", how="device", trace=eager(cast(0)), graphs=[failed, autograd])
    assert differences(record) == []
    (undone,) = [table.rows(record) for table in STUDY.tables if table.key == "autograd"]
    assert [row["name"] for row in undone] == ["fc.weight"]


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
    assert graph_facts(ledger.trace, graph) == [{"casts": 6, "eager": 6, "folded": 4, "kept": 2}]
    without = replace(graph, casts=[one for one in graph.casts if one.module])
    assert told(ledger.trace, without)[0] == (GONE, "", 1)


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


def kinds(found):
    return [(row["kind"], row["module"], row["casts"]) for row in found]


@pytest.mark.parametrize("name", ["resnet18", "encoder", "lstm"])
def test_a_traced_network_folds_its_weights_and_computes_in_eager_mode_s_dtypes(name):
    model, batch = network(name)
    model.eval()
    with trace_casts(model) as ledger:
        inference(model, batch)
    graph = traced_graph(model, (batch,), {}, autocast)
    assert compare_graph(ledger.trace, graph) == []
    # Convolutions and the head; an encoder layer and an LSTM are one op each, which casts its weights when it runs.
    folded = {"resnet18": 22, "encoder": 0, "lstm": 2}
    assert sum(cast.fate == FOLDED for cast in graph.casts) == folded[name]


TRUE_OF_COMPILED = {
    # The layer's one op has no rule, but casts within, which compiled code, that runs with autocast off, does not.
    ("encoder", "inference"): [(DTYPE, "layers.0", 0), (DTYPE, "layers.1", 0)],
    ("resnet18", "training"): [],
    # Compiled backward passes have the forward's autocast (torch's backward_pass_autocast), so that the products of
    # attention, which eager mode differentiates in fp32, are cast. A copy of its weights that nobody reads is dropped.
    ("encoder", "training"): [
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
