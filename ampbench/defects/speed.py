"""What precisions cost, as ratios of times on this machine."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ampbench.defects import CPU_ALONE, INFERENCE, TRAINING, Answer, defect
from ampbench.defects.cache import casts_made
from ampbench.defects.rules import documented_convolution

if TYPE_CHECKING:
    import torch


def slowness(what: str, in_half: Callable[[], Any], in_fp32: Callable[[], Any]) -> tuple[str, str, bool]:
    """Return whether a call in half precision takes at most 4 times as long as in fp32, by the shortest of 9 calls."""

    def shortest(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(9):
            began = perf_counter()
            call()
            times.append(perf_counter() - began)
        return min(times)

    ratio = shortest(in_half) / shortest(in_fp32)
    cpu = Path("/proc/cpuinfo")
    words = set(cpu.read_text().split()) if cpu.exists() else set()
    flags = sorted(word for word in words if word.startswith(("avx", "amx", "asimd", "bf16", "f16c", "sve")))
    print("kernels for", torch.backends.cpu.get_cpu_capability(), "on a CPU with", *flags)
    print(f"{what} takes {ratio:.2f} times as long as fp32")
    expected = f"{what} takes at most 4 times as long as fp32"
    return expected, expected if ratio <= 4 else f"{what} takes more than 4 times as long as fp32", ratio <= 4


@defect("#146508", devices=CPU_ALONE, timed=True)
def fp16_matmul_speed(device: str) -> Answer:
    """Products of matrices in fp16 take many times as long as in fp32 on a CPU without AVX512-FP16 or AMX-FP16.

    Why: to convert both to fp32 and the result back would cost little beside the product.
    Remedy: use fp32 on this CPU (or bf16 where bf16-matmul-speed is good), or convert to fp32 for the product.
    """
    torch.manual_seed(0)
    single = torch.randn(192, 192, device=device)
    half = single.to(torch.float16)
    return slowness("fp16", lambda: torch.matmul(half, half), lambda: torch.matmul(single, single))


@defect("#146508", "#86270", "#111456", "#86550", devices=CPU_ALONE, timed=True)
def bf16_matmul_speed(device: str) -> Answer:
    """Products of matrices in bf16 take many times as long as in fp32 on a CPU without AVX512.

    Why: to convert both to fp32 and the result back would cost little beside the product.
    Remedy: use fp32 on this CPU: see what CPU flags the program prints.
    """
    torch.manual_seed(0)
    single = torch.randn(192, 192, device=device)
    half = single.to(torch.bfloat16)
    return slowness("bf16", lambda: torch.matmul(half, half), lambda: torch.matmul(single, single))


@defect("#83382", "#99497", devices=CPU_ALONE, timed=True)
def fp16_conv_speed(device: str) -> Answer:
    """Convolutions in fp16 take many times as long as in fp32 on a CPU without AVX512-FP16 or AMX-FP16.

    Why: to convert both to fp32 and the result back would cost little beside the convolution.
    Remedy: use fp32 on this CPU (or bf16 where bf16-conv-speed is good), or convert to fp32 for the convolution.
    """
    torch.manual_seed(0)
    image, kernel = torch.randn(1, 16, 48, 48, device=device), torch.randn(16, 16, 3, 3, device=device)
    half = image.to(torch.float16), kernel.to(torch.float16)
    return slowness(
        "fp16", lambda: torch.nn.functional.conv2d(*half), lambda: torch.nn.functional.conv2d(image, kernel)
    )


@defect("#86270", "#83382", devices=CPU_ALONE, timed=True)
def bf16_conv_speed(device: str) -> Answer:
    """Convolutions in bf16 take many times as long as in fp32 on a CPU without AVX512.

    Why: to convert both to fp32 and the result back would cost little beside the convolution.
    Remedy: use fp32 on this CPU: see what CPU flags the program prints.
    """
    torch.manual_seed(0)
    image, kernel = torch.randn(1, 16, 48, 48, device=device), torch.randn(16, 16, 3, 3, device=device)
    half = image.to(torch.bfloat16), kernel.to(torch.bfloat16)
    return slowness(
        "bf16", lambda: torch.nn.functional.conv2d(*half), lambda: torch.nn.functional.conv2d(image, kernel)
    )


@defect("#118499", "#86270", "#111456", matters=(TRAINING,), devices=CPU_ALONE, timed=True)
def bf16_training_speed(device: str) -> Answer:
    """Training under torch.autocast('cpu') takes many times as long as in fp32 on a CPU without AVX512.

    Why: mixed precision is there to make training faster; its casts alone cost far less than the step.
    Remedy: train in fp32 on this CPU: see what CPU flags the program prints.
    """

    def step(dtype: torch.dtype) -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype != torch.float32):
            output = model(batch)
        output.float().square().mean().backward()

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(1, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    ).to(device)
    batch = torch.randn(64, 1, device=device)
    return slowness("bf16 autocast", lambda: step(torch.bfloat16), lambda: step(torch.float32))


@defect("huggingface/diffusers#511", "huggingface/diffusers#495", "#118499", by_design=True, fake=True)
def autocast_cast_count(device: str) -> Answer:
    """Autocast runs a cast kernel for every weight and around every fp32 op, which a model in bf16 does without.

    Why: a model in bf16 runs the same layers without a cast: each cast is a kernel that computes nothing.
    Remedy: for inference convert the model (model.to(torch.bfloat16)) instead of entering autocast.
    """

    def blocks(dtype: torch.dtype) -> None:
        weights = [torch.ones(4, 4, device=device, dtype=dtype) for _ in range(4)]
        output = torch.ones(2, 4, device=device, dtype=dtype)
        for first, second in zip(weights[::2], weights[1::2], strict=True):
            normed = torch.nn.functional.layer_norm(output, (4,))
            output = torch.nn.functional.linear(
                torch.nn.functional.gelu(torch.nn.functional.linear(normed, first)), second
            )

    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16), casts_made() as mixed:
        blocks(torch.float32)
    with torch.no_grad(), casts_made() as pure:
        blocks(torch.bfloat16)
    return f"{len(pure.made)} casts", f"{len(mixed.made)} casts"


@defect("huggingface/diffusers#740", "huggingface/diffusers#511", "#188955", by_design=True, fake=True)
def half_model_casts(device: str) -> Answer:
    """Autocast around a model that is in half precision already still casts, to fp32 and back.

    Why: model and input are in bf16, and the same ops run without a cast outside of autocast.
    Remedy: leave autocast out where the model is in half precision.
    """
    batch = weight = torch.ones(4, 4, device=device, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16), casts_made() as casts:
        normed = torch.nn.functional.layer_norm(batch, (4,))
        shares = torch.softmax(torch.nn.functional.linear(normed, weight), dim=-1)
        torch.nn.functional.linear(shares, weight)
    return "0 casts", f"{len(casts.made)} casts"


@defect("NVIDIA/apex#327", "#61173", by_design=True, fake=True)
def shared_input_casts(device: str) -> Answer:
    """An fp32 input of several layers (queries, keys, values) is cast once for each of them.

    Why: it is one tensor and one target dtype: one cast serves all.
    Remedy: cast the input yourself before the layers, or project by one layer and split the result.
    """
    weights = [torch.ones(4, 4, device=device, dtype=torch.bfloat16) for _ in range(3)]
    batch = torch.ones(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad(), casts_made() as casts:
        for weight in weights:
            torch.nn.functional.linear(batch, weight)
    expected = "3 projections cast their input 1 time"
    return expected, f"3 projections cast their input {len(casts.made)} time{'s' * (len(casts.made) != 1)}"


@defect("Lightning-AI/pytorch-lightning#19950", "sgl-project/sglang-omni#2262", matters=(INFERENCE,), by_design=True)
def region_in_loop_casts(device: str) -> Answer:
    """A region for each step casts the same weights anew in every step: the cache ends with the region.

    Why: the weight does not change between the steps, so that its cast can be used again.
    Remedy: where weights stay (inference), enter one region with no_grad around the loop, or convert them once.
    """
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
    batch = torch.ones(2, 4, device=device, dtype=torch.bfloat16)
    with torch.no_grad(), casts_made() as casts:
        for _ in range(3):
            with torch.autocast(device, dtype=torch.bfloat16):
                torch.nn.functional.linear(batch, weight)
    return (
        "3 regions cast the weight 1 time",
        f"3 regions cast the weight {len(casts.made)} time{'s' * (len(casts.made) != 1)}",
    )


@defect("#61173", "pytorch/tutorials#1267", matters=(TRAINING,), by_design=True)
def saved_tensor_bytes(device: str) -> Answer:
    """Training under autocast needs more memory than in fp32 where weights outweigh activations.

    Why: half precision is expected to halve what is saved; but fp32 weights are there anyway, and casts come on top.
    Remedy: expect a gain with large batches alone; else train in fp32, or checkpoint the layers in a region with
    cache_enabled=False.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64, bias=False, device=device) for _ in range(3)]
    weights = {layer.weight.data_ptr() for layer in layers}
    batch = torch.randn(4, 64, device=device)

    def saved_bytes(region: Any) -> int:
        saved: list[torch.Tensor] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            saved.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), region:
            output = batch
            for layer in layers:
                output = torch.relu(layer(output))
        sizes = {one.data_ptr(): one.untyped_storage().nbytes() for one in saved}
        return sum(size for address, size in sizes.items() if address not in weights)

    single = saved_bytes(nullcontext())
    mixed = saved_bytes(torch.autocast(device, dtype=torch.bfloat16))
    return f"autocast saves at most {single} bytes, as many as fp32", f"autocast saves {mixed} bytes", mixed <= single


@defect("uxlfoundation/oneDNN#1465", matters=(INFERENCE,), by_design=True, timed=True)
def documented_speedup(device: str) -> Answer:
    """Intel's guide to mixed precision is wrong: its convolution is no faster under autocast to bf16.

    Why: the guide (of Intel Extension for PyTorch, about XPU) says that there is a speedup over fp32.
    Remedy: stay in fp32 where a run on your network shows no gain either: ampbench run.
    """

    def shortest(enabled: bool) -> float:
        times = []
        for _ in range(9):
            began = perf_counter()
            with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
                documented_convolution(device).sum().item()  # which waits for a device
            times.append(perf_counter() - began)
        return min(times)

    speedup = shortest(enabled=False) / shortest(enabled=True)
    print(f"bf16 is {speedup:.2f} times as fast as fp32")
    expected = "bf16 is faster than fp32"
    return expected, expected if speedup > 1 else "bf16 is not faster than fp32", speedup > 1
