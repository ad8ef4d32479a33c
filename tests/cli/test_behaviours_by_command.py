"""Every behaviour of mixed precision by the command that shows it, a test each: A1 to D4."""

import contextlib
import io
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from ampbench.cli.main import main
from ampbench.drive.servers import InProcess

Tell = Callable[..., Any]

MODEL = """
import torch
import ampbench
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)


def inference(*layers):
    return nn.Sequential(*layers), torch.randn(8, 16)


def linear():
    return inference(nn.Linear(16, 16))


def norm():
    return inference(nn.LayerNorm(16), nn.Linear(16, 16))


def head():
    return inference(nn.Linear(16, 16), nn.Softmax(-1))


def twice():
    shared = nn.Linear(16, 16)
    return nn.Sequential(shared, shared), torch.randn(8, 16), lambda out: out.sum()


def island():
    network = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    ampbench.keep_fp32(network[0])
    return network, torch.full((8, 16), 1023.7)


def trained():
    network, inputs = inference(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    targets = inputs.sum(1, keepdim=True)
    return ampbench.Workload(
        module=network, inputs=inputs, targets=targets, loss=lambda out, target: mse_loss(out.float(), target),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )


class Mixing(nn.Module):
    def __init__(self, cast_back):
        super().__init__()
        self.linear, self.cast_back = nn.Linear(16, 16), cast_back

    def forward(self, x):
        low = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            return (low.to(x.dtype) if self.cast_back else low) @ torch.ones(16, 2)


def mixing():
    return Mixing(False), torch.randn(8, 16)


def casting_back():
    return Mixing(True), torch.randn(8, 16)


class Sum(nn.Module):
    def forward(self, x):
        return x.sum()


def sixteens():
    return Sum(), torch.full((64, 64), 16.0)
"""


@pytest.fixture(scope="module")
def tell(tmp_path_factory: pytest.TempPathFactory) -> Tell:
    """Run a command on networks of model.py, once, and return what it prints as data: its cases by network, or all."""
    path = tmp_path_factory.mktemp("behaviours") / "model.py"
    path.write_text(MODEL)

    @cache
    def run(verb: str, *words: str, networks: tuple[str, ...] = (), code: int = 0) -> Any:
        named = [f"{path}:{name}" for name in networks]
        said, problems = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(problems):
            assert main([*verb.split(), *named, *words, "--threads", "1", "--json"]) == code, problems.getvalue()
        found = json.loads(said.getvalue())
        return {each["case"]["workload"].split(":")[1]: each for each in found["cases"]} if named else found

    return run


def inferred(tell: Tell) -> Any:
    return tell("explain casts", "--phase", "inference", networks=("linear", "twice", "island", "head"))


def trained(tell: Tell) -> Any:
    return tell("explain casts", "--phase", "training", networks=("trained", "twice"))


CLAIMS = ["documented-bf16-inference", "documented-fp16-inference", "documented-training"]


def checked(tell: Tell) -> dict[tuple[str, str], str]:
    return outcomes(tell("check", "stale-weight-cast", "jit-trace-cache", *CLAIMS, "--device", "cpu"))


def codes(said: Any) -> set[str]:
    return {each["code"] for each in said["statements"]}


def test_a1_one_linear_casts_bias_weight_and_input_and_an_input_in_half_saves_one(tell: Tell) -> None:
    case = inferred(tell)["linear"]
    assert [(row["what"], row["name"]) for row in case["tables"]["casts"]] == [
        ("weight", "0.bias"), ("weight", "0.weight"), ("input", "input")
    ]  # fmt: skip
    assert [row["what"] for row in case["tables"]["savings"]] == ["weight", "input"]
    assert [op["name"].removeprefix("aten.") for op in case["casts"]["trace"]["ops"]] == ["_to_copy"] * 3 + [
        "t", "addmm"
    ]  # fmt: skip


def test_a2_inputs_in_half_lose_nothing_where_the_first_op_takes_half_and_something_where_it_is_one_of_fp32(
    tell: Tell,
) -> None:
    words = ("--phase", "inference", "--seconds", "5ms")
    cases = tell("study input-storage", *words, networks=("linear", "norm"))
    assert "storage-same" in codes(cases["linear"])
    assert "storage-lost" in codes(cases["norm"])
    for case, situation in ((cases["linear"], "nothing lost"), (cases["norm"], "information lost")):
        full, low = case["tables"]["stored"]
        assert (full["stored_bytes"], low["stored_bytes"]) == (4 * 8 * 16, 2 * 8 * 16)
        assert {"seconds", "copy_seconds", "peak_memory_bytes", "grad_rel_l2"} <= full.keys()
        assert full["output_rel_l2"] > 0
        assert [row["situation"] for row in case["tables"]["inputs"]] == [situation]
    full, low = cases["linear"]["tables"]["stored"]
    assert low["casts"] == full["casts"] - 1
    assert low["output_rel_l2"] == full["output_rel_l2"]


def test_a3_the_next_layer_takes_a_half_activation_as_it_is_and_an_fp32_op_casts_it_back(tell: Tell) -> None:
    case = trained(tell)["trained"]
    assert [
        (row["name"], row["from_dtype"], row["to_dtype"], row["for_op"])
        for row in case["tables"]["casts"]
        if row["what"] == "activation"
    ] == [("2", "bf16", "fp32", "aten.mse_loss")]
    dtypes = {row["module"]: (row["inputs"], row["outputs"]) for row in case["tables"]["modules"]}
    assert (dtypes["1"], dtypes["2"]) == (("bf16", "bf16"), ("bf16", "bf16"))


def test_b1_each_scope_of_autocast_has_its_costs(tell: Tell) -> None:
    case = tell("study scope", "--steps", "3", "--seconds", "50ms", networks=("trained",))["trained"]
    rows = {row["scope"]: row for row in case["tables"]["scopes"]}
    assert list(rows) == [
        "forward", "forward and loss", "forward, loss and backward", "whole loop", "whole loop, cache off"
    ]  # fmt: skip
    assert rows["whole loop"]["stale_weights"] == 4
    assert {rows[name]["stale_weights"] for name in rows if name != "whole loop"} == {0}
    assert "scope-stale" in codes(case)
    for row in rows.values():
        assert min(row["later_casts"], row["output_rel_l2"]) > 0
        assert {"seconds", "peak_memory_bytes", "growth_bytes", "grad_rel_l2"} <= row.keys()
        assert row["output_dtype"] == "bf16"


def test_b2_the_cache_holds_weights_in_training_and_nothing_under_inference_mode(tell: Tell) -> None:
    uses = {}
    for phase, case in (("training", trained(tell)["twice"]), ("inference", inferred(tell)["twice"])):
        uses[phase] = {row["name"]: (row["cast"], row["reused"]) for row in case["tables"]["weights"]}
        cached = sum(row["cache_bytes"] for row in case["tables"]["weights"])
        assert cached == (2 * (16 * 16 + 16) if phase == "training" else 0)
    assert uses["training"] == {"0.weight": (1, 1), "0.bias": (1, 1)}
    assert uses["inference"] == {"0.weight": (2, 0), "0.bias": (2, 0)}
    assert checked(tell)["stale-weight-cast", "cpu"] == "defective"


def test_b3_a_module_that_is_kept_runs_in_fp32_on_inputs_that_are_not_rounded(tell: Tell) -> None:
    case = inferred(tell)["island"]
    dtypes = {row["module"]: (row["inputs"], row["outputs"]) for row in case["tables"]["modules"]}
    assert dtypes["0"] == ("fp32", "fp32")
    assert dtypes["1"] == ("fp32", "bf16")
    assert {row["module"] for row in case["tables"]["casts"]} == {"1"}


def test_b4_modules_tell_their_dtypes_and_softmax_stays_low_on_a_cpu_alone(tell: Tell) -> None:
    there = tell("explain casts", "--phase", "inference", "--device", "cuda", networks=("head",))["head"]
    for case, low, after in ((inferred(tell)["head"], "bf16", "bf16"), (there, "fp16", "fp32")):
        dtypes = {row["kind"]: (row["inputs"], row["outputs"]) for row in case["tables"]["modules"]}
        assert dtypes["Linear"] == ("fp32", low)
        assert dtypes["Softmax"] == (low, after)


def test_b5_every_cast_is_logged_and_other_graphs_show_theirs(tell: Tell) -> None:
    case = trained(tell)["trained"]
    rows = case["tables"]["casts"]
    assert {row["what"] for row in rows} >= {"weight", "input", "gradient"}
    assert {row["phase"] for row in rows} >= {"forward", "backward"}
    assert case["tables"]["autograd"]
    traced = tell("explain casts", "--phase", "inference", "--path", "traced", networks=("linear",))["linear"]
    graphs = {each["subject"] for each in traced["statements"] if each["code"] == "casts-graph"}
    assert graphs == {"traced"}


def test_b6_tracing_within_autocast_fails_with_the_weight_cache(tell: Tell) -> None:
    assert checked(tell)["jit-trace-cache", "cpu"] == "defective"


def test_c1_a_product_is_half_and_raises_beside_fp32_outside_the_region_unless_it_is_cast_back(tell: Tell) -> None:
    words = ("--precision", "bf16_autocast", "--phase", "inference")
    cases = tell("explain casts", *words, networks=("mixing", "casting_back"), code=3)
    assert "same dtype" in cases["mixing"]["reason"]
    assert (cases["mixing"]["outcome"], cases["casting_back"]["outcome"]) == ("failed", "ok")


def test_c2_a_sum_that_overflows_is_told_before_and_after_it_is_run(tell: Tell) -> None:
    case = tell("explain headroom", networks=("sixteens",))["sixteens"]
    overflows = {each["subject"]: each for each in case["statements"] if each["code"] == "headroom-overflows"}
    assert list(overflows) == ["fp16"]
    seen = {row["precision"]: (row["overflow_predicted"], row["overflow_seen"]) for row in case["tables"]["seen"]}
    assert (seen["fp16_pure"], seen["bf16_pure"]) == (("activation", True), ("", False))


def test_c3_products_and_copies_have_rates_of_their_own_in_each_dtype(tell: Tell) -> None:
    words = ("--operation", "matmul", "--operation", "copy", "--dtype", "fp32", "--dtype", "bf16")
    found = tell("study ceilings", "--device", "cpu", "--seconds", "5ms", *words)
    measured = {(row["operation"], row["dtype"]) for row in found["tables"]["sizes"] if row["per_second"] > 0}
    assert measured == {(operation, dtype) for operation in ("matmul", "copy") for dtype in ("fp32", "bf16")}
    judged = {"ceiling-ratio", "ceiling-held", "ceiling-missed"}
    assert judged & {statement["code"] for statement in found["statements"]["cpu"]}


def test_c4_settings_of_the_scaler_are_trained_beside_fp32(tell: Tell) -> None:
    words = ("--steps", "20", "--seeds", "2", "--setting", "no scaling", "--setting", "default")
    case = tell("study training", *words, "--precision", "fp16_autocast", networks=("trained",))["trained"]
    by_setting = {training["arm"]: training for training in case["trainings"]}
    assert by_setting.keys() == {"no scaling", "default"}
    unscaled, scaled = by_setting["no scaling"], by_setting["default"]
    assert (unscaled["scales"], unscaled["nonfinite"]) == ([], {})
    assert scaled["scales"]
    assert scaled["nonfinite"], "a scale of 2^16 overflows at first"
    assert {"flushed", "nonzero", "rel_l2"} <= unscaled["looks"][0].keys()
    assert unscaled["fits"][-1]["loss"] < scaled["fits"][-1]["loss"] < unscaled["fits"][0]["loss"]


def outcomes(found: Any) -> dict[tuple[str, str], str]:
    """Return what each check came to on each device."""
    return {(row["check"], row["device"]): row["outcome"] for row in found["tables"]["outcomes"]}


def test_d1_what_the_document_claims_of_its_convolution_is_checked_here(tell: Tell) -> None:
    assert [checked(tell)[claim, "cpu"] for claim in CLAIMS] == ["good", "good", "differs"]


@pytest.fixture
def two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have two ops probed, in this process."""
    monkeypatch.setattr("ampbench.studies.work.ServerChannel", lambda **_: InProcess())
    monkeypatch.setattr("ampbench.studies.devices_measure.rule_ops", lambda: ["aten::addmm", "aten::prelu"])


@pytest.mark.usefixtures("two_rules")
def test_d2_fp64_integers_in_place_and_out_are_left_alone(tell: Tell) -> None:
    rows = tell("explain rules", "--device", "cpu")["tables"]["ops"]
    addmm = [row for row in rows if (row["op"], row["overload"]) == ("aten::addmm", "")]
    assert [row["observed"] for row in addmm] == ["lower_precision"] * 2
    assert {row[variant] for row in addmm for variant in ("fp64", "integer", "in-place", "out=")} == {"unchanged"}


@pytest.mark.usefixtures("two_rules")
def test_d3_documented_registered_and_observed_rules_are_compared(tell: Tell) -> None:
    found = tell("explain rules", "--device", "xpu")
    (statement,) = found["statements"].popitem()[1]
    assert (statement["code"], statement["subject"]) == ("rules-disagree", "xpu (fake tensors)")
    (prelu,) = (row for row in found["tables"]["ops"] if (row["op"], row["dtype"]) == ("aten::prelu", "float16"))
    assert (prelu["xpu_reference"], prelu["pytorch_page"], prelu["registered"], prelu["observed"]) == (
        "lower_precision", "unlisted", True, "lower_precision"
    )  # fmt: skip
    assert prelu["disagreements"] == "undocumented"


def test_d4_the_documented_spelling_is_not_there_and_default_dtypes_are_told(tell: Tell) -> None:
    assert outcomes(tell("check", "documented-spelling", "documented-default-dtype")) == {
        ("documented-spelling", "xpu"): "differs",
        ("documented-default-dtype", "cpu"): "good",
        ("documented-default-dtype", "cuda"): "differs",
        ("documented-default-dtype", "xpu"): "differs",
    }


def test_every_behaviour_has_a_test_here() -> None:
    last = {"a": 3, "b": 6, "c": 4, "d": 4}
    tested = [name[5:7] for name in globals() if name[5:7].strip("abcd").isdigit()]
    assert tested == [f"{area}{number}" for area in last for number in range(1, last[area] + 1)]
