"""Kernels of half precision: their values, gradients and limits."""

import math
from typing import TYPE_CHECKING

from ampbench.defects import CPU_ALONE, TRAINING, Answer, defect

if TYPE_CHECKING:
    import torch


@defect("#180150", by_design=True)
def fp16_cumsum(device: str) -> Answer:
    """cumsum() of fp16 values is many times less accurate on a GPU, where it adds up in fp16.

    Why: added up in fp32, each sum is rounded to fp16 once, by half the distance of its values.
    Remedy: pass dtype=torch.float32 to cumsum().
    """
    torch.manual_seed(0)
    values = torch.randn(500_000).half()
    error = (values.to(device).cumsum(0).cpu().double() - values.double().cumsum(0)).abs().max().item()
    expected = "sums up to 1600 are off by 1.0 at most, the distance of fp16 values there"
    good = error <= 1.0
    return expected, f"sums up to 1600 are off by {error:.1f} at most", good


@defect("#156018", "#180155", by_design=True)
def fp16_cumprod(device: str) -> Answer:
    """cumprod() of fp16 values differs between CPU and GPU, which rounds each product.

    Why: multiplied in fp32, the products are exact, and each is rounded to fp16 once.
    Remedy: pass dtype=torch.float32 to cumprod().
    """
    exact = [torch.tensor(6.5**power, dtype=torch.float64).half().item() for power in range(1, 5)]
    products = torch.full((4,), 6.5, device=device, dtype=torch.float16).cumprod(0)
    return f"cumprod of 6.5 is {exact}", f"cumprod of 6.5 is {products.tolist()}"


@defect("#163347")
def bf16_conv_ones(device: str) -> Answer:
    """A small convolution in bf16 is plainly wrong on some CPUs (1 instead of 4) with oneDNN.

    Why: four ones times four ones sum to 4.
    Remedy: set torch.backends.mkldnn.enabled = False, or convolve in fp32.
    """
    ones = torch.ones(1, 1, 2, 2, device=device, dtype=torch.bfloat16)
    sums = []
    for enabled in (True, False):
        with torch.backends.mkldnn.flags(enabled=enabled):
            sums.append(torch.nn.functional.conv2d(ones, ones).item())
    expected = "the sum of four ones is 4.0 with oneDNN, 4.0 without"
    return expected, f"the sum of four ones is {sums[0]} with oneDNN, {sums[1]} without"


@defect("#169688", "#188426", devices=CPU_ALONE)
def bf16_conv3d_stride(device: str) -> Answer:
    """A bf16 conv3d whose stride leaves a last dimension of 1 is plainly wrong on CPUs with AMX.

    Why: it is compared with the convolution of the same values in fp64; bf16 rounds by 0.4 %.
    Remedy: set torch.backends.mkldnn.enabled = False around it, or convolve in fp32.
    """
    torch.manual_seed(0)
    values = torch.randn(2, 16, 6, 6, 4).bfloat16()
    kernel = torch.randn(32, 16, 3, 3, 3).bfloat16()
    right = torch.nn.functional.conv3d(values.double(), kernel.double(), stride=(1, 1, 3))
    result = torch.nn.functional.conv3d(values.to(device), kernel.to(device), stride=(1, 1, 3)).cpu().double()
    error = ((result - right).abs().max() / right.abs().max()).item()
    return "off by less than 1.0 % of the largest value", f"off by {error:.1%} of the largest value", error < 0.01


@defect("#153700", ops=("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), dtype="fp16")
def fp16_conv_transpose(device: str) -> Answer:
    """conv_transpose is NaN in fp16 on a CPU where overlaps beyond 65504 cancel: they are added in fp16.

    Two products beyond fp16 cancel to a small number; added in fp16, they are inf - inf.
    Why: the sum of both products is well within fp16, and exact in fp32.
    Remedy: call conv_transpose in fp32 or bf16 on a CPU.
    """
    values = torch.tensor([[[30000.0, 30000.0]]], dtype=torch.float16)
    kernel = torch.tensor([[[-3.1, 3.0]]], dtype=torch.float16)
    right = (values.double() * kernel.double()).sum().half().item()
    result = torch.nn.functional.conv_transpose1d(values.to(device), kernel.to(device))
    return f"30000 * -3.1 + 30000 * 3.0 is {right}", f"30000 * -3.1 + 30000 * 3.0 is {result[0, 0, 1].item()}"


@defect("#156173", "intel/torch-xpu-ops#1751", matters=(TRAINING,))
def bf16_index_gradient(device: str) -> Answer:
    """Gradients of indexing and embedding stall in bf16 on a CPU for rows that are used more than 256 times.

    One row is used 4096 times, so that its gradient is 4096; summed in bf16, it stalls at 256.
    Why: the gradient of a row is the sum over its uses: 4096 ones.
    Remedy: keep embeddings in fp32 (under autocast they are), or use index_select on matrices: it adds in fp32.
    """
    weight = torch.zeros(2, 1, device=device, dtype=torch.bfloat16, requires_grad=True)
    rows = torch.zeros(4096, device=device, dtype=torch.long)
    (indexed,) = torch.autograd.grad(weight[rows].sum(), weight)
    (embedded,) = torch.autograd.grad(torch.nn.functional.embedding(rows, weight).sum(), weight)
    expected = "the gradient is 4096.0 by indexing, 4096.0 by embedding"
    return expected, f"the gradient is {indexed[0].item()} by indexing, {embedded[0].item()} by embedding"


@defect("#139242")
def bf16_index_reduce_mean(device: str) -> Answer:
    """index_reduce_ with 'mean' is wrong in bf16 and fp16: it sums or counts in their dtype.

    Why: the mean of ones is 1.
    Remedy: call it on float(), or use scatter_reduce with 'mean'.
    """
    target = torch.zeros(1, 2, device=device, dtype=torch.bfloat16)
    rows = torch.zeros(4096, device=device, dtype=torch.long)
    ones = torch.ones(4096, 2, device=device, dtype=torch.bfloat16)
    mean = target.index_reduce(0, rows, ones, "mean", include_self=False)
    return "the mean of 4096 ones is 1.0", f"the mean of 4096 ones is {mean[0, 0].item()}"


@defect("#123911", by_design=True)
def softmax_in_fp32(device: str) -> Answer:
    """softmax(dtype=torch.float32) rounded to fp16 differs from softmax of the fp16 values.

    Why: both compute in fp32 and round once, though not always by the same kernel.
    Remedy: use one of the two throughout.
    """
    torch.manual_seed(0)
    values = torch.randn(512, 64).half().to(device)
    rounded = torch.softmax(values, dim=-1, dtype=torch.float32).half()
    differ = (torch.softmax(values, dim=-1) != rounded).sum().item()
    return "0 of 32768 probabilities differ", f"{differ} of {values.numel()} probabilities differ"


@defect("huggingface/transformers#17306", "NVIDIA-NeMo/Automodel#2658", by_design=True)
def mask_added_twice(device: str) -> Answer:
    """Two masks made of finfo.min add up to -inf, which turns a fully masked row to NaN.

    Adds two masks of the lowest number, as for padding and causality: together they are -inf, all along a row.
    Why: such masks are there to avoid NaN: equal scores give equal probabilities.
    Remedy: combine masks as booleans and fill once, or pass a boolean mask to scaled_dot_product_attention.
    """
    found = []
    for dtype in (torch.float16, torch.bfloat16):
        mask = torch.full((4,), torch.finfo(dtype).min, device=device, dtype=dtype)
        found.append(torch.softmax(mask + mask, dim=-1)[0].item())
    expected = "a fully masked row of 4 gets probabilities of 0.25 in fp16, 0.25 in bf16"
    return expected, f"a fully masked row of 4 gets probabilities of {found[0]} in fp16, {found[1]} in bf16"


@defect("#188375", "#188372", ops=("layer_norm",), dtype="bf16")
def bf16_layer_norm_one(device: str) -> Answer:
    """layer_norm over a single value depends on that value, in bf16 on a CPU.

    Why: a value minus its own mean is 0, which leaves the bias.
    Remedy: do not normalize single values: where a shape may be 1, call layer_norm on float(), with fp32 weights.
    """
    value, weight, bias = (torch.tensor([number], device=device, dtype=torch.bfloat16) for number in (1e6, 2.0, 3.0))
    result = torch.nn.functional.layer_norm(value, (1,), weight, bias)
    expected = "layer norm of 1e6 alone, with a bias of 3.0, is 3.0"
    return expected, f"layer norm of 1e6 alone, with a bias of 3.0, is {result.item()}"


@defect("#88064", matters=(TRAINING,), ops=("layer_norm",), dtype="bf16")
def bf16_layer_norm_gradient(device: str) -> Answer:
    """Under CPU autocast, LayerNorm's weight and bias get gradients that stall after 256 rows per thread.

    Under autocast a norm with fp32 weights sees bf16 values; the gradient of its bias is a sum over all 65536 rows.
    Why: the bias is added to each of 65536 rows, so that its gradient is 65536.
    Remedy: call the norm on float(), outside of autocast or within: norm(hidden.float()).
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = torch.nn.Linear(4, 2, device=device)
    norm = torch.nn.LayerNorm(2, device=device)
    batch = torch.randn(65536, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        result = norm(layer(batch))
    (gradient,) = torch.autograd.grad(result.float().sum(), norm.bias)
    expected = "the gradient of the bias, one for each of 65536 rows, is 65536.0"
    return expected, f"the gradient of the bias, one for each of 65536 rows, is {gradient[0].item()}"


@defect("#193006", "#65815", "#194326")
def bf16_norm_overflow(device: str) -> Answer:
    """The norm of large bf16 values is inf though it is within range, and its gradient silently 0.

    The norm of 1e20 is 1e20, well within bf16 (and fp32); the square that is summed on the way is not.
    Why: the norm is that of the one large value; bf16 and fp32 have 1e20, though not its square.
    Remedy: divide by the largest magnitude first, and multiply the norm by it.
    """
    vector = torch.tensor([1e20, 1.0, 1.0], device=device, dtype=torch.bfloat16, requires_grad=True)
    norm = torch.linalg.vector_norm(vector)
    (gradient,) = torch.autograd.grad(norm, vector)
    return "the norm is 1e+20, its gradient 1.0", f"the norm is {norm.item():.0e}, its gradient {gradient[0].item()}"


@defect("#43211", matters=(TRAINING,))
def fp16_norm_gradient(device: str) -> Answer:
    """The gradient of a p-norm with p above 2 is NaN or inf for small fp16 values.

    The 3-norm of one value is that value, so its gradient is 1; in fp16 it is made of powers that are 0.
    Why: any p-norm of one positive value is that value, and its gradient 1.
    Remedy: call norm() on float().
    """
    vector = torch.tensor([1e-4], device=device, dtype=torch.float16, requires_grad=True)
    (gradient,) = torch.autograd.grad(vector.norm(3), vector)
    return "the gradient is 1.0", f"the gradient is {gradient.item():.1f}"


@defect("#32137", "#192017", "#151110", "kornia/kornia#4021", ops=("normalize",), dtype="fp16")
def fp16_normalize_zero(device: str) -> Answer:
    """torch.nn.functional.normalize of a zero vector is NaN in fp16: its default eps of 1e-12 is 0 there.

    Why: the documented division is by the larger of norm and eps: 0 / 1e-12 is 0, as in fp32 and bf16.
    Remedy: call normalize on float(), or pass eps=1e-4 (with 1e-6 gradients are inf).
    """
    result = torch.nn.functional.normalize(torch.zeros(1, 3, device=device, dtype=torch.float16))
    expected = "a vector of zeros is normalized to [0.0, 0.0, 0.0]"
    return expected, f"a vector of zeros is normalized to {result[0].tolist()}"


@defect("#69512", ops=("cosine_similarity",), dtype="fp16")
def fp16_cosine(device: str) -> Answer:
    """cosine_similarity of fp16 vectors is 0 where a norm is beyond 65504.

    A vector is as similar to itself as can be; its length, 67882, is beyond fp16, though, and dividing by it gives 0.
    Why: a cosine does not depend on lengths, and that of a vector and itself is 1.
    Remedy: call cosine_similarity on float().
    """
    vector = torch.full((1, 512), 3000.0, device=device, dtype=torch.float16)
    similarity = torch.nn.functional.cosine_similarity(vector, vector)
    return "the cosine of a vector and itself is 1.00", f"the cosine of a vector and itself is {similarity.item():.2f}"


@defect("#85791", "#29429", "#61523", "#166232", ops=("cross_entropy",), dtype="fp16")
def fp16_cross_entropy(device: str) -> Answer:
    """cross_entropy of fp16 scores is inf or NaN for large batches: it sums before it divides.

    All classes are as likely, so that the loss is the logarithm of their number; what is summed first is beyond fp16.
    Why: the mean of equal losses is that loss.
    Remedy: call cross_entropy on float(): CUDA autocast does.
    """
    scores = torch.zeros(16384, 100, device=device, dtype=torch.float16)
    loss = torch.nn.functional.cross_entropy(scores, torch.zeros(16384, device=device, dtype=torch.long))
    expected = f"the mean loss of 16384 rows of 100 equal scores is {math.log(100):.1f}"
    return expected, f"the mean loss of 16384 rows of 100 equal scores is {loss.item():.1f}"


@defect("#166232", "#85791", "huggingface/transformers#10674")
def fp16_label_smoothing(device: str) -> Answer:
    """cross_entropy with label_smoothing is inf in fp16 for 16 rows of 1000 classes already.

    Smoothed or not, the loss of equal scores is the logarithm of their number; the smooth part sums over all of them.
    Why: smoothing changes nothing where all classes are as likely.
    Remedy: call cross_entropy on float(): CUDA autocast does.
    """
    scores = torch.zeros(16, 1000, device=device, dtype=torch.float16)
    labels = torch.zeros(16, device=device, dtype=torch.long)
    losses = [torch.nn.functional.cross_entropy(scores, labels, label_smoothing=share).item() for share in (0.0, 0.1)]
    expected = f"the mean loss is {math.log(1000):.1f}, with label smoothing {math.log(1000):.1f}"
    return expected, f"the mean loss is {losses[0]:.1f}, with label smoothing {losses[1]:.1f}"


@defect("#153186", "#166162")
def softshrink_beyond_fp16(device: str) -> Answer:
    """softshrink accepts a lambda beyond fp16 on a CPU and fails on a GPU.

    Why: a number that the dtype does not have cannot be compared with.
    Remedy: keep lambda below torch.finfo(dtype).max.
    """
    expected = "a lambda beyond fp16 is refused"
    try:
        result = torch.nn.functional.softshrink(torch.ones(2, device=device, dtype=torch.float16), 65507.0)
        seen = f"a lambda beyond fp16 gives {result.tolist()}"
    except RuntimeError:
        seen = "a lambda beyond fp16 is refused"
    return expected, seen


@defect("#137774", "#114544", "#141655", by_design=True)
def bf16_arange(device: str) -> Answer:
    """torch.arange(dtype=torch.bfloat16) does not give the integers rounded to bf16.

    Why: each number is the integer, rounded once.
    Remedy: count in integers or fp32 and convert last, as for positions of rotary embeddings.
    """
    counted = torch.arange(241, 273, device=device, dtype=torch.bfloat16)
    rounded = torch.arange(241, 273, device=device).bfloat16()
    expected = "0 of 32 numbers differ from the rounded integers"
    seen = f"{(counted != rounded).sum().item()} of {counted.numel()} numbers differ from the rounded integers"
    return expected, seen


@defect("#166853", mended="2.12")
def bf16_randn(device: str) -> Answer:
    """torch.randn(dtype=torch.bfloat16) draws nothing beyond 3.5 on a CPU.

    Why: of normal draws, 0.0465 % are further from 0 than 3.5.
    Remedy: draw in fp32 and convert.
    """
    torch.manual_seed(0)
    far = (torch.randn(1_000_000, device=device, dtype=torch.bfloat16).abs() > 3.5).sum().item()
    expected = "about 465 of 1000000 normal draws are beyond 3.5"
    good = 300 < far < 650
    return expected, f"{far} of 1000000 normal draws are beyond 3.5", good


@defect("#96947")
def half_rand_below_one(device: str) -> Answer:
    """torch.rand returns 1.0 in fp16 and bf16, which its interval leaves out.

    Why: torch.rand is documented to draw from 0 to below 1.
    Remedy: draw in fp32, and compare or take logarithms there.
    """
    torch.manual_seed(0)
    ones = [
        (torch.rand(1_000_000, device=device, dtype=dtype) == 1).sum().item()
        for dtype in (torch.float16, torch.bfloat16)
    ]
    expected = "of 1000000 uniform draws, 0 are 1.0 in fp16, 0 in bf16"
    return expected, f"of 1000000 uniform draws, {ones[0]} are 1.0 in fp16, {ones[1]} in bf16"


@defect("#192812", "#195077", devices=CPU_ALONE)
def fp16_multinomial(device: str) -> Answer:
    """torch.multinomial of fp16 probabilities returns indices whose probability is 0, on a CPU.

    Only index 0 has a probability, so it alone may be drawn; a random number that is 0 in fp16 lets another one win.
    Why: what has a probability of 0 is never drawn.
    Remedy: call multinomial on float().
    """
    probabilities = torch.zeros(1 << 20, device=device, dtype=torch.float16)
    probabilities[0] = 1.0
    drawn = []
    for seed in (20, 103):
        torch.manual_seed(seed)
        drawn.append(torch.multinomial(probabilities, 1).item())
    expected = "the indices drawn are [0, 0], the only one that has a probability"
    return expected, f"the indices drawn are {drawn}{'' if any(drawn) else ', the only one that has a probability'}"


@defect("#175489", "#175490", error="compute_index_ranges_weights")
def half_antialias(device: str) -> Answer:
    """interpolate(antialias=True) is not implemented for fp16 and bf16 on a CPU.

    Shrinks an image of ones with antialiasing, for which a device may have no kernel of half precision.
    Why: fp32 and GPUs have it, and an image of ones stays one.
    Remedy: call interpolate on float().
    """
    found = []
    for dtype in (torch.float16, torch.bfloat16):
        image = torch.ones(1, 1, 8, 8, device=device, dtype=dtype)
        try:
            small = torch.nn.functional.interpolate(image, (4, 4), mode="bilinear", antialias=True)
            found.append(f"{small.mean().item():.1f}")
        except NotImplementedError as error:
            found.append(f"NotImplementedError: {str(error).splitlines()[0]}")
    return "fp16: 1.0; bf16: 1.0", f"fp16: {found[0]}; bf16: {found[1]}"
