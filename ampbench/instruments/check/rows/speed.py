"""What precisions cost, as ratios of times on this machine."""

from ampbench.instruments.check.row import CPU_ALONE, INFERENCE, SPEED, TRAINING, Check

ROWS = (
    Check(
        name="fp16-matmul-speed",
        area=SPEED,
        title=(
            "Products of matrices in fp16 take many times as long as in fp32 on a CPU without AVX512-FP16 or AMX-FP16"
        ),
        threads=("pytorch/pytorch#146508",),
        why="to convert both to fp32 and the result back would cost little beside the product",
        remedy="use fp32 on this CPU (or bf16 where bf16-matmul-speed is good), or convert to fp32 for the product",
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="bf16-matmul-speed",
        area=SPEED,
        title="Products of matrices in bf16 take many times as long as in fp32 on a CPU without AVX512",
        threads=("pytorch/pytorch#146508", "pytorch/pytorch#86270", "pytorch/pytorch#111456", "pytorch/pytorch#86550"),
        why="to convert both to fp32 and the result back would cost little beside the product",
        remedy="use fp32 on this CPU: see what CPU flags the program prints",
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="fp16-conv-speed",
        area=SPEED,
        title="Convolutions in fp16 take many times as long as in fp32 on a CPU without AVX512-FP16 or AMX-FP16",
        threads=("pytorch/pytorch#83382", "pytorch/pytorch#99497"),
        why="to convert both to fp32 and the result back would cost little beside the convolution",
        remedy="use fp32 on this CPU (or bf16 where bf16-conv-speed is good), or convert to fp32 for the convolution",
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="bf16-conv-speed",
        area=SPEED,
        title="Convolutions in bf16 take many times as long as in fp32 on a CPU without AVX512",
        threads=("pytorch/pytorch#86270", "pytorch/pytorch#83382"),
        why="to convert both to fp32 and the result back would cost little beside the convolution",
        remedy="use fp32 on this CPU: see what CPU flags the program prints",
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="bf16-training-speed",
        area=SPEED,
        title="Training under torch.autocast('cpu') takes many times as long as in fp32 on a CPU without AVX512",
        threads=("pytorch/pytorch#118499", "pytorch/pytorch#86270", "pytorch/pytorch#111456"),
        why="mixed precision is there to make training faster; its casts alone cost far less than the step",
        remedy="train in fp32 on this CPU: see what CPU flags the program prints",
        matters=(TRAINING,),
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="fp16-sum-speed",
        area=SPEED,
        title="Sums in fp16 take many times as long as in fp32 on a CPU",
        threads=("pytorch/pytorch#96082", "pytorch/pytorch#106454"),
        why="it is the same number of additions, of half the bytes",
        remedy="convert to fp32 first",
        mended="2.3",
        devices=CPU_ALONE,
        timed=True,
    ),
    Check(
        name="autocast-cast-count",
        area=SPEED,
        title=(
            "Autocast runs a cast kernel for every weight and around every fp32 op, which a model in bf16 does without"
        ),
        threads=("huggingface/diffusers#511", "huggingface/diffusers#495", "pytorch/pytorch#118499"),
        why="a model in bf16 runs the same layers without a cast: each cast is a kernel that computes nothing",
        remedy="for inference convert the model (model.to(torch.bfloat16)) instead of entering autocast",
        by_design=True,
        fake=True,
    ),
    Check(
        name="half-model-casts",
        area=SPEED,
        title="Autocast around a model that is in half precision already still casts, to fp32 and back",
        threads=("huggingface/diffusers#740", "huggingface/diffusers#511", "pytorch/pytorch#188955"),
        why="model and input are in bf16, and the same ops run without a cast outside of autocast",
        remedy="leave autocast out where the model is in half precision",
        by_design=True,
        fake=True,
    ),
    Check(
        name="shared-input-casts",
        area=SPEED,
        title="An fp32 input of several layers (queries, keys, values) is cast once for each of them",
        threads=("NVIDIA/apex#327", "pytorch/pytorch#61173"),
        why="it is one tensor and one target dtype: one cast serves all",
        remedy="cast the input yourself before the layers, or project by one layer and split the result",
        by_design=True,
        fake=True,
    ),
    Check(
        name="region-in-loop-casts",
        area=SPEED,
        title="A region for each step casts the same weights anew in every step: the cache ends with the region",
        threads=("Lightning-AI/pytorch-lightning#19950", "sgl-project/sglang-omni#2262"),
        why="the weight does not change between the steps, so that its cast can be used again",
        remedy="where weights stay (inference), enter one region with no_grad around the loop, or convert them once",
        by_design=True,
        matters=(INFERENCE,),
    ),
    Check(
        name="saved-tensor-bytes",
        area=SPEED,
        title="Training under autocast needs more memory than in fp32 where weights outweigh activations",
        threads=("pytorch/pytorch#61173", "pytorch/tutorials#1267"),
        why=(
            "half precision is expected to halve what is saved; but fp32 weights are there anyway, and casts "
            "come on top"
        ),
        remedy=(
            "expect a gain with large batches alone; else train in fp32, or checkpoint the layers in a region with "
            "cache_enabled=False"
        ),
        by_design=True,
        matters=(TRAINING,),
    ),
)
