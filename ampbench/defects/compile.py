"""torch.compile and torch.export: whether what is compiled has the dtypes and values of eager."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ampbench.defects import CPU_ALONE, INFERENCE, TRAINING, Answer, defect

if TYPE_CHECKING:
    import torch
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo.utils import counters
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast


@defect("#195488", "#195654")
def compile_error_leak(device: str) -> Answer:
    """An error inside a compiled autocast region leaves it open, and later regions use stale casts of the weights.

    A compiled autocast region is left by an error; if it stays open, no later region ever drops its casts of weights.
    Why: a region that is left by an error has to be closed as in eager; casts are dropped when the last one closes.
    Remedy: enter autocast outside the compiled function, or, once it has happened, call torch.clear_autocast_cache()
    after each step.
    """

    @torch.compile(backend="eager")
    def invert(matrix: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return torch.linalg.inv(matrix)

    try:
        invert(torch.zeros(2, 2, device=device))
    except RuntimeError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    still_open = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()

    weight = torch.nn.Parameter(torch.ones(1, 1, device=device))
    with torch.autocast(device, dtype=torch.bfloat16):
        torch.mm(torch.ones(1, 1, device=device), weight)
    with torch.no_grad():
        weight.mul_(2)
    with torch.autocast(device, dtype=torch.bfloat16):
        product = torch.mm(torch.ones(1, 1, device=device), weight).item()
    expected = "0 regions left open, and a weight that was set to 2.0 is used as 2.0"
    return expected, f"{still_open} regions left open, and a weight that was set to 2.0 is used as {product}"


@defect("#194754", "#193976", mended="2.15")
def compile_autocast_object(device: str) -> Answer:
    """A compiled model ignores that the autocast object that it holds was given another dtype.

    Why: eager asks the object for its dtype at each call.
    Remedy: make a new autocast object for a new dtype, or call torch.compiler.reset() after the change.
    """

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.region = torch.autocast(device, dtype=torch.bfloat16)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with self.region:
                return batch @ batch

    model = Model()
    compiled = torch.compile(model, backend="eager")
    batch = torch.ones(2, 2, device=device)
    first = compiled(batch).dtype
    model.region.fast_dtype = torch.float16
    return "torch.bfloat16 at first, then torch.float16", f"{first} at first, then {compiled(batch).dtype}"


@defect("#194754", "#193976", mended="2.15")
def compile_equal_regions(device: str) -> Answer:
    """A model that makes its autocast object anew before each call is compiled again each time.

    Why: regions of the same device, dtype and switches need the same graph.
    Remedy: make the autocast object once and keep it, or make it within the compiled function.
    """
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    class Model(torch.nn.Module):
        region = torch.autocast(device, dtype=torch.bfloat16)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with self.region:
                return batch @ batch

    model = Model()
    compiled = torch.compile(model, backend=counting)
    for _ in range(3):
        model.region = torch.autocast(device, dtype=torch.bfloat16)
        compiled(torch.ones(2, 2, device=device))
    expected = "1 graph compiled for 3 equal regions"
    return expected, f"{len(graphs)} graph{'s' * (len(graphs) > 1)} compiled for 3 equal regions"


@defect("#186530", "#173877", "#166267", mended="2.12", raises=Exception)
def compile_entered_by_hand(device: str) -> Answer:
    """torch.compile fails where autocast was entered by hand with a dtype and the graph breaks before it is left.

    Why: eager returns an fp16 product, and a graph break changes no result.
    Remedy: enter autocast by a with block, or outside the compiled function.
    """

    def product(batch: torch.Tensor) -> torch.Tensor:
        region = _enter_autocast(device, torch.float16, True, None)
        batch = batch @ batch
        torch._dynamo.graph_break()
        batch = batch.float() @ batch.float()
        _exit_autocast(region)
        return batch

    batch = torch.ones(2, 2, device=device)
    expected = "a torch.float16 product"
    return expected, f"a {torch.compile(product, backend='eager')(batch).dtype} product"


@defect("#177630", "#150993", "#172183", mended="2.12", compiler=True, slow=True)
def compile_mixed_matmul(device: str) -> Answer:
    """A compiled matmul of fp16 and fp32 batches runs, where eager refuses it.

    Why: what compiles has to run without the compiler, too; a forgotten cast has to be said.
    Remedy: run the model in eager once; cast both sides to one dtype.
    """

    def multiply(half: torch.Tensor, single: torch.Tensor) -> torch.Tensor:
        return half @ single

    def outcome(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> str:
        half = torch.ones(2, 4, 8, 8, dtype=torch.float16, device=device)
        try:
            return f"returns {function(half, torch.ones(2, 4, 8, 8, device=device)).dtype}"
        except RuntimeError:
            return "refuses"

    eager = outcome(multiply)
    return f"eager {eager}, compiled {eager}", f"eager {eager}, compiled {outcome(torch.compile(multiply))}"


@defect("#176565", "#185337", "#181568", "#179561", compiler=True, slow=True)
def compile_round_trip(device: str) -> Answer:
    """The compiler removes a cast to bf16 and back, and the values come out unrounded.

    Why: 1 + 2**-10 is nearest to 1.0 in bf16; a cast that is written down is meant to round.
    Remedy: set torch._inductor.config.emulate_precision_casts = True (on a CPU from torch 2.13 on), or keep the cast
    outside the compiled function.
    """

    @torch.compile
    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16).to(torch.float32)

    values = torch.full((64,), 1 + 2**-10, device=device)
    return "1.0", str(rounded(values)[0].item())


@defect("#185337", "#185847", "#182882", mended="2.13", compiler=True, slow=True, raises=RuntimeError)
def compile_emulated_casts(device: str) -> Answer:
    """On the CPU, emulate_precision_casts does not keep a cast to half precision and back.

    Why: the switch is there to keep such casts: 1 + 2**-10 is nearest to 1.0 in bf16.
    Remedy: keep the cast outside the compiled function.
    """

    @torch.compile
    def rounded(values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16).to(torch.float32)

    values = torch.full((64,), 1 + 2**-10, device=device)
    expected = "1.0"
    with torch._inductor.config.patch(emulate_precision_casts=True):
        seen = str(rounded(values)[0].item())
    return expected, seen


@defect("#150638", "#168126", "#182225", "#183761", by_design=True, compiler=True, slow=True)
def compile_fused_rounding(device: str) -> Answer:
    """Compiled bf16 arithmetic keeps fp32 between operations that it fuses, and differs from eager.

    Squares 1.0078125 in bf16, which rounds to 1.015625, and subtracts that: eager sees 0, fused code the rounding.
    Why: eager rounds after each operation; without that rounding 2**-14 remains, which is the exact difference.
    Remedy: set torch._inductor.config.emulate_precision_casts = True where results have to be those of eager.
    """

    @torch.compile
    def remainder(values: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return values * values - square

    values = torch.full((64,), 1.0078125, dtype=torch.bfloat16, device=device)
    square = torch.full((64,), 1.015625, dtype=torch.bfloat16, device=device)
    return "a remainder of 0.0", f"a remainder of {remainder(values, square)[0].item()}"


@defect("#183607", compiler=True, slow=True)
def compile_fp16_overflow(device: str) -> Answer:
    """A compiled function returns an inf in fp16, and its own isinf calls it finite.

    Why: 300 squared is beyond 65504, the largest number in fp16; code that skips or mends infinities relies on isinf.
    Remedy: set torch._inductor.config.emulate_precision_casts = True, or test for inf outside the compiled function.
    """

    @torch.compile
    def square(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        squared = values * values
        return squared, torch.isinf(squared)

    squared, infinite = square(torch.full((64,), 300.0, dtype=torch.float16, device=device))
    expected = "300 squared is inf, and isinf says True"
    return expected, f"300 squared is {squared[0].item()}, and isinf says {infinite[0].item()}"


@defect("#195214", "#195223", compiler=True, slow=True)
def compile_bf16_tie(device: str) -> Answer:
    """Compiled code compares bf16 results before they are rounded, and ties are lost.

    Why: 1.0078125 squared rounds to 1.015625 in bf16, and eager compares what was rounded.
    Remedy: set torch._inductor.config.emulate_precision_casts = True.
    """

    @torch.compile
    def ties(values: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        return values * values == square

    values = torch.full((64,), 1.0078125, dtype=torch.bfloat16, device=device)
    square = torch.full((64,), 1.015625, dtype=torch.bfloat16, device=device)
    return "the square equals 1.015625: True", f"the square equals 1.015625: {ties(values, square)[0].item()}"


@defect("#173987", "#175807", "#128306", mended="2.12", matters=(INFERENCE,), compiler=True, slow=True)
def compile_bf16_threshold(device: str) -> Answer:
    """Compiled code compares a bf16 tensor with a number that was not rounded to bf16, unlike eager.

    Compares bf16 scores with 0.2: eager rounds it to bf16, where the score 0.2001953125 equals it; compiled must too.
    Why: eager rounds the number to the dtype of the tensor; a threshold has to choose the same scores.
    Remedy: compare with a tensor of the same dtype, or in fp32.
    """

    def above(scores: torch.Tensor) -> torch.Tensor:
        return scores > 0.2

    scores = torch.full((64,), 0.2001953125, dtype=torch.bfloat16, device=device)
    eager = above(scores)[0].item()
    return f"eager {eager}, compiled {eager}", f"eager {eager}, compiled {torch.compile(above)(scores)[0].item()}"


@defect(
    "#185517", "#185869", "#186818", mended="2.14", matters=(TRAINING,), devices=CPU_ALONE, compiler=True, slow=True
)
def compile_bf16_margin(device: str) -> Answer:
    """A compiled bf16 loss adds its margin unrounded, unlike eager, and gradients near the margin differ.

    A bf16 margin loss near its margin of 1.7: eager rounds that to 1.703125 as it does the scores; compiled must too.
    Why: on the CPU, eager rounds a number to the dtype of the tensor that it is added to.
    Remedy: give a margin that bf16 holds exactly, such as 1.75, or take the loss in fp32.
    """

    def loss(better: torch.Tensor, worse: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.margin_ranking_loss(better, worse, target, margin=1.7, reduction="none")

    better = torch.full((64,), 1.6953125, dtype=torch.bfloat16, device=device)
    inputs = better, torch.zeros_like(better), torch.ones_like(better)
    eager = loss(*inputs)[0].item()
    return f"eager {eager}, compiled {eager}", f"eager {eager}, compiled {torch.compile(loss)(*inputs)[0].item()}"


@defect("#195675", "#187429", compiler=True, slow=True)
def compile_fp16_constant(device: str) -> Answer:
    """Compiled code turns a constant beyond the range of fp16 into -inf, where eager refuses it.

    Why: a mask of -1e9 becomes -inf, and softmax of a row that is masked throughout becomes NaN, without a word.
    Remedy: mask with torch.finfo(scores.dtype).min.
    """

    def mask(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores > 0, -1e9)

    def outcome(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
        try:
            return f"writes {function(torch.ones(4, dtype=torch.float16, device=device))[0].item()}"
        except RuntimeError:
            return "refuses"

    eager = outcome(mask)
    return f"eager {eager}, compiled {eager}", f"eager {eager}, compiled {outcome(torch.compile(mask))}"


@defect("#197098", slow=True)
def compile_loss_dtype(device: str) -> Answer:
    """binary_cross_entropy of bf16 with fp32 weights returns fp32 compiled, and bf16 in eager.

    Why: compiling changes no dtypes.
    Remedy: cast the weights to the dtype of the predictions.
    """

    def loss(probabilities: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy(probabilities, labels, weight=weights)

    probabilities = torch.full((4,), 0.5, dtype=torch.bfloat16, device=device)
    labels = torch.ones(4, dtype=torch.bfloat16, device=device)
    weights = torch.ones(4, device=device)
    eager = loss(probabilities, labels, weights).dtype
    compiled = torch.compile(loss, backend="aot_eager_decomp_partition")(probabilities, labels, weights).dtype
    return f"eager {eager}, compiled {eager}", f"eager {eager}, compiled {compiled}"


@defect("#141865", by_design=True, devices=CPU_ALONE, slow=True)
def compile_tiny_mixed_linear(device: str) -> Answer:
    """A compiled linear layer of one weight takes an input of another dtype, which eager refuses.

    Gives an fp16 batch to an fp32 layer of one weight, which eager refuses; the compiler makes a plain product of it.
    Why: what compiles has to run without the compiler, too.
    Remedy: run the model in eager once; cast the input to the dtype of the layer.
    """

    def outcome(layer: Callable[[torch.Tensor], torch.Tensor]) -> str:
        try:
            return f"returns {layer(torch.ones(1, 1, dtype=torch.float16, device=device)).dtype}"
        except RuntimeError:
            return "refuses"

    layer = torch.nn.Linear(1, 1, device=device)
    eager = outcome(layer)
    expected = f"eager {eager}, compiled {eager}"
    return expected, f"eager {eager}, compiled {outcome(torch.compile(layer, backend='aot_eager_decomp_partition'))}"


@defect("#153044", "#179804", "#175166", "#177287", matters=(TRAINING,), by_design=True, slow=True)
def compile_backward_autocast(device: str) -> Answer:
    """The compiled backward pass runs under the outer autocast region, even for layers that switch it off.

    An fp32 layer runs with autocast off within an fp16 region; its gradient, 4 * 16384, fits fp32 and not fp16.
    Why: 4 * 16384 is 65536, which fp32 holds; backward is called outside autocast, as the documentation of autocast
    asks for, though torch.compile is documented to assume that it is called within.
    Remedy: set torch._functorch.config.backward_pass_autocast = "off" before compiling.
    """
    head = torch.nn.Linear(4, 1, device=device)

    @torch.compile(backend="aot_eager")
    def forward(batch: torch.Tensor) -> torch.Tensor:
        features = batch @ torch.ones(4, 4, device=device)
        with torch.autocast(device, enabled=False):
            result: torch.Tensor = head(features.float())
        return result

    with torch.autocast(device, dtype=torch.float16):
        output = forward(torch.ones(1, 4, device=device))
    (output * 16384).sum().backward()
    gradient = head.weight.grad
    return "a gradient of 65536.0", f"a gradient of {gradient[0, 0].item() if gradient is not None else None}"


@defect("#191106", "#192555", "#191363", mended="2.14", compiler=True, slow=True)
def compile_cache_bypass(device: str) -> Answer:
    """Functions with an autocast region are never in the compiler's cache, and every process compiles them anew.

    Why: what a region does is said by its arguments, which are part of the graph and so of the key.
    Remedy: enter autocast outside the compiled function.
    """

    @torch.compile
    def product(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return batch @ batch

    with torch.no_grad(), torch._functorch.config.patch(enable_autograd_cache=True):
        product(torch.ones(4, 4, dtype=torch.bfloat16, device=device))
    expected = "0 graphs left out of the cache"
    counted = {what: counters["aot_autograd"][f"autograd_cache_{what}"] for what in ("bypass", "hit", "miss")}
    if not any(counted.values()):
        raise NotImplementedError("the compiler's cache is switched off here")
    return expected, f"{counted['bypass']} graphs left out of the cache"


@defect("#181564", mended="2.13", compiler=True, slow=True)
def compile_cache_dtype(device: str) -> Answer:
    """The compiler's cache gives code that was compiled for one autocast dtype to a region of another.

    Why: fp16 autocast multiplies in fp16.
    Remedy: set torch._functorch.config.enable_autograd_cache = False, or keep a cache for each dtype.
    """

    def product(batch: torch.Tensor) -> torch.Tensor:
        return batch @ batch

    dtypes = []
    for dtype in (torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        with (
            torch.no_grad(),
            torch.autocast(device, dtype=dtype),
            torch._functorch.config.patch(enable_autograd_cache=True),
        ):
            dtypes.append(torch.compile(product)(torch.ones(4, 4, device=device)).dtype)
    return "torch.bfloat16, then torch.float16", f"{dtypes[0]}, then {dtypes[1]}"


@defect("#184405", "#138015", "#119162", compiler=True, slow=True)
def compile_default_dtype(device: str) -> Answer:
    """A compiled torch.randn draws fp32 where the default dtype is another one.

    Why: torch.randn makes tensors of the default dtype of the moment.
    Remedy: name the dtype: torch.randn(..., dtype=torch.bfloat16).
    """

    @torch.compile
    def noise() -> torch.Tensor:
        return torch.randn(2, device=device)

    first = noise().dtype
    torch.set_default_dtype(torch.bfloat16)
    return "torch.float32 at first, then torch.bfloat16", f"{first} at first, then {noise().dtype}"


@defect("#191110", slow=True)
def compile_default_autocast_dtype(device: str) -> Answer:
    """A compiled region that names no dtype keeps the one of its first call, whatever is set later.

    Why: autocast without a dtype takes that of torch.set_autocast_dtype.
    Remedy: name the dtype of each region.
    """

    @torch.compile(backend="aot_eager")
    def product(batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device):
            return batch @ batch

    dtypes = []
    for dtype in (torch.bfloat16, torch.float16):
        torch.set_autocast_dtype(device, dtype)
        dtypes.append(product(torch.ones(2, 2, device=device)).dtype)
    return "torch.bfloat16 at first, then torch.float16", f"{dtypes[0]} at first, then {dtypes[1]}"


@defect("huggingface/diffusers#14160", mended="2.12", raises=Exception)
def compile_autocast_available(device: str) -> Answer:
    """torch.amp.is_autocast_available breaks the graph of a compiled function.

    Why: the answer is fixed when the function is compiled.
    Remedy: ask before compiling, or behind torch.compiler.is_compiling().
    """

    @torch.compile(backend="eager", fullgraph=True)
    def product(batch: torch.Tensor) -> torch.Tensor:
        enabled = torch.amp.is_autocast_available(batch.device.type)
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=enabled):
            return batch @ batch

    expected = "a torch.bfloat16 product in one graph"
    return expected, f"a {product(torch.ones(2, 2, device=device)).dtype} product in one graph"


@defect("#137274", matters=(INFERENCE,), slow=True)
def export_decomposed_autocast(device: str) -> Answer:
    """run_decompositions loses autocast for ops that it takes apart, and the program runs in fp32.

    Why: decomposing changes no dtypes: eager and the exported program return bf16.
    Remedy: write the cast out before such ops, or use matmul in place of einsum.
    """

    class Model(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                return torch.einsum("ij,jk->ik", batch, batch)

    batch = torch.ones(2, 2, device=device)
    exported = torch.export.export(Model(), (batch,))
    decomposed = exported.run_decompositions()
    eager = Model()(batch).dtype
    expected = f"eager {eager}, exported {eager}, decomposed {eager}"
    seen = f"eager {eager}, exported {exported.module()(batch).dtype}, decomposed {decomposed.module()(batch).dtype}"
    return expected, seen


@defect("#159552", "#110490", matters=(INFERENCE,), slow=True)
def export_ambient_autocast(device: str) -> Answer:
    """A program exported within an autocast region runs without it, though its graph says bf16.

    Why: the graph's own record says which dtype the program returns.
    Remedy: enter autocast within the module that is exported.
    """

    class Model(torch.nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch @ batch

    batch = torch.ones(2, 2, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        exported = torch.export.export(Model(), (batch,))
    promised = next(node for node in exported.graph.nodes if "matmul" in node.name).meta["val"].dtype
    expected = f"the graph promises {promised}, the program returns {promised}"
    return expected, f"the graph promises {promised}, the program returns {exported.module()(batch).dtype}"
