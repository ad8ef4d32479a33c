"""Autocast's cache of casts: what a region keeps, and for how long."""

from ampbench.instruments.check.row import CACHE, CPU_ALONE, INFERENCE, TRAINING, Check

ROWS = (
    Check(
        name="no-grad-cache",
        area=CACHE,
        title="A weight cast under no_grad is kept, and gets no gradient later in the same region",
        threads=("pytorch/pytorch#112583", "pytorch/pytorch#158232", "pytorch/pytorch#165068"),
        why="no_grad is for what runs within it; the step after it has to train as it would without it",
        remedy="leave the region between both, or call torch.clear_autocast_cache() after no_grad",
        mended="2.11",
        matters=(TRAINING,),
    ),
    Check(
        name="inference-mode-cache",
        area=CACHE,
        title="After a pass in inference_mode, training in the same region fails or leaves weights without a gradient",
        threads=("pytorch/pytorch#165068", "pytorch/pytorch#105211"),
        why="inference_mode is for what runs within it; the step after it has to train as it would without it",
        remedy="leave the region between both, or call torch.clear_autocast_cache() after inference_mode",
        mended="2.11",
        matters=(TRAINING,),
    ),
    Check(
        name="checkpoint-after-no-grad",
        area=CACHE,
        title=(
            "A checkpointed model that ran under no_grad before, in the same region, raises CheckpointError in backward"
        ),
        threads=("pytorch/pytorch#141896", "pytorch/pytorch#112583", "pytorch/pytorch#165068"),
        why=(
            "backward recomputes after the region has ended, with an empty cache: forward must not depend on "
            "what was in it"
        ),
        remedy="leave the region after no_grad, or call torch.clear_autocast_cache() there",
        mended="2.11",
        matters=(TRAINING,),
        error="CheckpointError",
    ),
    Check(
        name="sac-shared-weight",
        area=CACHE,
        title=(
            "Selective checkpoints that share a weight in one region fail: '_to_copy.default encountered during "
            "backward but not found in storage'"
        ),
        threads=("pytorch/pytorch#193338",),
        why="whether a cast came from the cache is no part of what the checkpointed function computes",
        remedy=(
            "checkpoint under torch.autocast(..., cache_enabled=False), or enter a region within each "
            "checkpointed function and none around them"
        ),
        matters=(TRAINING,),
        error="encountered during backward but not found in storage",
    ),
    Check(
        name="checkpoint-recompute-dtype",
        area=CACHE,
        title=(
            "Activation checkpointing recomputes in autocast's default dtype instead of the dtype of the forward pass"
        ),
        threads=("pytorch/pytorch#71124", "pytorch/pytorch#71169"),
        why="backward needs what the forward pass computed, in the dtype in which it did",
        remedy=(
            "use torch 1.11 or later; in a checkpoint of your own, enter autocast with the forward pass's dtype again"
        ),
        mended="1.11",
        matters=(TRAINING,),
    ),
    Check(
        name="fsdp2-recompute-dtype",
        area=CACHE,
        title="A checkpointed module under fully_shard with mixed precision is recomputed on inputs that are not cast",
        threads=("pytorch/pytorch#159359", "pytorch/pytorch#148831", "pytorch/pytorch#182580"),
        why="the recomputation has to see the inputs that the forward pass saw",
        remedy="use torch 2.13 or later; before, wrap in checkpoint_wrapper first, then call fully_shard on that",
        mended="2.13",
        matters=(TRAINING,),
        devices=CPU_ALONE,
    ),
    Check(
        name="nested-dtype-cache",
        area=CACHE,
        title=(
            "In a region of another dtype within a region, a layer that was used before is given the outer dtype's cast"
        ),
        threads=("pytorch/pytorch#194754",),
        why="the inner region says that its ops run in fp16; inputs and weights have to be cast to the same dtype",
        remedy=(
            "enter the inner region with cache_enabled=False, or call torch.clear_autocast_cache() both where it "
            "begins and where it ends"
        ),
    ),
    Check(
        name="stale-weight-cast",
        area=CACHE,
        title=(
            "A weight that is changed within a region (an optimizer's step, a moving average) is used as it was before"
        ),
        threads=("pytorch/pytorch#48049", "pytorch/pytorch#120376", "X-GenGroup/Flow-Factory#186"),
        why="what is computed after a weight was written has to be computed with what was written",
        remedy=(
            "enter autocast for the forward pass and the loss alone, or call torch.clear_autocast_cache() after "
            "each change"
        ),
    ),
    Check(
        name="shared-weight-gradient",
        area=CACHE,
        title=(
            "The gradients of a weight that is used many times in a region are summed in half precision, and "
            "stop growing"
        ),
        threads=("deepspeedai/DeepSpeed#2352", "linkedin/Liger-Kernel#830"),
        why=(
            "the weight is fp32, and so is its gradient: 300 times 1 is 300, while bf16 has no number between "
            "256 and 258"
        ),
        remedy=(
            "enter the region with cache_enabled=False: each use then has a cast of its own (more memory), and "
            "their gradients are summed in fp32"
        ),
        by_design=True,
        matters=(TRAINING,),
    ),
    Check(
        name="view-cast-memory",
        area=CACHE,
        title="Memory grows with every use of a view of a weight under no_grad in one region",
        threads=(
            "pytorch/pytorch#48049",
            "pytorch/pytorch#48696",
            "pytorch/pytorch#45910",
            "huggingface/transformers#8403",
        ),
        why="the view is gone after its use, so nobody can ask for its cast again",
        remedy="use torch 1.8 or later, or call torch.clear_autocast_cache() in the loop",
        mended="1.8",
    ),
    Check(
        name="dead-weight-casts",
        area=CACHE,
        title="Casts of weights that no longer exist stay in memory until the region ends (layers loaded when needed)",
        threads=("pytorch/pytorch#48049", "ecmwf/anemoi-core#134"),
        why="the weight is gone, so nobody can ask for its cast again",
        remedy="call torch.clear_autocast_cache() after each layer, or load weights with requires_grad=False",
        matters=(INFERENCE,),
    ),
    Check(
        name="no-grad-weight-copies",
        area=CACHE,
        title=(
            "Under no_grad the region keeps a cast of every weight until it ends: half as much memory again as "
            "the weights"
        ),
        threads=("ecmwf/anemoi-core#134", "huggingface/transformers#8403"),
        why="each layer ran once and no backward pass will follow, so that no cast is needed a second time",
        remedy=(
            "evaluate with cache_enabled=False or, since torch 2.11, in inference_mode; or convert the model's "
            "weights once"
        ),
        by_design=True,
        matters=(INFERENCE,),
    ),
    Check(
        name="uncached-weight-copies",
        area=CACHE,
        title=(
            "With cache_enabled=False every use of a weight keeps a copy of its own for backward (out of memory "
            "in loops)"
        ),
        threads=("Lightning-AI/pytorch-lightning#21611", "Lightning-AI/pytorch-lightning#21616"),
        why="backward needs one cast of the weight, however often the weight was used",
        remedy="leave the cache on; since torch 2.11 no_grad is no reason to switch it off",
        by_design=True,
        matters=(TRAINING,),
    ),
    Check(
        name="frozen-weight-casts",
        area=CACHE,
        title="Weights with requires_grad=False are cast again on every call, even within one region",
        threads=(
            "sgl-project/sglang-omni#2262",
            "sgl-project/sglang-omni#2075",
            "Lightning-AI/pytorch-lightning#19950",
        ),
        why="a frozen weight does not change, so that its cast can be used again",
        remedy="convert frozen weights to the low precision once, when they are loaded",
        by_design=True,
        fake=True,
    ),
    Check(
        name="inference-mode-casts",
        area=CACHE,
        title="In inference_mode weights are cast again on every call, while under no_grad they are cast once a region",
        threads=("sgl-project/sglang-omni#2262", "pytorch/pytorch#165068"),
        why="the weight does not change between both calls, so that its cast can be used again",
        remedy="use no_grad instead, or convert the weights to the low precision once",
        by_design=True,
        matters=(INFERENCE,),
        fake=True,
    ),
    Check(
        name="view-weight-casts",
        area=CACHE,
        title="A weight that is used through a view (a transpose, a slice) is cast again on every use",
        threads=("pytorch/pytorch#48696", "pytorch/pytorch#48936"),
        why="the weight behind the view does not change, so that its cast can be used again",
        remedy="give the op the weight itself where you can (F.linear instead of x @ weight.t())",
        by_design=True,
        fake=True,
    ),
    Check(
        name="thread-cast-cache",
        area=CACHE,
        title=(
            "clear_autocast_cache() leaves what other threads (those of autograd) have cached: memory that is "
            "never freed"
        ),
        threads=("pytorch/pytorch#86136", "pytorch/pytorch#86492"),
        why="no other call frees the casts of a thread that autograd owns",
        remedy="use torch 2.0 or later, where all threads share one cache",
        mended="2.0",
    ),
    Check(
        name="jit-trace-cache",
        area=CACHE,
        title="torch.jit.trace within a region fails: 'Cannot insert a Tensor that requires grad as a constant'",
        threads=("pytorch/pytorch#84092", "pytorch/pytorch#50231", "pytorch/pytorch#63552"),
        why="the layer's weight is a parameter, and its cast a part of what is traced",
        remedy="trace under torch.autocast(..., cache_enabled=False); torch.jit.trace is deprecated: expect no repair",
        matters=(INFERENCE,),
        error="Cannot insert a Tensor that requires grad as a constant",
    ),
)
