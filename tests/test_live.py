"""Networks that a program has: measured and studied in its process as commands do, without a trace."""

import contextlib
import dataclasses
import gc
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from msgspec import structs
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import ampbench
from ampbench import live
from ampbench.cli.main import main
from ampbench.core.budget import Budget
from ampbench.drive import planning
from ampbench.records.changes import ChangeStatus, Evidence, Status
from ampbench.records.kinds import CHECK, KEEP_FP32, KINDS, NONFINITE, WATCH
from ampbench.studies.study import options_of, study_of
from tests.conftest import state_of_process

QUICK: dict[str, Any] = {"precisions": ["fp32", "bf16_autocast"], "device": "cpu", "budget": 0.1}


class Net(nn.Module):
    """A network whose forward is a function of its layer and what it is given."""

    def __init__(self, forward: Callable[..., Any] = lambda layer, x: layer(x), layer: nn.Module | None = None):
        super().__init__()
        self.layer, self.call = layer or nn.Linear(4, 3), forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.layer, *args, **kwargs)


def rows(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 4)


def bits(value: Any) -> Any:
    """Return what tells whether anything in a value has changed."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return id(value), str(value.dtype), str(value.device), value.requires_grad, tuple(value.shape), data
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(str(key), bits(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else id(value)


def everything(*held: nn.Module | torch.optim.Optimizer | torch.Tensor) -> dict[str, Any]:
    """Return all of this process, and of what is held, that measuring must leave alone."""
    backends = torch.backends
    state: dict[str, Any] = {
        "random": [random.getstate(), bits(np.random.get_state()), bits(torch.get_rng_state())[-1]],
        "process": state_of_process(),
        "switches": [
            torch.get_float32_matmul_precision(), backends.cudnn.benchmark, backends.cudnn.deterministic,
            backends.cudnn.enabled, backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32,
            backends.cuda.matmul.allow_fp16_reduced_precision_reduction, backends.cuda.flash_sdp_enabled(),
            backends.cuda.math_sdp_enabled(), backends.mha.get_fastpath_enabled(),
        ],
        "python": [sys.path.copy(), bool(gc.get_freeze_count())],
        "modules": [name for name in sys.modules if name.startswith("ampbench_given")],
    }  # fmt: skip
    for place, one in enumerate(held):
        if isinstance(one, nn.Module):
            for name, module in one.named_modules():
                own = {key: value for key, value in vars(module).items() if key not in ("_modules",)}
                state[f"{place} {name}"] = bits(own)
            state[f"{place} gradients"] = [bits(weight.grad) for weight in one.parameters()]
        elif isinstance(one, torch.optim.Optimizer):
            state[f"{place}"] = bits(one.state_dict())
        else:
            state[f"{place}"] = bits(one)
    return state


def changing(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Change in a forward pass all that a network can."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    torch.set_grad_enabled(torch.is_grad_enabled())
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_autocast_cache_enabled(False)
    random.random(), np.random.rand(), torch.rand(3)
    torch.set_default_dtype(torch.float32)
    return layer(x.mul_(2)).to(x.dtype)


def raising(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    raise RuntimeError("the network is\nbroken")


def interrupted(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGINT)
    return layer(x)


def _networks() -> Iterator[tuple[str, nn.Module, Any]]:
    torch.manual_seed(3)
    ids = torch.randint(0, 7, (6, 5))
    packed = pack_padded_sequence(torch.randn(3, 5, 4), [5, 3, 2], batch_first=True)
    tied, hooked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Net(layer=nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    norm[1].eval()
    norm.register_buffer("scale", torch.ones(3, dtype=torch.bfloat16))
    mixed = nn.Sequential(tied, hooked, norm, nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    yield "tied, hooked, batchnorm and dropout partly in eval mode, half buffer, spectral norm", mixed, rows()
    yield "integers", nn.Embedding(7, 4), ids
    yield "packed", Net(lambda layer, x: layer(x)[1], nn.GRU(4, 3, batch_first=True)), packed
    yield (
        "batches of mappings",
        Net(lambda layer, *, a, b: layer(a + b)),
        [{"a": rows(n), "b": rows(n)} for n in (6, 3)],
    )
    drawing = Net(lambda layer, x: (layer(x + torch.rand_like(x)), x.sum()))
    yield "draws, differentiates, tuple out", drawing, rows().requires_grad_()
    yield "changing", Net(changing), rows()
    yield "raising", Net(raising), rows()
    yield "interrupted", Net(interrupted), rows()


NETWORKS = list(_networks())


@pytest.mark.parametrize(("name", "network", "inputs"), NETWORKS, ids=[name for name, *_ in NETWORKS])
def test_it_leaves_no_trace(name: str, network: nn.Module, inputs: Any):
    for weight in network.parameters():
        if weight.requires_grad:
            weight.grad = torch.full_like(weight, 0.5)
    torch.backends.cudnn.benchmark = True
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    held = [network, optimizer, *(each for each in [inputs] if isinstance(each, torch.Tensor))]

    def loss(output: Any) -> torch.Tensor:
        leaves = [leaf for leaf in tree_leaves(output) if leaf.is_floating_point()]
        penalty = sum(weight.square().sum() for weight in network.parameters())
        return sum(leaf.float().square().mean() for leaf in leaves) + 1e-3 * penalty

    budget = 60 if name == "interrupted" else QUICK["budget"]  # it ends itself, before any time is over
    ending = pytest.raises(ampbench.AmpbenchError, match="broken") if name == "raising" else contextlib.nullcontext()
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.float16):
            before = everything(*held)
            with ending:
                result = ampbench.measure(network, inputs, loss, optimizer=optimizer, **{**QUICK, "budget": budget})
            assert everything(*held) == before
    finally:
        torch.backends.cudnn.benchmark = False
    if name == "interrupted":
        assert result.stored.ended == "interrupted"
        assert not result.takes


def linear() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3), rows(32), torch.randint(0, 3, (32,))


def test_a_result_tells_shows_saves_and_opens_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MOST_ROUNDS", 2)
    net, x, y = linear()
    result = ampbench.measure(
        net, x, cross_entropy, targets=y, optimizer="adamw:lr=1e-3", precisions=["fp32", "bf16_pure"], device="cpu",
        budget=120,
    )  # fmt: skip
    header = result.stored.header
    assert header.settings.isolation is False
    assert [verdict.phase for verdict in result.verdicts] == ["inference"] * 2 + ["training"] * 2
    assert result.verdicts[0].status is Status.BASELINE
    assert isinstance(result.take, list)
    assert "all in one process" in str(result)
    assert str(result).splitlines()[1] in result._repr_html_()
    strict = ampbench.Result(result.stored, Budget(output_rel_l2=1e-9))
    assert '  ampbench.explain.keep_fp32(..., precisions="bf16_pure", phase="inference")\n' in str(strict)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert [row["case_id"] for row in data["rows"]] == [verdict["case_id"] for verdict in data["verdicts"]]
    assert "4 points" in repr(result.plot())
    with pytest.raises(ampbench.UsageError, match="Linear is no run"):
        ampbench.compare(result, net)
    shown = result.plot()._repr_mimebundle_()["application/vnd.vegalite.v5+json"]
    assert {value["precision"] for value in shown["data"]["values"]} == {"fp32", "bf16_pure"}

    path = result.save(tmp_path)
    pd.testing.assert_frame_equal(result.frame, ampbench.load(path))
    for name in (path, header.run, "latest"):
        opened = ampbench.open(name, tmp_path)
        assert opened.to_dict() == result.to_dict()
        assert str(opened) == str(result)

    settings = structs.replace(header.settings, isolation=True)
    apart = dataclasses.replace(result.stored, header=structs.replace(header, settings=settings))
    changes = ampbench.compare(ampbench.Result(apart), result).changes
    assert {change.status for change in changes if change.kind == "time"} == {ChangeStatus.INCOMPARABLE}
    assert {change.status for change in changes if change.kind != "time"} == {ChangeStatus.UNCHANGED}


class Stopped(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            signal.raise_signal(signal.SIGINT)
        return super().forward(x)


def test_inference_is_measured_whole_before_training_and_the_header_names_weights_in_half(
    monkeypatch: pytest.MonkeyPatch,
):
    net = Stopped(4, 3, dtype=torch.bfloat16)
    result = ampbench.measure(net, rows(), torch.sum, **{**QUICK, "budget": 60})
    assert "Stopped · inference · weights loaded in bf16 · " in str(result)
    assert {(row["phase"], row["outcome"]) for row in result.rows} == {("inference", "ok"), ("training", "skipped")}
    monkeypatch.setattr(planning, "emulated_of", lambda *_: ["bf16"])
    with pytest.raises(ampbench.AmpbenchError, match=r"slow.* \(precision all runs it\)"):
        ampbench.measure(net, rows(), phase="inference", device="cpu")


def test_an_optimizer_is_copied_with_its_groups_and_its_state_is_late_evidence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MOST_ROUNDS", 1)
    net, x, y = linear()
    optimizer = torch.optim.Adam([{"params": [net.weight], "lr": 1e-2}, {"params": [net.bias]}], lr=1e-3)
    cross_entropy(net(x), y).backward()
    optimizer.step()
    result = ampbench.measure(
        net, x, cross_entropy, targets=y, optimizer=optimizer, phase="training", **{**QUICK, "budget": 120}
    )
    errors = next(iter(result.stored.divergence.values()))
    assert [group.lr for group in errors.recipe.groups] == [1e-2, 1e-3]
    assert errors.update.steps == 0
    assert {verdict.evidence for verdict in result.verdicts} == {Evidence.STEPS}


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it holds a\nlock")


NET, X, Y = linear()
WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no inputs": ((NET,), {}, "without inputs"),
    "a class": ((nn.Linear, X), {}, "is a class"),
    "a loader": ((NET, torch.utils.data.DataLoader([1])), {}, "list\\(loader\\)"),
    "an array": ((NET, X.numpy()), {}, "ndarray"),
    "too many inputs": ((NET, (X, Y)), {}, "takes 1"),
    "another shape": ((NET, rows()[:, :3]), {}, "cannot be multiplied"),
    "text as a loss": ((NET, X, "mse"), {}, "the loss is str"),
    "targets alone": ((NET, X), {"targets": Y}, "for a loss"),
    "targets of other batches": ((NET, [X, X], cross_entropy), {"targets": [Y]}, "1 of targets"),
    "training without a loss": ((NET, X), {"phase": "training"}, "needs a loss"),
    "an unknown optimizer": ((NET, X, cross_entropy), {"targets": Y, "optimizer": "adamm"}, "adam"),
    "another's optimizer": (
        (NET, X, cross_entropy), {"targets": Y, "optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters())}, "has not"
    ),
    "inputs of a name": (("mlp", X), {}, "its own inputs"),
    "an unknown precision": ((NET, X), {"precisions": "bf17"}, "bf16_pure"),
    "a precision of numbers": ((NET, X), {"precisions": [3]}, "ampbench.Precision"),
    "an absent device": ((NET, X), {"device": "mtia"}, "mtia"),
    "an unknown phase": ((NET, X), {"phase": "train"}, "training"),
    "no budget": ((NET, X), {"budget": 0}, "above 0"),
    "what cannot be copied": ((Uncopyable(4, 3), X), {}, "cannot be copied .*builds it anew"),
    "a function of arguments": ((lambda count: NET,), {}, "default value"),
    "a function that raises": ((lambda: 1 / 0,), {}, "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_measured_is_told_in_one_line(what: str):
    arguments, options, expected = WRONG[what]
    before = everything(NET)
    with pytest.raises(ampbench.AmpbenchError, match=expected) as told:
        ampbench.measure(*arguments, **{**QUICK, "precisions": "fp32", **options})
    assert "\n" not in str(told.value)
    assert everything(NET) == before


MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gru = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True)

    def forward(self, ids, scale):
        return {"states": self.gru(self.table(ids) * scale)[0], "ids": ids}

def make():
    torch.manual_seed(1)
    net, ids = Net(), torch.randint(0, 9, (4, 6))
    return net, (ids, torch.rand(4, 6, 1)), lambda output: output["states"].square().mean()
"""
ERRORS = ("output_rel_l2", "output_floor_ratio", "loss_rel_error", "grad_rel_l2", "update_kept")


@pytest.mark.slow
def test_errors_are_those_of_run_to_the_last_digit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "MOST_ROUNDS", 1)
    (tmp_path / "model.py").write_text(MODEL)
    names = ["mlp", "simple_conv", "transformer_encoder"]
    options = ["--rounds", "1", "--min-run-time", "0.001", "--precision", "fp32", "--precision", "bf16_autocast"]
    given = [*options, "--optimizer", "adamw:lr=1e-3", "--device", "cpu", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "ampbench", "run", *names, f"{tmp_path}/model.py:make", *given],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    expected = {(row["workload"], row["phase"], row["precision"]): row for row in json.loads(done.stdout)}
    own: dict[str, Any] = {}
    exec(MODEL, own)
    network, inputs, loss = own["make"]()
    told = {"precisions": ["fp32", "bf16_autocast"], "device": "cpu", "optimizer": "adamw:lr=1e-3", "budget": 60}
    measured = {name: ampbench.measure(name, **told) for name in names}
    measured["model.py:make"] = ampbench.measure(network, inputs, loss, **told)
    for name, result in measured.items():
        for row in result.rows:
            theirs = expected[name, row["phase"], row["precision"]]
            assert {key: row[key] for key in ERRORS} == {key: theirs[key] for key in ERRORS}


STUDIES = [name for name, row in KINDS.items() if row.study and name != WATCH]
OF_CASES = [name for name in STUDIES if study_of(name).selects is not None]
STUDY_QUICK: dict[str, Any] = {"steps": 2, "seconds": 0.005, "seeds": 1, "setting": "default", "max_trials": 3}
"""What options of these names are given, so that a study takes seconds."""


def public(kind: str) -> Callable[..., ampbench.Findings]:
    if kind == CHECK:
        return ampbench.check
    module = getattr(ampbench, KINDS[kind].group)
    function: Callable[..., ampbench.Findings] = getattr(module, kind.replace("-", "_"))
    return function


def names_of(kind: str) -> list[str]:
    own = [option.name for option in options_of(study_of(kind))]
    return own if study_of(kind).selects is not None else [*own, "device"]


def quick(kind: str) -> dict[str, Any]:
    return {name: value for name, value in STUDY_QUICK.items() if name in names_of(kind)}


def training_of(network: torch.nn.Module) -> dict[str, Any]:
    """Return what trains a network, in the precision of which studies ask where none is named."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    return {"loss": lambda output, target: cross_entropy(output.float(), target), "optimizer": optimizer}


@pytest.mark.parametrize("kind", [pytest.param(each, marks=pytest.mark.slow) if each == KEEP_FP32 else each
                                  for each in OF_CASES])  # fmt: skip
def test_a_study_of_a_network_leaves_no_trace_and_shows_itself(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    network, inputs, targets = Net(), rows(), torch.randint(0, 3, (6,))
    given = training_of(network)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        before = everything(network, given["optimizer"], inputs, targets)
        found = public(kind)(network, inputs, targets=targets, device="cpu", **given, **quick(kind))
        assert everything(network, given["optimizer"], inputs, targets) == before
    header = found.stored.header
    assert (header.explains, header.settings.isolation) == (kind, False)
    assert found.statements
    assert not found.stored.failures
    tables = [table.key for table in found.study.tables if table.key]
    assert list(found.tables) == tables
    assert len(found.frame) or kind == NONFINITE
    assert found.frame.equals(found.tables[tables[0]])
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False, default=str))
    assert data["run"] == header.run
    assert str(found).splitlines()[0] in found._repr_html_()

    path = found.save("results")
    assert ampbench.open(path).to_dict() == found.to_dict()
    assert main(["show", header.run]) == 0
    out = capsys.readouterr().out.strip("\n")
    assert out.replace("-v has", ".tables has").replace("(-v: with", "(.code: with") == str(found)


@pytest.mark.parametrize("ending", [raising, interrupted])
def test_a_study_that_ends_early_leaves_no_trace_either(ending: Callable[..., Any]) -> None:
    network, inputs = Net(ending), rows()
    with torch.no_grad():
        before = everything(network, inputs)
        raised = ampbench.WorkloadError if ending is raising else KeyboardInterrupt
        with pytest.raises(raised) as told:
            ampbench.explain.origin(network, inputs, device="cpu")
        assert everything(network, inputs) == before
    assert "\n" not in str(told.value)


WRONG_STUDY: dict[str, tuple[dict[str, Any], str]] = {
    "an option of no study": ({"stepps": 3}, "unknown option of study scope 'stepps': did you mean steps?"),
    "an option that all have, misspelled": ({"precision": "bf16"}, "did you mean precisions?"),
    "too few steps": ({"steps": 1}, "steps=1: Expected `int` >= 2"),
    "no number": ({"steps": "many"}, "steps='many': Expected `int`, got `str`"),
    "no duration": ({"seconds": "soon"}, "seconds='soon': "),
    "a time that is none": ({"seconds": 0}, "seconds=0: Expected `float` > 0.0"),
    "a precision that is none": ({"precisions": "bf61_autocast"}, "unknown precision 'bf61_autocast'"),
    "a device that is none": ({"device": "cud"}, "unknown device 'cud': did you mean cuda?"),
    "a phase that is none": ({"phase": "trainig"}, "unknown phase 'trainig': did you mean training?"),
    "a network without inputs": ({"inputs": None}, "Net is a network without inputs"),
}


@pytest.mark.parametrize("what", WRONG_STUDY)
def test_a_mistake_is_one_line(what: str) -> None:
    options, expected = WRONG_STUDY[what]
    network = Net()
    given = {"inputs": rows(), "targets": torch.randint(0, 3, (6,)), **training_of(network), "device": "cpu"}
    with pytest.raises(ampbench.UsageError) as told:
        ampbench.study.scope(network, **{**given, **options})
    assert expected in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_of_a_device_is_done_by_processes_of_its_own() -> None:
    found = ampbench.study.ceilings(device="cpu", operation="copy", dtype=["fp32", "bf16"], seconds=0.005)
    assert found.stored.header.settings.isolation
    assert set(found.frame["dtype"]) == {"fp32", "bf16"}
    checked = ampbench.check("stale-weight-cast", device="cpu")
    assert list(checked.frame["check"]) == ["stale-weight-cast"]
    with pytest.raises(ampbench.UnknownNameError, match="did you mean stale-weight-cast"):
        ampbench.check("stale-weight-cats")


TWO_LAYERS = """
import torch

def make():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), torch.randn(4, 8)
"""


def test_a_program_and_the_command_line_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(TWO_LAYERS)
    threads = str(torch.get_num_threads())
    assert main(["explain", "origin", "model.py:make", "--device", "cpu", "--threads", threads, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["cases"]
    scope: dict[str, Any] = {}
    exec(TWO_LAYERS, scope)
    (found,) = ampbench.explain.origin(*scope["make"](), device="cpu").to_dict()["cases"]
    assert {name: found[name] for name in ("statements", "tables")} == json.loads(
        json.dumps({name: told[name] for name in ("statements", "tables")})
    )
