"""GradScaler and optimizers in half precision."""

from ampbench.instruments.check.row import CPU_CUDA, SCALER, TRAINING, Check

ROWS = (
    Check(
        name="scale-overflow",
        area=SCALER,
        title="GradScaler's scale grows to infinity while gradients are small, and never comes back",
        threads=("pytorch/pytorch#98828", "pytorch/pytorch#98876"),
        why="the scale has to stay a number that gradients can be divided by",
        remedy="call scaler.update(new_scale) with a number when scaler.get_scale() grows beyond 2**100",
        mended="2.1",
        matters=(TRAINING,),
    ),
    Check(
        name="scale-underflow",
        area=SCALER,
        title="GradScaler's scale has no floor: after many skipped steps it is 0, and gradients are NaN for good",
        threads=("pytorch/pytorch#99640", "pytorch/pytorch#101569", "NVIDIA/apex#452"),
        why="no gradient can be unscaled by a scale of 0: a floor or an error would be right",
        remedy=(
            "watch scaler.get_scale() and stop below 1: gradients are NaN, or beyond fp16 without any scale; train in "
            "bf16 or fp32 then"
        ),
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="fused-skip",
        area=SCALER,
        title="With fused Adam or SGD, a step with infinite gradients is taken instead of skipped",
        threads=("pytorch/pytorch#95847", "pytorch/pytorch#95781", "pytorch/pytorch#97885"),
        why="a step is skipped as a whole where one gradient is infinite: no weight and no count of steps changes",
        remedy="make the optimizer with fused=False",
        mended="2.1",
        matters=(TRAINING,),
    ),
    Check(
        name="fused-unscale-clip",
        area=SCALER,
        title="After scaler.unscale_ and clipping, a fused optimizer unscales the gradients a second time",
        threads=("pytorch/pytorch#94060", "pytorch/pytorch#90752", "pytorch/pytorch#96755"),
        why="gradients are unscaled once a step, whoever does it",
        remedy="make the optimizer with fused=False",
        mended="2.0",
        matters=(TRAINING,),
    ),
    Check(
        name="fused-skip-gradients",
        area=SCALER,
        title="After a skipped step, gradients are left scaled by a fused optimizer, but unscaled by any other",
        threads=("pytorch/pytorch#98772", "pytorch/pytorch#97415"),
        why="what is logged or accumulated after a step must not depend on how the step is implemented",
        remedy="call zero_grad after every step, skipped or not; to read gradients, unscale_ them before the step",
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="fused-sgd-momentum",
        area=SCALER,
        title="SGD(fused=True, momentum=...) starts from garbage or NaN when GradScaler skips the first step",
        threads=("LibreYOLO/libreyolo#771",),
        why="a step that is skipped leaves no momentum, so that the next one is the first: 1.0 - 0.1 * 1.0",
        remedy="make SGD with fused=False, or start from an init_scale so small that the first step is not skipped",
        matters=(TRAINING,),
    ),
    Check(
        name="adam-fp16-eps",
        area=SCALER,
        title="Adam on fp16 weights turns them to NaN at a gradient of 0, because eps=1e-8 is 0 in fp16",
        threads=(
            "pytorch/pytorch#147437",
            "pytorch/pytorch#40497",
            "pytorch/pytorch#8860",
            "afiaka87/glide-finetune#6",
        ),
        why="Adam moves a weight along its gradients, and there are none; eps is there to keep 0 from dividing 0",
        remedy=(
            "keep weights in fp32 under autocast, or pass eps=1e-4; fused=True avoids the NaN, but then takes huge "
            "steps where gradients are tiny"
        ),
        matters=(TRAINING,),
    ),
    Check(
        name="unscale-fp16-weights",
        area=SCALER,
        title="GradScaler raises 'Attempting to unscale FP16 gradients', unless the optimizer happens to be fused",
        threads=("pytorch/pytorch#74739", "facebookresearch/fairscale#834", "haotian-liu/LLaVA#363"),
        why="fp16 weights can be trained or they cannot: that does not depend on how the step is implemented",
        remedy="keep the weights that are trained in fp32 and run the model under autocast",
        matters=(TRAINING,),
        by_design=True,
        error="Attempting to unscale FP16 gradients",
    ),
    Check(
        name="unscale-bf16-weights",
        area=SCALER,
        title="GradScaler fails with bf16 weights: '_amp_foreach_non_finite_check_and_unscale_cuda' not implemented",
        threads=("pytorch/pytorch#127176", "pytorch/pytorch#194947", "huggingface/trl#4901"),
        why="a gradient of 8.0 at a scale of 8 is 1.0, and half of it from 1.0 is 0.5, all exact in bf16",
        remedy="leave GradScaler out: bf16 has the range of fp32 and needs no scale",
        matters=(TRAINING,),
    ),
    Check(
        name="found-inf-two-dtypes",
        area=SCALER,
        title="An infinite gradient is forgotten where finite gradients of another dtype are looked at after it",
        threads=("flagos-ai/Torch-FL#235",),
        why="one infinite gradient skips the step of all weights of the optimizer",
        remedy="give weights of each dtype an optimizer of their own",
        matters=(TRAINING,),
        devices=CPU_CUDA,
    ),
    Check(
        name="scheduler-after-skip",
        area=SCALER,
        title="After a skipped first step, the scheduler warns of 'lr_scheduler.step() before optimizer.step()'",
        threads=("pytorch/pytorch#44511", "pytorch/pytorch#67590", "huggingface/transformers#11144"),
        why="scaler.step, scaler.update and scheduler.step were called in the order that the manual shows",
        remedy="call scheduler.step() only where scaler.get_scale() has not fallen in scaler.update()",
        matters=(TRAINING,),
    ),
    Check(
        name="skipped-step-unsaid",
        area=SCALER,
        title="GradScaler.step does not say whether it took the step or skipped it",
        threads=("pytorch/pytorch#152279", "pytorch/pytorch#142472", "pytorch/pytorch#67590"),
        why="schedules, averages and logs count steps that were taken, and have nothing else to ask",
        remedy="compare scaler.get_scale() before and after scaler.update(): it falls where the step was skipped",
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="bf16-default-step-count",
        area=SCALER,
        title="Under torch.set_default_dtype(torch.bfloat16), Adam's count of steps stops at 256",
        threads=("pytorch/ao#4915",),
        why="a count of steps is an exact integer, whatever the dtype of the weights",
        remedy="make the optimizer's first step under a default dtype of fp32",
        matters=(TRAINING,),
    ),
    Check(
        name="unscale-after-skip-by-hand",
        area=SCALER,
        title="'unscale_() has already been called': a step skipped by hand, without update(), fails the next one",
        threads=("Haian-Jin/LVSM#19", "huggingface/transformers#24449"),
        why="a new iteration has new gradients, which are not unscaled yet",
        remedy="call scaler.update() in every iteration in which scaler.unscale_ was called, stepped or not",
        matters=(TRAINING,),
        by_design=True,
        error="unscale_\\(\\) has already been called on this optimizer",
    ),
    Check(
        name="bf16-weight-update",
        area=SCALER,
        title="Weights in bf16 do not move where steps are smaller than 1/512 of them: updates are rounded away",
        threads=("pytorch/pytorch#120376", "pytorch/ao#1124", "meta-pytorch/torchtune#2254"),
        why="a thousand steps of 0.001 are a step of 1; bf16 keeps 8 bits, and drops each of them",
        remedy=(
            "keep weights in fp32 under autocast, or use an optimizer that rounds stochastically (torchao's _AdamW "
            "with bf16_stochastic_round=True)"
        ),
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="bf16-weight-decay",
        area=SCALER,
        title="Weight decay does nothing to bf16 weights where the learning rate times it is below 1/512",
        threads=("Nerogar/OneTrainer#996",),
        why="a thousand factors of 0.999 come to 0.37; bf16 rounds what each gives back to what was there",
        remedy=(
            "keep weights in fp32 under autocast, or use an optimizer that rounds stochastically (torchao's _AdamW "
            "with bf16_stochastic_round=True)"
        ),
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="bf16-second-moment",
        area=SCALER,
        title="Adam's mean of squared gradients never fades for bf16 weights: its factor of 0.999 is 1 in bf16",
        threads=("FluxML/Optimisers.jl#215", "Nerogar/OneTrainer#1005"),
        why="each step multiplies the mean by 0.999: a thousand of them leave 0.37 of it",
        remedy="keep weights in fp32 under autocast, or lower beta2 to 0.99, which bf16 can apply",
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="bf16-weight-average",
        area=SCALER,
        title="An average of bf16 weights (AveragedModel, EMA) stays at its first values",
        threads=("d8ahazard/sd_dreambooth_extension#1415", "d8ahazard/sd_dreambooth_extension#1417"),
        why="each update closes a thousandth of the gap, and a thousand of them 0.63 of it",
        remedy="average in fp32: AveragedModel(copy.deepcopy(model).float(), avg_fn=get_ema_avg_fn(0.999))",
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="bf16-gradient-accumulation",
        area=SCALER,
        title="Gradients accumulated over many small batches stall for bf16 weights",
        threads=("pytorch/pytorch#120168", "NVIDIA/Megatron-LM#502", "NVIDIA/Megatron-LM#800"),
        why="a thousand ones are a thousand; .grad has the weight's dtype, in which 256 + 1 is 256",
        remedy=(
            "keep weights in fp32 under autocast; weight.grad_dtype = torch.float32 also adds up right, but Adam "
            "raises on such gradients"
        ),
        matters=(TRAINING,),
        by_design=True,
    ),
    Check(
        name="clip-norm-fp16",
        area=SCALER,
        title="clip_grad_norm_ sets all fp16 gradients to 0 where their norm is beyond 65504",
        threads=("pytorch/pytorch#53843", "pytorch/pytorch#46849", "facebookresearch/fairscale#263"),
        why="the gradients are finite and so is their norm, 80000: each is clipped to 40000 / 80000",
        remedy=(
            "keep weights, and so gradients, in fp32 and clip after scaler.unscale_; without a GradScaler pass "
            "error_if_nonfinite=True"
        ),
        matters=(TRAINING,),
        by_design=True,
    ),
)
