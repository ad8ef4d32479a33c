"""Which op runs in which dtype under autocast, and what that gives."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ampbench.defects import ACCELERATORS, CPU_ALONE, INFERENCE, TRAINING, Answer, defect

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.amp import custom_bwd, custom_fwd
    from torch.utils._python_dispatch import TorchDispatchMode


def dtype_or_error(call: Callable[[], Any]) -> str:
    """Return the dtype of what a call returns, or its error."""
    try:
        return str(call().dtype)
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


@defect("#188955", "#191126", "intel/torch-xpu-ops#4471", fake=True, ops=("rms_norm",), dtype="bf16")
def rms_norm_half(device: str) -> Answer:
    """rms_norm of a bf16 tensor with a bf16 weight gives fp32 under autocast, which costs memory and time.

    Why: both are bf16 and the kernel sums in fp32 anyway; up to torch 2.11 it gave bf16.
    Remedy: call it under torch.autocast(device, enabled=False), or cast its output back to bf16.
    """
    batch = torch.ones(2, 8, dtype=torch.bfloat16, device=device)
    weight = torch.ones(8, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        normed = F.rms_norm(batch, (8,), weight)
    return "rms_norm of bf16 gives torch.bfloat16", f"rms_norm of bf16 gives {normed.dtype}"


@defect("#167308", "#174824", "#195638", mended="2.12", devices=ACCELERATORS, fake=True)
def rms_norm_fused(device: str) -> Answer:
    """RMSNorm behind a Linear under autocast warns of mismatched dtypes and runs as eight kernels, not one.

    Why: autocast is there to make the dtypes of input and weight fit; with one dtype the fused kernel runs.
    Remedy: use torch 2.12 or later, or cast the input to the weight's dtype before it.
    """

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def normed(dtype: torch.dtype) -> str:
        batch, weight = torch.ones(2, 8, dtype=dtype, device=device), torch.ones(8, device=device)
        with torch.autocast(device, dtype=torch.bfloat16), Watch() as watch:
            F.rms_norm(batch, (8,), weight)
        return "is fused" if "_fused_rms_norm" in watch.names else f"is {len(watch.names)} ops"

    expected = f"rms_norm of bf16 {normed(torch.float32)}"
    if "fused" not in expected:
        raise NotImplementedError("here rms_norm is not one op even where all is fp32")
    return expected, f"rms_norm of bf16 {normed(torch.bfloat16)}"


@defect(
    "#191125",
    "#132715",
    "Parskatt/RoMa#2",
    fake=True,
    error="Unexpected floating ScalarType in at::autocast::prioritize",
)
def promote_other_half(device: str) -> Answer:
    """'Unexpected floating ScalarType in at::autocast::prioritize' where fp16 meets fp32 in bf16 autocast.

    Why: the op takes the widest dtype of its inputs, and that is fp32 whichever half dtype the other has.
    Remedy: cast the fp16 tensor before, to fp32 or to the region's dtype.
    """
    half = torch.ones(4, dtype=torch.float16, device=device)
    single = torch.ones(4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        joined = dtype_or_error(lambda: torch.cat([half, single]))
        added = dtype_or_error(lambda: torch.addcmul(half, single, single))
    return "cat torch.float32, addcmul torch.float32", f"cat {joined}, addcmul {added}"


@defect(
    "#191125",
    devices=ACCELERATORS,
    fake=True,
    raises=RuntimeError,
    error="All tensors must have the same dtype, got input1",
)
def bilinear_bias(device: str) -> Answer:
    """bilinear under autocast ignores the dtype of its bias: it gives bf16 where the bias is fp32.

    Why: autocast's notes say that it takes the widest dtype of its inputs, and the bias is one of them.
    Remedy: call bilinear without a bias and add the bias after it.
    """
    left = torch.ones(2, 4, dtype=torch.bfloat16, device=device)
    weight = torch.ones(3, 4, 4, dtype=torch.bfloat16, device=device)
    bias = torch.ones(3, device=device)
    expected = "bilinear with a fp32 bias gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        seen = f"bilinear with a fp32 bias gives {F.bilinear(left, left, weight, bias).dtype}"
    return expected, seen


@defect(
    "#51730",
    "flairNLP/flair#3651",
    fake=True,
    raises=RuntimeError,
    error=r"scatter\(\): Expected self.dtype to be equal to src.dtype",
)
def scatter_add_source(device: str) -> Answer:
    """scatter_add under CPU autocast raises 'Expected self.dtype to be equal to src.dtype' behind a Linear.

    Why: autocast made the source bf16, so it has to make it fit: on CUDA and XPU it takes the wider dtype.
    Remedy: cast the source: scatter_add(dim, index, source.to(sums.dtype)).
    """
    index = torch.zeros(1, 4, dtype=torch.int64, device=device)
    expected = "scatter_add gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        messages = torch.mm(torch.ones(1, 4, device=device), torch.ones(4, 4, device=device))
        seen = f"scatter_add gives {torch.zeros(2, 4, device=device).scatter_add(0, index, messages).dtype}"
    return expected, seen


@defect(
    "NVIDIA/apex#455",
    raises=RuntimeError,
    error=r"index_add_\(\): self .* and source .* must have the same scalar type",
)
def index_add_source(device: str) -> Answer:
    """index_add under autocast raises that self and source must have the same scalar type, behind a Linear.

    Why: autocast made the source bf16, so it has to make it fit, as it does for scatter_add on CUDA.
    Remedy: cast the source: index_add(dim, index, source.to(sums.dtype)).
    """
    index = torch.zeros(4, dtype=torch.int64, device=device)
    expected = "index_add gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        messages = torch.mm(torch.ones(4, 4, device=device), torch.ones(4, 4, device=device))
        seen = f"index_add gives {torch.zeros(2, 4, device=device).index_add(0, index, messages).dtype}"
    return expected, seen


@defect(
    "#98814",
    "#41035",
    "continue-revolution/sd-webui-animatediff#168",
    by_design=True,
    error="Index put requires the source and destination dtypes match",
)
def indexed_assignment(device: str) -> Answer:
    """Putting a Linear's output into rows of a fp32 tensor under autocast raises 'Index put requires ...'.

    An embedding stays fp32 under autocast and a Linear gives bf16: rows of the one are replaced by rows of the other.
    Why: outside autocast the same model runs; autocast alone made the two dtypes differ.
    Remedy: cast what is assigned: tokens[places] = rows.to(tokens.dtype); autocast leaves in-place ops alone.
    """
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(4, 8, device=device)
    project = torch.nn.Linear(8, 8, device=device)
    places = torch.tensor([0, 2], device=device)
    expected = "the rows are replaced"
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        tokens = embedding(torch.tensor([0, 1, 2, 3], device=device))
        try:
            tokens[places] = project(torch.ones(2, 8, device=device))
            seen = "the rows are replaced"
        except RuntimeError as error:
            seen = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return expected, seen


@defect(
    "huggingface/transformers#47672",
    "pytorch/rl#1703",
    fake=True,
    raises=RuntimeError,
    error="masked_scatter: expected self and source to have same dtypes",
)
def masked_scatter_source(device: str) -> Answer:
    """masked_scatter of a layer's output under autocast raises 'expected self and source to have same dtypes'.

    An embedding stays fp32 under autocast and an encoder gives bf16: multimodal models put the one into the other.
    Why: outside autocast the same model runs; autocast alone made the two dtypes differ.
    Remedy: cast the source: tokens.masked_scatter(places, features.to(tokens.dtype)).
    """
    tokens = torch.zeros(4, 4, device=device)
    places = torch.ones(4, 4, dtype=torch.bool, device=device)
    expected = "masked_scatter gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        features = torch.mm(torch.ones(4, 4, device=device), torch.ones(4, 4, device=device))
        seen = f"masked_scatter gives {tokens.masked_scatter(places, features).dtype}"
    return expected, seen


@defect(
    "meta-pytorch/torchrec#1758",
    "#98814",
    raises=RuntimeError,
    error="same type as tensor for argument #1 'per_sample_weights'",
)
def embedding_bag_weights(device: str) -> Answer:
    """embedding_bag under autocast raises that weight and per_sample_weights must have the same type.

    Why: autocast made the weights of the samples bf16 and left the table fp32, so it has to make them fit.
    Remedy: cast them: per_sample_weights=weights.to(table.dtype).
    """
    table = torch.ones(8, 4, device=device)
    words = torch.zeros(1, 4, dtype=torch.int64, device=device)
    expected = "embedding_bag gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        weights = torch.mm(torch.ones(1, 4, device=device), torch.ones(4, 4, device=device))
        bag = F.embedding_bag(words, table, per_sample_weights=weights, mode="sum")
    return expected, f"embedding_bag gives {bag.dtype}"


@defect(
    "#57947", "nestordemeure/ManifoldMixupV2#1", fake=True, raises=RuntimeError, error="expected dtype float for `end`"
)
def lerp_mixed_dtypes(device: str) -> Answer:
    """lerp of a fp32 tensor and a layer's output under autocast raises that it expected one dtype.

    Why: add and mul of the same two tensors take the wider dtype, and autocast alone made them differ.
    Remedy: cast the end, or write start + weight * (end - start).
    """
    given = torch.ones(2, 2, device=device)
    expected = "lerp gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        product = torch.mm(given, given)
        print("given + 0.5 * (product - given) gives", (given + 0.5 * (product - given)).dtype)
        seen = f"lerp gives {torch.lerp(given, product, 0.5).dtype}"
    return expected, seen


@defect("#124051", "#191125", fake=True)
def promoted_ops_by_device(device: str) -> Answer:
    """dot, cross, tensordot and bilinear of fp32 and bf16 raise under CPU autocast, and run on CUDA.

    Why: code that runs under autocast on one device should run on another.
    Remedy: cast one of the two tensors before.
    """
    single, single_row = torch.ones(3, 3, device=device), torch.ones(3, device=device)
    half, half_row = single.to(torch.bfloat16), single_row.to(torch.bfloat16)
    cube = torch.ones(2, 3, 3, device=device)
    ops: dict[str, Callable[[], torch.Tensor]] = {
        "dot": lambda: torch.dot(single_row, half_row),
        "vdot": lambda: torch.vdot(single_row, half_row),
        "cross": lambda: torch.cross(single, half, dim=1),
        "tensordot": lambda: torch.tensordot(single, half, 1),
        "bilinear": lambda: F.bilinear(half, single, cube),
        "addcdiv": lambda: torch.addcdiv(single, half, single),
        "atan2": lambda: torch.atan2(single, half),
    }
    wrong = []
    with torch.autocast(device, dtype=torch.bfloat16):
        for name, op in ops.items():
            try:
                wrong += [name] if op().dtype != torch.float32 else []
            except RuntimeError as error:
                wrong.append(name)
                print(name, "raises", str(error).splitlines()[0])
    expected = f"all {len(ops)} ops give torch.float32"
    return expected, f"{', '.join(wrong)} do not" if wrong else expected


@defect("#76661", "#124051", "csarofeen/pytorch#957", by_design=True, fake=True)
def fp32_ops_by_device(device: str) -> Answer:
    """softmax, sum, exp, norms and others run in fp32 under autocast on CUDA, and in bf16 on the CPU.

    Autocast's notes list ops that it runs in fp32 on CUDA for the sake of accuracy; here each is given a bf16 tensor.
    Why: a model should have the same dtypes, and so about the same accuracy, wherever it runs under autocast.
    Remedy: where it matters ask for fp32: softmax(x, dim, dtype=torch.float32), x.float().sum().
    """
    ops: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        **{
            name: getattr(torch, name)
            for name in ("exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal", "rsqrt")
        },
        **{name: getattr(torch, name) for name in ("cosh", "sinh", "tan", "sum", "prod", "norm")},
        **{name: getattr(F, name) for name in ("softplus", "normalize")},
        "pow": lambda given: given**2.0,
        "cumsum": lambda given: given.cumsum(0),
        "cumprod": lambda given: given.cumprod(0),
        "softmax": lambda given: given.softmax(1),
        "log_softmax": lambda given: given.log_softmax(1),
        "logsumexp": lambda given: given.logsumexp(1),
        "layer_norm": lambda given: F.layer_norm(given, (4,)),
        "group_norm": lambda given: F.group_norm(given, 2),
        "mse_loss": lambda given: F.mse_loss(given, given),
        "cosine_similarity": lambda given: F.cosine_similarity(given, given),
    }
    batch = torch.ones(2, 4, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        halves = [name for name, op in ops.items() if op(batch).dtype != torch.float32]
    expected = f"all {len(ops)} ops give torch.float32"
    return expected, f"not {', '.join(halves)}" if halves else expected


@defect("#42605", "#44296", by_design=True, fake=True)
def half_ops_by_device(device: str) -> Answer:
    """mv, addmv, addr, GRUCell and LSTMCell give bf16 under autocast on CUDA, and fp32 on the CPU.

    Why: a model should have the same dtypes wherever it runs under autocast.
    Remedy: cast their inputs and weights by hand where bf16 is wanted.
    """
    square, vector, row = torch.ones(4, 4, device=device), torch.ones(4, device=device), torch.ones(1, 4, device=device)
    gates = {count: torch.ones(4 * count, 4, device=device) for count in (1, 3, 4)}
    ops: dict[str, Callable[[], torch.Tensor]] = {
        "mm": lambda: torch.mm(square, square),
        "mv": lambda: torch.mv(square, vector),
        "addmv": lambda: torch.addmv(vector, square, vector),
        "addr": lambda: torch.addr(square, vector, vector),
        "rnn_tanh_cell": lambda: torch.rnn_tanh_cell(row, row, gates[1], gates[1]),
        "gru_cell": lambda: torch.gru_cell(row, row, gates[3], gates[3]),
        "lstm_cell": lambda: torch.lstm_cell(row, [row, row], gates[4], gates[4])[0],
    }
    with torch.autocast(device, dtype=torch.bfloat16):
        singles = [name for name, op in ops.items() if op().dtype != torch.bfloat16]
    expected = f"all {len(ops)} ops give torch.bfloat16"
    return expected, f"not {', '.join(singles)}" if singles else expected


@defect("#42605", by_design=True)
def gru_stays_fp32(device: str) -> Answer:
    """nn.GRU gives fp32 under CPU autocast, while nn.RNN and nn.LSTM give bf16.

    Why: the three are of one kind, and on CUDA all of them give bf16.
    Remedy: cast its output where bf16 is wanted; its products run in bf16 already.
    """
    torch.manual_seed(0)
    gru = torch.nn.GRU(8, 8, device=device)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        output, _ = gru(torch.ones(3, 1, 8, device=device))
    return "the GRU gives torch.bfloat16", f"the GRU gives {output.dtype}"


@defect("AOSSIE-Org/OpenVerifiableLLM#100", "#88136", "intel/torch-xpu-ops#4066")
def lstm_bf16(device: str) -> Answer:
    """nn.LSTM under autocast to bf16 raises 'could not create a primitive descriptor for the LSTM ...'.

    Why: where there is no bf16 kernel for it, as on many CPUs, autocast should leave it in fp32.
    Remedy: run the LSTM under torch.autocast(device, enabled=False) with a fp32 input.
    """
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(8, 8, device=device)
    expected = "the LSTM runs"
    try:
        with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
            output, _ = lstm(torch.ones(3, 1, 8, device=device))
        print("it gives", output.dtype)
        seen = "the LSTM runs"
    except RuntimeError as error:
        seen = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return expected, seen


@defect("AOSSIE-Org/OpenVerifiableLLM#100", error="could not create a primitive descriptor for the LSTM")
def lstm_fp16(device: str) -> Answer:
    """nn.LSTM under autocast to fp16 raises 'could not create a primitive descriptor for the LSTM ...'.

    Why: where there is no fp16 kernel for it, as on most CPUs, autocast should leave it in fp32.
    Remedy: run the LSTM under torch.autocast(device, enabled=False) with a fp32 input, or take bf16.
    """
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(8, 8, device=device)
    expected = "the LSTM runs"
    try:
        with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
            output, _ = lstm(torch.ones(3, 1, 8, device=device))
        print("it gives", output.dtype)
        seen = "the LSTM runs"
    except RuntimeError as error:
        seen = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return expected, seen


@defect(
    "#61098",
    "Lightning-AI/pytorch-lightning#13871",
    "Megvii-BaseDetection/YOLOX#336",
    by_design=True,
    fake=True,
    error="unsafe to autocast",
)
def bce_under_autocast(device: str) -> Answer:
    """binary_cross_entropy runs under CPU autocast and raises 'unsafe to autocast' on CUDA and XPU.

    Why: code that was tried under autocast on a CPU should run under it elsewhere.
    Remedy: drop the sigmoid and use binary_cross_entropy_with_logits, or cast to fp32 and leave autocast for it.
    """
    target = torch.ones(2, 2, device=device)
    expected = "binary_cross_entropy gives torch.float32"
    try:
        with torch.autocast(device, dtype=torch.bfloat16):
            chance = torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device)).sigmoid()
            seen = f"binary_cross_entropy gives {F.binary_cross_entropy(chance, target).dtype}"
    except RuntimeError as error:
        seen = f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return expected, seen


@defect(
    "intel/intel-extension-for-pytorch#731",
    "Nerogar/OneTrainer#655",
    by_design=True,
    fake=True,
    error=r"mixed dtype \(CPU\): expect parameter to have scalar type of Float",
)
def norm_half_weight(device: str) -> Answer:
    """A norm with half weights and a fp32 input raises 'mixed dtype (CPU)' under CPU autocast, not on CUDA.

    Why: autocast is there to make dtypes fit, and on CUDA and XPU it runs these norms in fp32.
    Remedy: keep the weights of norms in fp32, or cast the input to their dtype.
    """
    batch = torch.ones(2, 8, device=device)
    weight = torch.ones(8, dtype=torch.float16, device=device)
    with torch.autocast(device, dtype=torch.float16):
        layer = dtype_or_error(lambda: F.layer_norm(batch, (8,), weight, weight))
        group = dtype_or_error(lambda: F.group_norm(batch, 2, weight, weight))
    expected = "layer_norm gives torch.float32, group_norm gives torch.float32"
    return expected, f"layer_norm gives {layer}, group_norm gives {group}"


@defect("#61924", matters=(TRAINING,), raises=RuntimeError, error="expected scalar type Half but found Float")
def batch_norm_no_affine(device: str) -> Answer:
    """BatchNorm2d(affine=False) under autocast raises 'expected scalar type Half but found Float' in training.

    Why: with weights the same model trains under autocast, and so it has to without them.
    Remedy: keep affine=True and freeze weight and bias.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False)).to(device)
    expected = "the convolution has a gradient"
    with torch.autocast(device, dtype=torch.bfloat16):
        output = model(torch.randn(2, 1, 8, 8, device=device))
    output.float().square().sum().backward()
    return expected, f"the convolution has {'no' if model[0].weight.grad is None else 'a'} gradient"


@defect("intel/torch-xpu-ops#2680", "#179141", "#107348", by_design=True)
def autocast_to_fp32(device: str) -> Answer:
    """torch.autocast to fp32, for an exact part of a half model, is off on the CPU and XPU: it stays bf16.

    Why: on CUDA such a region multiplies in fp32, which is what it asks for.
    Remedy: use torch.autocast(device, enabled=False) and cast the inputs to fp32 by hand.
    """
    half = torch.ones(4, 4, dtype=torch.bfloat16, device=device)
    with torch.autocast(device, dtype=torch.float32):
        product = torch.mm(half, half)
    expected = "a product under autocast to fp32 gives torch.float32"
    return expected, f"a product under autocast to fp32 gives {product.dtype}"


@defect("#114458", by_design=True)
def autocast_other_device(device: str) -> Answer:
    """torch.autocast('cuda') does nothing for a model on the CPU, and the other way round.

    Why: who enters a region means the model that is called in it.
    Remedy: enter torch.autocast(tensor.device.type).
    """
    with torch.autocast("cuda" if device == "cpu" else "cpu", dtype=torch.bfloat16):
        product = torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device))
    return "the product gives torch.bfloat16", f"the product gives {product.dtype}"


@defect("jwohlwend/boltz#662", "jwohlwend/boltz#670", by_design=True)
def disable_other_device(device: str) -> Answer:
    """torch.autocast('cuda', enabled=False) around an exact part leaves it in bf16 for a model on the CPU.

    Why: the part is to be exact wherever the model runs.
    Remedy: enter torch.autocast(tensor.device.type, enabled=False).
    """
    other = "cuda" if device == "cpu" else "cpu"
    with torch.autocast(device, dtype=torch.bfloat16), torch.autocast(other, enabled=False):
        product = torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device))
    return "the product gives torch.float32", f"the product gives {product.dtype}"


@defect("#50170", "#60540", by_design=True)
def autocast_new_thread(device: str) -> Answer:
    """A thread that is started within a region of autocast runs outside of it, in fp32.

    Why: what is called in a region should not depend on which thread calls it.
    Remedy: enter autocast in the function that the thread runs.
    """

    def product() -> torch.dtype:
        return torch.mm(torch.ones(2, 2, device=device), torch.ones(2, 2, device=device)).dtype

    with torch.autocast(device, dtype=torch.bfloat16), ThreadPoolExecutor(1) as threads:
        expected = f"the product gives {product()}"
        seen = f"the product gives {threads.submit(product).result()}"
    return expected, seen


@defect("#110966", "#191916", "allenai/OLMo#339")
def is_autocast_enabled(device: str) -> Answer:
    """torch.is_autocast_enabled() is False within autocast of another device than CUDA: libraries do not cast.

    Why: it asks whether autocast is on, and it is.
    Remedy: ask for the device: torch.is_autocast_enabled(tensor.device.type).
    """
    with torch.autocast(device, dtype=torch.bfloat16):
        answer, by_device = torch.is_autocast_enabled(), torch.is_autocast_enabled(device)
    return f"is_autocast_enabled() is {by_device}", f"is_autocast_enabled() is {answer}"


@defect("#130067", devices=CPU_ALONE, raises=RuntimeError, error="unsupported scalarType")
def meta_autocast(device: str) -> Answer:
    """torch.autocast('meta', enabled=False) raises, so models that enter it cannot run on meta tensors.

    Models enter autocast by the device type of their input, also to switch it off; with meta tensors that is "meta".
    Why: a region that is switched off does nothing, so it can be entered on any device.
    Remedy: enter it where torch.amp.is_autocast_available(device_type) says so, else contextlib.nullcontext().
    """
    given = torch.ones(2, 2, device="meta")
    expected = "a region that is switched off can be entered"
    with torch.autocast(given.device.type, enabled=False):
        seen = "a region that is switched off can be entered"
    return expected, seen


@defect(
    "#107663",
    "#132613",
    "#108178",
    matters=(INFERENCE,),
    raises=RuntimeError,
    error="expected scalar type Float but found (BFloat16|Half)",
)
def encoder_padding_mask(device: str) -> Answer:
    """nn.TransformerEncoder in eval mode with a padding mask raises 'expected scalar type Float but found BFloat16'
    under CPU autocast.

    Why: outside autocast the same model runs, and in training mode it runs under autocast, too.
    Remedy: torch.backends.mha.set_fastpath_enabled(False), or TransformerEncoder(..., enable_nested_tensor=False).
    """
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device=device), 2).eval()
    words = torch.randn(2, 4, 8, device=device)
    padding = torch.tensor([[False] * 4, [False, False, True, True]], device=device)
    expected = "the encoder is within 0.1 of fp32"
    with torch.inference_mode():
        exact = encoder(words, src_key_padding_mask=padding)[0]
        with torch.autocast(device, dtype=torch.bfloat16):
            mixed = encoder(words, src_key_padding_mask=padding)[0]
    error_seen = (mixed.double() - exact.double()).abs().max().item()
    return expected, f"the encoder is within {error_seen:.3f} of fp32", error_seen < 0.1


@defect("#40427", "KohakuBlueleaf/LyCORIS#123", fake=True, raises=RuntimeError)
def inverse_after_product(device: str) -> Answer:
    """inv of a product under autocast raises 'Low precision dtypes not supported' on CUDA and XPU.

    Why: autocast made the matrix bf16, and on the CPU it runs inv in fp32.
    Remedy: cast: torch.linalg.inv(matrix.float()).
    """
    expected = "inv gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        matrix = torch.mm(torch.eye(4, device=device), torch.eye(4, device=device))
        seen = f"inv gives {torch.linalg.inv(matrix).dtype}"
    return expected, seen


@defect("#40427", "HomebrewML/HeavyBall#57")
def linalg_after_product(device: str) -> Answer:
    """det, slogdet and others of a product under autocast raise 'Low precision ...' or 'not implemented'.

    Why: autocast made the matrix bf16: what has no half kernel has to be cast back, as inv is on the CPU.
    Remedy: cast: torch.linalg.det(matrix.float()).
    """
    names = ("inv", "det", "slogdet", "cholesky", "svd", "qr", "eigh", "lu_factor", "solve", "lstsq", "matrix_exp")

    raising = []
    with torch.autocast(device, dtype=torch.bfloat16):
        matrix = torch.mm(torch.eye(4, device=device), torch.eye(4, device=device))
        for name in names:
            try:
                getattr(torch.linalg, name)(*[matrix] * (2 if name in {"solve", "lstsq"} else 1))
            except RuntimeError as error:
                raising.append(name)
                print(name, "raises", str(error).splitlines()[0])
    return f"none of {len(names)} raises", f"{', '.join(raising) or 'none'} of {len(names)} raises"


@defect("#91156", "#138337", "huggingface/trl#3666", fake=True, raises=RuntimeError)
def quantile_after_product(device: str) -> Answer:
    """quantile of a layer's output under autocast raises 'must be either float or double' on CUDA and XPU.

    Why: autocast made the tensor bf16, and on the CPU it runs quantile in fp32.
    Remedy: cast: torch.quantile(scores.float(), q).
    """
    expected = "quantile gives torch.float32"
    with torch.autocast(device, dtype=torch.bfloat16):
        scores = torch.mm(torch.ones(2, 4, device=device), torch.ones(4, 4, device=device))
        seen = f"quantile gives {torch.quantile(scores, 0.5, dim=1).dtype}"
    return expected, seen


@defect("#117844", "#70664", "#180890", raises=RuntimeError)
def fft_after_product(device: str) -> Answer:
    """rfft of a layer's output under autocast raises 'Unsupported dtype BFloat16' on CUDA and XPU.

    A product is bf16 under autocast, and rfft of 6 values has no bf16 kernel: autocast has to cast for it.
    Why: autocast made the signal bf16, and on the CPU it runs rfft in fp32.
    Remedy: cast: torch.fft.rfft(signal.float()).
    """
    expected = "rfft gives torch.complex64"
    with torch.autocast(device, dtype=torch.bfloat16):
        signal = torch.mm(torch.ones(2, 6, device=device), torch.ones(6, 6, device=device))
        seen = f"rfft gives {torch.fft.rfft(signal).dtype}"
    return expected, seen


@defect("#85043", "huggingface/peft#1160")
def pinv_half_product(device: str) -> Answer:
    """linalg.pinv of a fp32 matrix is wrong by 1e-3 under autocast: its last product runs in bf16.

    pinv decomposes in fp32 and then multiplies, which autocast casts: the inverse of 3 has only the digits of bf16.
    Why: the matrix is fp32 and the inverse of 3 is 1/3; svd and inv of it stay fp32 under autocast.
    Remedy: call it under torch.autocast(device, enabled=False) with a fp32 matrix.
    """
    matrix = torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]], device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        inverse = torch.linalg.pinv(matrix)
    error = abs(inverse[1, 1].double().item() - 1 / 3)
    expected = "1/3 in torch.float32, wrong by less than 1e-6"
    good = error < 1e-6
    return expected, f"1/3 in {inverse.dtype}, wrong by {error:.0e}", good


@defect("huggingface/transformers#29285", "huggingface/diffusers#13920", "EleutherAI/gpt-neox#1003", by_design=True)
def rotary_positions(device: str) -> Answer:
    """Rotary embeddings lose positions under autocast: a matmul of fp32 positions runs in bf16.

    Why: each position has its own angle; bf16 keeps 8 binary digits and so cannot tell 1001 from 1000.
    Remedy: compute angles under torch.autocast(device, enabled=False), or by (positions[:, None] * frequencies).
    """
    positions = torch.arange(1000, 1008, dtype=torch.float32, device=device)
    frequencies = torch.ones(1, 1, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        angles = frequencies @ positions[None]
    return "8 positions have 8 angles", f"8 positions have {len(set(angles[0].tolist()))} angles"


@defect(
    "#132388",
    "#192242",
    "#137033",
    matters=(TRAINING,),
    raises=AttributeError,
    error="has no attribute '_fwd_used_autocast'",
)
def custom_fwd_setup_context(device: str) -> Answer:
    """custom_fwd on a Function with setup_context: backward raises 'no attribute _fwd_used_autocast'.

    custom_fwd keeps in ctx what custom_bwd needs; forward gets no ctx where setup_context is a method of its own.
    Why: both ways of writing a Function are documented, and the gradient of the double is 2.
    Remedy: write forward(ctx, ...) in one, or leave custom_fwd and custom_bwd out and cast by hand.
    """

    class Twice(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type=device)
        def forward(given: torch.Tensor) -> torch.Tensor:
            return given * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            """Keep nothing."""

        @staticmethod
        @custom_bwd(device_type=device)
        def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    expected = "the gradient is 2.0"
    given = torch.ones(1, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = Twice.apply(given)
    loss.sum().backward()
    return expected, f"the gradient is {given.grad.item() if given.grad is not None else None}"


@defect("#125186", "#132715", "#105682", matters=(TRAINING,))
def backward_thread_dtype(device: str) -> Answer:
    """A backward within a region of bf16 autocast multiplies in fp16: its thread does not know the dtype.

    Backward runs in a thread of its own on an accelerator: a region around it, to another dtype, has to reach it.
    Why: the region around backward says bf16, and it is on in the thread that runs it.
    Remedy: call backward outside of the region, as the documentation says.
    """
    dtype = torch.float16 if device == "cpu" else torch.bfloat16
    ran: list[torch.dtype] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(right)
            return left @ right

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            found = gradient @ ctx.saved_tensors[0].t()
            ran.append(found.dtype)
            return found, None

    left = torch.ones(2, 2, device=device, requires_grad=True)
    with torch.autocast(device, dtype=dtype):
        loss = Product.apply(left, torch.ones(2, 2, device=device))
        loss.float().sum().backward()
    return f"the backward's product gives {dtype}", f"the backward's product gives {ran[0]}"


@defect("#184890", "SimplexLab/TorchJD#699", "#192161", matters=(TRAINING,), raises=RuntimeError)
def vmap_norm_grad(device: str) -> Answer:
    """vmap over autograd.grad of a model with BatchNorm under autocast raises 'expected scalar type Half'.

    Why: a loop over the same gradients gives them.
    Remedy: run the norms under torch.autocast(device, enabled=False) in fp32, or loop.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device)
    with torch.autocast(device, dtype=torch.float16):
        output = model(torch.randn(8, 4, device=device)).squeeze()

    def gradient_of(chosen: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(output, list(model.parameters()), grad_outputs=chosen, retain_graph=True)[0]

    samples = torch.eye(8, dtype=output.dtype, device=device)
    print("a loop gives", torch.stack([gradient_of(sample) for sample in samples]).shape)
    expected = "vmap gives torch.Size([8, 4, 4])"
    return expected, f"vmap gives {torch.vmap(gradient_of)(samples).shape}"


@defect("#85043", "#178277")
def fake_pinv_dtype(device: str) -> Answer:
    """Fake tensors tell the wrong dtype of linalg.pinv under autocast: fp32 instead of half.

    Why: fake tensors, by which torch.compile and export plan, are to tell what real ones give.
    Remedy: call pinv under torch.autocast(device, enabled=False).
    """
    with torch.autocast(device, dtype=torch.bfloat16):
        real = torch.linalg.pinv(torch.eye(3, device=device)).dtype
    with FakeTensorMode(), torch.autocast(device, dtype=torch.bfloat16):
        fake = torch.linalg.pinv(torch.eye(3, device=device)).dtype
    return f"pinv gives {real}", f"pinv gives {fake}"


@defect("#139923", "#109394")
def layer_norm_statistics(device: str) -> Answer:
    """Fake tensors and real ones disagree about the dtypes of mean and rstd of native_layer_norm in bf16.

    native_layer_norm returns mean and rstd besides; fake tensors, by which compilers plan, have to know their dtypes.
    Why: fake tensors, by which torch.compile and export plan, are to tell what real ones give.
    Remedy: do not rely on the dtypes of mean and rstd: cast them.
    """

    def dtypes() -> str:
        weight = torch.ones(8, dtype=torch.bfloat16, device=device)
        batch = torch.ones(2, 8, dtype=torch.bfloat16, device=device)
        return ", ".join(str(one.dtype) for one in torch.native_layer_norm(batch, [8], weight, weight, 1e-5))

    expected = f"output, mean and rstd are {dtypes()}"
    with FakeTensorMode():
        seen = f"output, mean and rstd are {dtypes()}"
    return expected, seen


@defect("intel/torch-xpu-ops#3084", "#183689", mended="2.13", fake=True, raises=ValueError)
def register_autocast(device: str) -> Answer:
    """torch.library.register_autocast knows the CPU and CUDA alone: on XPU a custom op gets no autocast rule.

    Why: the op has the rule for this device type.
    Remedy: use torch 2.13 or later, or cast in the op.
    """

    @torch.library.custom_op("rules::twice", mutates_args=())
    def twice(given: torch.Tensor) -> torch.Tensor:
        return given * 2

    @twice.register_fake
    def _(given: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(given)

    expected = "the op gives torch.bfloat16"
    torch.library.register_autocast("rules::twice", device, torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16):
        seen = f"the op gives {twice(torch.ones(2, device=device)).dtype}"
    return expected, seen


@defect("#81747", "#81305", by_design=True, devices=CPU_ALONE)
def script_disable(device: str) -> Answer:
    """autocast(enabled=False) within a scripted function does not switch off the region that it is called in.

    Why: the eager function gives fp32.
    Remedy: leave the region before the call, or leave TorchScript, which is deprecated.
    """
    source = (
        "def exact(given: Tensor) -> Tensor:\n"
        "    with torch.cpu.amp.autocast(enabled=False):\n"
        "        return torch.mm(given, given)\n"
    )
    given = torch.ones(2, 2, device=device)
    expected = "the scripted product gives torch.float32"
    scripted = torch.jit.CompilationUnit(source).exact
    with torch.autocast(device, dtype=torch.bfloat16):
        seen = f"the scripted product gives {scripted(given).dtype}"
    return expected, seen


@defect("csarofeen/pytorch#1142", matters=(INFERENCE,), by_design=True)
def jit_trace_inside(device: str) -> Answer:
    """A traced network that enters autocast in its own forward pass gives half outside of a region, fp32 within one.

    Why: the network gives half in both where it is not traced.
    Remedy: call it outside of any region, or leave TorchScript, which is deprecated.
    """

    class Half(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).to(device)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                normed: torch.Tensor = self.layers(batch)
            return normed

    def dtypes(network: Any) -> str:
        outside = network(batch).dtype
        with torch.autocast(device, dtype=torch.bfloat16):
            return f"{outside} outside of a region, {network(batch).dtype} within one"

    network, batch = Half().eval(), torch.ones(2, 4, device=device)
    with torch.no_grad():
        expected, seen = dtypes(network), dtypes(torch.jit.trace(network, batch))
    return expected, seen


def documented_convolution(device: str, kernel: "torch.Tensor | None" = None) -> "torch.Tensor":
    """Return what the convolution of Intel's guide "Auto Mixed Precision on GPU" gives of images smaller than there."""
    images = torch.ones(2, 64, 56, 56, device=device)
    return F.conv2d(images, torch.ones(128, 64, 3, 3, device=device) if kernel is None else kernel, stride=2, padding=1)


@defect("#127276", matters=(INFERENCE,), fake=True, raises=RuntimeError)
def documented_bf16_inference(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: its convolution gives no bf16 under autocast to bf16.

    Why: the guide (of Intel Extension for PyTorch, about XPU) says that inference takes bf16 and fp16.
    Remedy: run the network in fp32, or in fp16 where documented-fp16-inference is good.
    """
    expected = "inference gives torch.bfloat16"
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        seen = f"inference gives {documented_convolution(device).dtype}"
    return expected, seen


@defect("#127276", matters=(INFERENCE,), fake=True, raises=RuntimeError)
def documented_fp16_inference(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: its convolution gives no fp16 under autocast to fp16.

    Why: the guide (of Intel Extension for PyTorch, about XPU) says that inference takes bf16 and fp16.
    Remedy: run the network in fp32, or in bf16 where documented-bf16-inference is good.
    """
    expected = "inference gives torch.float16"
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        seen = f"inference gives {documented_convolution(device).dtype}"
    return expected, seen


@defect("intel/intel-extension-for-tensorflow#14", matters=(TRAINING,), by_design=True)
def documented_training(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: bf16 is not the only dtype that its convolution trains in.

    Why: the guide (of Intel Extension for PyTorch, about XPU) says that training takes bf16 alone.
    Remedy: train in bf16, or in fp16 with GradScaler where both are seen to train.
    """

    def outcome(dtype: torch.dtype) -> str:
        kernel = torch.full((128, 64, 3, 3), 0.01, device=device, requires_grad=True)
        before = kernel.detach().clone()
        optimizer = torch.optim.SGD([kernel], lr=0.001)
        try:
            with torch.autocast(device, dtype=dtype):
                output = documented_convolution(device, kernel)
            output.float().square().mean().backward()
            optimizer.step()
        except RuntimeError:
            return "does not train"
        moved = kernel.detach() - before
        return "trains" if moved.isfinite().all() and moved.any() else "does not train"

    return "bf16 trains, fp16 does not train", f"bf16 {outcome(torch.bfloat16)}, fp16 {outcome(torch.float16)}"


@defect("#127741", by_design=True, fake=True)
def documented_default_dtype(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: bf16 is not autocast's default dtype.

    Why: the guide (of Intel Extension for PyTorch, about XPU) says that bf16 is the default.
    Remedy: name the dtype: torch.autocast(device, dtype=torch.bfloat16).
    """
    return "the default is torch.bfloat16", f"the default is {torch.get_autocast_dtype(device)}"


@defect("intel/torch-xpu-ops#2509", "intel/torch-xpu-ops#148", by_design=True, devices=("xpu",), fake=True)
def documented_spelling(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: torch.xpu.amp.autocast is not there.

    Why: the guide (of Intel Extension for PyTorch, about XPU) enters autocast by that name.
    Remedy: enter torch.autocast("xpu").
    """
    with torch.autocast(device, dtype=torch.bfloat16):
        print(f'torch.autocast("{device}") is entered:', torch.is_autocast_enabled(device))
    there = hasattr(getattr(torch.get_device_module(device), "amp", None), "autocast")
    expected = f"torch.{device}.amp.autocast is there"
    return expected, expected if there else f"torch.{device}.amp.autocast is not there"
