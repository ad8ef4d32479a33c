"""What a cast pass comes to: its casts and times, what is in doubt, what was tried and what was not seen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ampbench.errors import UsageError
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
    Promotion,
    WeightUse,
)
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.show.document import records
from ampbench.studies.casts import (
    ADDED,
    DTYPE,
    GONE,
    MODULES,
    STUDY,
    Casts,
    CastsAsked,
    by_module,
    by_op,
    compare_graph,
    conclusions,
    differences,
)
from ampbench.trace.graphs import compiled_graph, traced_graph
from ampbench.trace.ledger import trace_casts
from tests.scripted_channel import Scripted, asked_in
from tests.stored_runs import make_case
from tests.studies.working import studied
from tests.traced_programs import Recurrent, autocast, encoder, trace

CASE = make_case("bf16_autocast")


def a_trace(seconds: float | None = 1e-5, casts: int = 1, **changes: Any) -> CastTrace:
    """Return four ops of `seconds` each, the first ones casts."""
    made = [
        Cast(
            index=index,
            operation=3,
            what="input",
            name=f"x{index}",
            from_dtype="fp32",
            to_dtype="bf16",
            elements=256,
            bytes_read=1024,
            bytes_written=512,
            seconds=seconds,
            tensor=index,
        )
        for index in range(casts)
    ]
    ops = [Operation(index=index, name="aten._to_copy", seconds=seconds) for index in range(4)]
    return CastTrace(ops=ops, casts=made, timed=seconds is not None, **changes)


def a_pass(*builds: float, trace: CastTrace | None = None, **changes: Any) -> CastPass:
    """Return a pass whose builds' fastest samples are `builds`; each has slower ones too."""
    samples = [[3 * build, build, 2 * build] for build in builds]
    fields: dict[str, Any] = {"case_id": CASE.case_id, "how": "device", "trace": trace or a_trace()}
    return CastPass(**fields | {"step_samples": samples, "traced_steps": 20} | changes)


def told(record, case=CASE):
    """Return the facts of what is concluded, by code."""
    return {each.code: dict(each.facts) for each in conclusions(case, record)}


def test_a_step_is_worth_the_median_of_its_builds_fastest_samples_and_its_casts_their_share_of_that():
    facts = told(a_pass(2e-5, 2.2e-5, 2.1e-5))
    assert facts[Casts.MADE] == {
        "casts": 1, "bytes": 1536, "share": 0.25, "seconds": 1e-5, "step": pytest.approx(0.25 * 2.1e-5),
    }  # fmt: skip
    assert facts[Casts.SAVED] == {"casts": 1}


def test_a_precision_without_autocast_is_said_to_cast_nothing():
    nothing, fp32 = a_pass(2e-5, 2e-5, 2e-5, trace=a_trace(casts=0)), make_case("fp32")
    assert told(nothing, fp32)[Casts.NONE] == {"precision": "fp32"}
    assert told(nothing)[Casts.MADE] == {"casts": 0, "bytes": 0}
    assert told(a_pass(2e-5), fp32)[Casts.MADE]["casts"] == 1  # its own .half()


def test_what_ops_convert_inside_is_told_beside_the_casts_with_its_bytes():
    inside = [
        Promotion(operation=3, from_dtype="bf16", to_dtype="fp32", elements=8, bytes_read=16, bytes_written=32)
        for _ in range(2)
    ]
    record = a_pass(trace=a_trace(None, promotions=inside))
    assert told(record)[Casts.PROMOTED] == {"ops": 1, "inputs": 2, "bytes": 96}
    assert told(record)[Casts.MADE]["casts"] == 1
    assert Casts.PROMOTED not in told(a_pass(trace=a_trace(None)))


ASKED = CastsAsked()
Instead = Callable[[Request], Reply | None]


def tracing(instead: Instead = lambda _: None) -> Scripted:
    """Return a channel that sees an empty trace in every case, or answers as `instead` does."""

    def answer(request: Request) -> Reply:
        assert request.case is not None
        seen = CastPass(case_id=request.case.case_id, how="device", trace=CastTrace())
        return instead(request) or reply_with(seen)

    return Scripted(answer)


def test_what_is_asked_for_is_the_path_as_a_graph_and_autograds_in_training(tmp_path: Path) -> None:
    channel = tracing()
    studied(
        STUDY, tmp_path, channel, CastsAsked(sources=True), phases=["inference", "training"],
        paths=["eager", "compiled"],
    )  # fmt: skip
    inference, training = map(asked_in, channel.asked)
    assert (inference.graphs, training.graphs) == ([COMPILED], [COMPILED, AUTOGRAD])
    assert inference.sources
    assert {request.case.path for request in channel.asked if request.case} == {"eager"}


def test_a_path_whose_graph_cannot_be_read_is_refused(tmp_path: Path) -> None:
    said = "explain casts is not for --path compiled-max-autotune: give eager, compiled or traced"
    with pytest.raises(UsageError, match=said):
        studied(STUDY, tmp_path, tracing(), ASKED, paths=["eager", "compiled-max-autotune"])


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
    assert rows == [("0", "fp32", "fp32", 1, 2), ("0, 1", "bf16", "fp32", 2, 1), ("2", "bf16", "bf16", 1, 0)]
    assert by_module(twice)[0]["cast_seconds"] is None


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


def told_of_graphs(trace, graph):
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


def test_the_loss_after_the_model_is_in_no_graph_and_not_missed():
    trace = eager(cast(0), cast(1, "activation", "fc", "", from_dtype="bf16", to_dtype="fp32"), model_ops=1)
    assert compare_graph(trace, traced(made())) == []
    assert graph_facts(trace, traced(made())) == [{"casts": 1, "eager": 1, "kept": 1}]


def test_a_weight_used_twice_and_folded_twice_is_no_cast_more():
    assert told_of_graphs(eager(cast(0)), traced(made(fate=FOLDED), made(fate=FOLDED))) == []
    assert told_of_graphs(eager(cast(0)), traced(made(), made())) == [(ADDED, "fc", 1)]


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


@pytest.mark.parametrize("name", ["resnet18", "encoder", "gru"])
def test_a_traced_network_folds_its_weights_and_computes_in_eager_mode_s_dtypes(name):
    model, batch = network(name)
    model.eval()
    with trace_casts(model) as ledger:
        inference(model, batch)
    graph = traced_graph(model, (batch,), {}, autocast)
    assert compare_graph(ledger.trace, graph) == []
    # Convolutions and the head; an encoder layer and a GRU are one op each, which casts its weights when it runs.
    folded = {"resnet18": 22, "encoder": 0, "gru": 2}
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
