"""The set of modules to keep in fp32 as code for other tools, run by these tools on a small network."""

import contextlib
import io
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

from ampbench.records.kinds import KEEP_FP32
from ampbench.result import Findings
from ampbench.store import gathered
from ampbench.studies.keep_fp32 import code
from tests.stored_runs import make_header
from tests.studies.keep_searches import CASE, SPACE, TRIALS, ended, searched, space_of

KEPT = ["block", "body.1", "head"]
LEAVES = ("stem", "body.0", "body.1", "block.inner", "block.out", "tail", "head")


class Block(nn.Module):
    """A residual block whose sum is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.out(self.inner(values).softmax(dim=-1))


class Net(nn.Module):
    """A network with names that contain others; `stem` runs twice, `linear` is the name of an op, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.body = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
        self.block, self.linear, self.head = Block(), nn.Linear(16, 16), nn.Linear(16, 4)
        self.head2 = nn.Linear(4, 4)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.body(self.stem(self.stem(values)).relu())
        return self.head(self.head2(self.linear(self.block(values))[:, :4]).repeat(1, 4))


def kept_by(tool: str, precision: str = "fp16_pure", phase: str = "inference", kept: list[str] = KEPT) -> str:
    """Return the code for a tool that keeps modules of `Net`."""
    space = space_of(*([path] for path in LEAVES), containers=["", "body", "block"])
    record = structs.replace(searched(*kept), space=space)
    return code(structs.replace(CASE, precision=precision, phase=phase), record)[tool]


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_torchao_converts_every_linear_layer_outside_of_the_set(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    weights_only = quantization.Int8WeightOnlyConfig  # the other one needs an accelerator
    monkeypatch.setattr(quantization, "Float8DynamicActivationFloat8WeightConfig", weights_only)
    net = Net()
    exec(kept_by("torchao", phase=phase), {"model": net})
    plain = {
        name
        for name, module in net.named_modules()
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter
    }
    assert plain == {"block.inner", "block.out", "head"}
    assert net(torch.randn(2, 16)).isfinite().all()


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_fsdp_computes_the_set_in_fp32_and_all_else_in_half(one_process: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    init_device_mesh("cpu", (1,))
    net = Net()
    names, dtypes = {module: name for name, module in net.named_modules()}, dict[str, torch.dtype]()

    def note(module: nn.Module, given: Any, _: Any) -> None:
        dtypes[names[module]] = given[0].dtype

    for module in net.modules():
        module.register_forward_hook(note)
    exec(kept_by("FSDP2", "bf16_pure", "training"), {"model": net})
    output = net(torch.randn(2, 16))
    output.sum().backward()
    kept = {"body.1", "block", "block.inner", "block.out", "head"}
    assert {name for name, dtype in dtypes.items() if dtype is torch.float32} == kept
    assert {dtypes[name] for name in ("stem", "body.0", "linear", "head2")} == {torch.bfloat16}
    assert output.dtype is torch.float32
    assert all(parameter.dtype is torch.float32 and parameter.grad is not None for parameter in net.parameters())


def large() -> Net:
    """Return a network that overflows in fp16 within its block, whose result is small."""
    net = Net().eval()
    with torch.no_grad():
        net.block.inner.weight *= 1e6
    return net


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the network as ONNX."""
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("exported")
    program = torch.onnx.export(large(), (torch.randn(2, 16),), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(folder / "model.onnx"))
    return folder


def test_the_nodes_of_the_set_stay_fp32_in_onnx(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(exported)
    held: dict[str, Any] = {}
    exec(kept_by("onnxruntime"), held)
    assert len(held["nodes"]) == 6  # a norm, a head, and of the block two products, a softmax and a sum
    network, net = onnx.load("model_fp16.onnx"), large()
    single = {weight.name for weight in network.graph.initializer if weight.data_type == onnx.TensorProto.FLOAT}
    kept = {name for name, _ in net.named_parameters() if name.startswith(("block.", "body.1.", "head."))}
    assert {name for name, _ in net.named_parameters() if name in single} == kept
    values = torch.randn(2, 16)
    session = runtime.InferenceSession("model_fp16.onnx")
    (output,) = session.run(None, {network.graph.input[0].name: values.numpy()})
    assert net(values).detach().numpy() == pytest.approx(output, abs=2e-2)
    assert not net.half()(values.half()).isfinite().all()


def test_tensorrt_is_told_the_same_nodes(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(exported)
    held: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(kept_by("TensorRT"), held)
    program, network, low, obeyed, layers = shlex.split(printed.getvalue())
    assert (program, network, low) == ("trtexec", "--onnx=model.onnx", "--fp16")
    assert obeyed == "--precisionConstraints=obey"
    assert layers == f"--layerPrecisions={','.join(f'{name}:fp32' for name in held['nodes'])}"
    assert len(held["nodes"]) == 6
    assert "--bf16" in kept_by("TensorRT", "bf16_pure")


def test_a_program_has_the_code_of_each_tool() -> None:
    header = make_header(run="why-keep", explains=KEEP_FP32)
    found = Findings(gathered(Path("runs/why-keep.jsonl"), header, [CASE, SPACE, *TRIALS, ended("norm")]))
    ((case_id, texts),) = found.code.items()
    assert case_id in found.stored.cases
    assert {*texts} == {"torch", "torchao", "FSDP2", "TensorRT", "onnxruntime"}
    assert "(.code: with torchao, FSDP2, TensorRT, onnxruntime" in str(found)
    (data,) = found.document().data()["cases"]
    assert data["code"] == texts
