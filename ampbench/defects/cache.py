"""Autocast's cache of casts: what a region keeps, and for how long."""

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from ampbench.defects import CPU_ALONE, INFERENCE, TRAINING, Answer, defect

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


def casts_made() -> Any:
    """Return a mode that notes the memory and the bytes of every cast, without keeping it."""

    class Casts(TorchDispatchMode):
        _should_skip_dynamo = classmethod(lambda _: False)  # or torch._dynamo is imported, for seconds

        def __init__(self) -> None:
            super().__init__()
            self.made: list[tuple[StorageWeakRef, int]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype):
                self.made.append((StorageWeakRef(result.untyped_storage()), result.nbytes))
            return result

    return Casts()


@defect(
    "#193338", matters=(TRAINING,), raises=RuntimeError, error="encountered during backward but not found in storage"
)
def sac_shared_weight(device: str) -> Answer:
    """Selective checkpoints that share a weight in one region fail: '_to_copy.default encountered during backward but
    not found in storage'.

    Two selective checkpoints share a layer: backward casts the weight which the second forward pass found cached.
    Why: whether a cast came from the cache is no part of what the checkpointed function computes.
    Remedy: checkpoint under torch.autocast(..., cache_enabled=False), or enter a region within each checkpointed
    function and none around them.
    """
    expected = seen = "backward runs"
    layer = torch.nn.Linear(4, 4, device=device)
    batch = torch.ones(2, 4, device=device)
    saving = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    with torch.autocast(device, dtype=torch.bfloat16):
        first = checkpoint(layer, batch, use_reentrant=False, context_fn=saving)
        second = checkpoint(layer, first, use_reentrant=False, context_fn=saving)
    second.float().sum().backward()
    return expected, seen


@defect("#159359", "#148831", "#182580", mended="2.13", matters=(TRAINING,), devices=CPU_ALONE)
def fsdp2_recompute_dtype(device: str) -> Answer:
    """A checkpointed module under fully_shard with mixed precision is recomputed on inputs that are not cast.

    Checkpoints a layer that FSDP2 (one process) casts to bf16; the input has to be cast for the recomputation, too.
    Why: the recomputation has to see the inputs that the forward pass saw.
    Remedy: use torch 2.13 or later; before, wrap in checkpoint_wrapper first, then call fully_shard on that.
    """

    class Noting(torch.nn.Linear):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            dtypes.append(str(batch.dtype))
            return super().forward(batch)

    dtypes: list[str] = []
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    layer = Noting(4, 4, device=device)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(layer, mesh=init_device_mesh(device, (1,)), mp_policy=policy)
    loss = checkpoint(layer, torch.ones(2, 4, device=device), use_reentrant=False).float().sum()
    failed = ""
    try:
        loss.backward()
    except RuntimeError as error:
        failed = f", {type(error).__name__}: {str(error).splitlines()[0]}"
    dist.destroy_process_group()
    return "forward torch.bfloat16, again torch.bfloat16", "forward " + ", again ".join(dtypes) + failed


@defect("#194754")
def nested_dtype_cache(device: str) -> Answer:
    """In a region of another dtype within a region, a layer that was used before is given the outer dtype's cast.

    Why: the inner region says that its ops run in fp16; inputs and weights have to be cast to the same dtype.
    Remedy: enter the inner region with cache_enabled=False, or call torch.clear_autocast_cache() both where it begins
    and where it ends.
    """
    layer = torch.nn.Linear(4, 4, device=device)
    batch = torch.ones(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        outer = layer(batch).dtype
        with torch.autocast(device, dtype=torch.float16):
            try:
                inner = str(layer(batch).dtype)
            except RuntimeError as error:
                inner = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "outer torch.bfloat16, inner torch.float16", f"outer {outer}, inner {inner}"


@defect("#48049", "#120376", "X-GenGroup/Flow-Factory#186")
def stale_weight_cast(device: str) -> Answer:
    """A weight that is changed within a region (an optimizer's step, a moving average) is used as it was before.

    Why: results after a weight update must use the new weight.
    Remedy: enter autocast for the forward pass and the loss alone, or call torch.clear_autocast_cache() after each
    change.
    """
    weight = torch.nn.Parameter(torch.ones(1, 4, device=device))
    batch = torch.ones(1, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        before = torch.nn.functional.linear(batch, weight).item()
        with torch.no_grad():
            weight.fill_(2.0)
        after = torch.nn.functional.linear(batch, weight).item()
    return "the output goes from 4.0 to 8.0", f"the output goes from {before} to {after}"


@defect("#112583", "#158232", "#165068", mended="2.11", matters=(TRAINING,))
def no_grad_cache(device: str) -> Answer:
    """A weight that is used under no_grad and then with gradients in one region gets no gradient.

    The first call caches the weight's cast without a history; the second one must not be given that.
    Why: the second call is one that a gradient goes through.
    Remedy: use torch 2.11 or later, or call the network under no_grad in a region of its own.
    """
    layer = torch.nn.Linear(4, 4, device=device)
    batch = torch.ones(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with torch.no_grad():
            layer(batch)
        loss = layer(batch).float().sum()
    if loss.requires_grad:
        loss.backward()
    expected = "the weight has a gradient"
    return expected, expected if layer.weight.grad is not None else "the weight has no gradient"


@defect("deepspeedai/DeepSpeed#2352", "linkedin/Liger-Kernel#830", matters=(TRAINING,), by_design=True)
def shared_weight_gradient(device: str) -> Answer:
    """The gradients of a weight that is used many times in a region are summed in half precision, and stop growing.

    Why: the weight is fp32, and so is its gradient: 300 times 1 is 300, while bf16 has no number between 256 and 258.
    Remedy: enter the region with cache_enabled=False: each use then has a cast of its own (more memory), and their
    gradients are summed in fp32.
    """
    weight = torch.nn.Parameter(torch.ones(1, 1, device=device))
    batch = torch.ones(1, 1, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = [torch.nn.functional.linear(batch, weight) for _ in range(300)]
        loss = torch.stack([output.float() for output in outputs]).sum()
    gradient = torch.autograd.grad(loss, weight)[0].item()
    return "the gradient is 300.0", f"the gradient is {gradient}"


@defect("#48049", "ecmwf/anemoi-core#134", matters=(INFERENCE,))
def dead_weight_casts(device: str) -> Answer:
    """Casts of weights that no longer exist stay in memory until the region ends (layers loaded when needed).

    Why: the weight is gone, so nobody can ask for its cast again.
    Remedy: call torch.clear_autocast_cache() after each layer, or load weights with requires_grad=False.
    """
    batch = torch.ones(2, 4, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad(), casts_made() as casts:
        for _ in range(8):
            torch.nn.functional.linear(batch, torch.nn.Parameter(torch.ones(4, 4, device=device)))
        held = sum(not cast.expired() for cast, _ in casts.made)
    expected = "after 8 weights that are gone at most 1 cast is held"
    return expected, f"after 8 weights that are gone {held} casts are held", held <= 1


@defect("ecmwf/anemoi-core#134", "huggingface/transformers#8403", matters=(INFERENCE,), by_design=True)
def no_grad_weight_copies(device: str) -> Answer:
    """Under no_grad the region keeps a cast of every weight until it ends: half as much memory again as the weights.

    Why: each layer ran once and no backward pass will follow, so that no cast is needed a second time.
    Remedy: evaluate with cache_enabled=False or, since torch 2.11, in inference_mode; or convert the model's weights
    once.
    """
    layers = [torch.nn.Linear(64, 64, bias=False, device=device) for _ in range(4)]
    batch = torch.ones(2, 64, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad(), casts_made() as casts:
        for layer in layers:
            batch = layer(batch)
        held = sum(size for cast, size in casts.made if not cast.expired())
    print("bytes of the weights in fp32:", sum(layer.weight.nbytes for layer in layers))
    return "0 bytes of casts are held after the last layer", f"{held} bytes of casts are held after the last layer"


@defect(
    "Lightning-AI/pytorch-lightning#21611", "Lightning-AI/pytorch-lightning#21616", matters=(TRAINING,), by_design=True
)
def uncached_weight_copies(device: str) -> Answer:
    """With cache_enabled=False every use of a weight keeps a copy of its own for backward (out of memory in loops).

    Why: backward needs one cast of the weight, however often the weight was used.
    Remedy: leave the cache on; since torch 2.11 no_grad is no reason to switch it off.
    """
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    output = torch.ones(2, 4, device=device, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(8):
            output = torch.nn.functional.linear(output, weight)
    copies = len(
        {tensor.data_ptr() for tensor in saved if tensor.shape == weight.shape and tensor.dtype != weight.dtype}
    )
    return "8 uses keep 1 copy of the weight", f"8 uses keep {copies} cop{'y' if copies == 1 else 'ies'} of the weight"


@defect(
    "sgl-project/sglang-omni#2262",
    "sgl-project/sglang-omni#2075",
    "Lightning-AI/pytorch-lightning#19950",
    by_design=True,
    fake=True,
)
def frozen_weight_casts(device: str) -> Answer:
    """Weights with requires_grad=False are cast again on every call, even within one region.

    Why: a frozen weight does not change, so that its cast can be used again.
    Remedy: convert frozen weights to the low precision once, when they are loaded.
    """
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device), requires_grad=False)
    batch = torch.ones(2, 4, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad(), casts_made() as casts:
        torch.nn.functional.linear(batch, weight)
        torch.nn.functional.linear(batch, weight)
    return (
        "2 uses cast the weight 1 time",
        f"2 uses cast the weight {len(casts.made)} time{'s' * (len(casts.made) != 1)}",
    )


@defect("sgl-project/sglang-omni#2262", "#165068", matters=(INFERENCE,), by_design=True, fake=True)
def inference_mode_casts(device: str) -> Answer:
    """In inference_mode weights are cast again on every call, while under no_grad they are cast once a region.

    Why: the weight does not change between both calls, so that its cast can be used again.
    Remedy: use no_grad instead, or convert the weights to the low precision once.
    """
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
    batch = torch.ones(2, 4, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16), torch.inference_mode(), casts_made() as casts:
        torch.nn.functional.linear(batch, weight)
        torch.nn.functional.linear(batch, weight)
    return (
        "2 uses cast the weight 1 time",
        f"2 uses cast the weight {len(casts.made)} time{'s' * (len(casts.made) != 1)}",
    )


@defect("#48696", "#48936", by_design=True, fake=True)
def view_weight_casts(device: str) -> Answer:
    """A weight that is used through a view (a transpose, a slice) is cast again on every use.

    Why: the weight behind the view does not change, so that its cast can be used again.
    Remedy: give the op the weight itself where you can (F.linear instead of x @ weight.t()).
    """
    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
    batch = torch.ones(2, 4, device=device, dtype=torch.bfloat16)
    with torch.autocast(device, dtype=torch.bfloat16), torch.no_grad(), casts_made() as casts:
        torch.matmul(batch, weight.t())
        torch.matmul(batch, weight.t())
    expected = "2 products cast the weight 1 time"
    return expected, f"2 products cast the weight {len(casts.made)} time{'s' * (len(casts.made) != 1)}"


@defect(
    "#84092",
    "#50231",
    "#63552",
    matters=(INFERENCE,),
    raises=RuntimeError,
    error="Cannot insert a Tensor that requires grad as a constant",
)
def jit_trace_cache(device: str) -> Answer:
    """torch.jit.trace within a region fails: 'Cannot insert a Tensor that requires grad as a constant'.

    Traces a layer within a region; tracing calls it more than once, and must not take the cached cast for a constant.
    Why: the layer's weight is a parameter, and its cast a part of what is traced.
    Remedy: trace under torch.autocast(..., cache_enabled=False); torch.jit.trace is deprecated: expect no repair.
    """
    layer = torch.nn.Linear(4, 4, device=device).eval()
    batch = torch.ones(2, 4, device=device)
    expected = seen = "the traced layer gives what the layer gives"
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        traced = torch.jit.trace(layer, batch)
        if not torch.equal(traced(batch), layer(batch)):
            seen = "the traced layer gives something else"
    return expected, seen
