"""GradScaler and optimizers in half precision."""

import warnings
from typing import TYPE_CHECKING

from ampbench.defects import TRAINING, Answer, defect

if TYPE_CHECKING:
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@defect("#99640", "#101569", "NVIDIA/apex#452", matters=(TRAINING,), by_design=True)
def scale_underflow(device: str) -> Answer:
    """GradScaler's scale has no floor: after many skipped steps it is 0, and gradients are NaN for good.

    Every skipped step halves the scale, down to 0; from then on unscaling multiplies by infinity.
    Why: no gradient can be unscaled by a scale of 0: a floor or an error would be right.
    Remedy: watch scaler.get_scale() and stop below 1: gradients are NaN, or beyond fp16 without any scale; train in
    bf16 or fp32 then.
    """
    weight = torch.zeros(1, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(device)
    scaler.scale(torch.zeros((), device=device))
    for _ in range(200):
        weight.grad = torch.full_like(weight, float("inf"))
        scaler.step(optimizer)
        scaler.update()
    weight.grad = torch.zeros_like(weight)
    scaler.unscale_(optimizer)
    expected = "after 200 skipped steps the scale is above 0, and a gradient of 0.0 stays 0.0"
    good = scaler.get_scale() > 0
    seen = (
        f"after 200 skipped steps the scale is {scaler.get_scale()}, and a gradient of 0.0 becomes {weight.grad.item()}"
    )
    return expected, seen, good


@defect("#98772", "#97415", matters=(TRAINING,), by_design=True)
def fused_skip_gradients(device: str) -> Answer:
    """After a skipped step, gradients are left scaled by a fused optimizer, but unscaled by any other.

    Why: what is logged or accumulated after a step must not depend on how the step is implemented.
    Remedy: call zero_grad after every step, skipped or not; to read gradients, unscale_ them before the step.
    """
    left = []
    for fused in (False, True):
        weight = torch.nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.Adam([weight], fused=fused)
        scaler = torch.amp.GradScaler(device)
        scaler.scale(torch.zeros((), device=device))
        weight.grad = torch.tensor([scaler.get_scale(), float("inf")], device=device)
        scaler.step(optimizer)
        left.append(weight.grad[0].item())
    expected = "a gradient of 1.0 is left as 1.0 by Adam, as 1.0 by fused Adam"
    return expected, f"a gradient of 1.0 is left as {left[0]} by Adam, as {left[1]} by fused Adam"


@defect("LibreYOLO/libreyolo#771", matters=(TRAINING,))
def fused_sgd_momentum(device: str) -> Answer:
    """SGD(fused=True, momentum=...) starts from garbage or NaN when GradScaler skips the first step.

    The first step is skipped; fused SGD then takes uninitialized memory for momentum, which is filled with NaN here.
    Why: a step that is skipped leaves no momentum, so that the next one is the first: 1.0 - 0.1 * 1.0.
    Remedy: make SGD with fused=False, or start from an init_scale so small that the first step is not skipped.
    """
    torch.use_deterministic_algorithms(True)
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler(device)
    scaler.scale(torch.zeros((), device=device))
    for gradient in (float("inf"), 1.0):
        weight.grad = torch.full_like(weight, gradient * scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    torch.use_deterministic_algorithms(False)
    expected = "a weight of 1.0 is 0.9000 after a skipped step and one along a gradient of 1.0"
    return expected, f"a weight of 1.0 is {weight[0]:.4f} after a skipped step and one along a gradient of 1.0"


@defect("#147437", "#40497", "#8860", "afiaka87/glide-finetune#6", matters=(TRAINING,))
def adam_fp16_eps(device: str) -> Answer:
    """Adam on fp16 weights turns them to NaN at a gradient of 0, because eps=1e-8 is 0 in fp16.

    Why: Adam moves a weight along its gradients, and there are none; eps is there to keep 0 from dividing 0.
    Remedy: keep weights in fp32 under autocast, or pass eps=1e-4; fused=True avoids the NaN, but then takes huge steps
    where gradients are tiny.
    """
    weight = torch.nn.Parameter(torch.ones(1, device=device, dtype=torch.float16))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    expected = "an fp16 weight of 1.0 is 1.0 after a step along a gradient of 0.0"
    return expected, f"an fp16 weight of 1.0 is {weight.item()} after a step along a gradient of 0.0"


@defect(
    "#74739",
    "facebookresearch/fairscale#834",
    "haotian-liu/LLaVA#363",
    matters=(TRAINING,),
    by_design=True,
    error="Attempting to unscale FP16 gradients",
)
def unscale_fp16_weights(device: str) -> Answer:
    """GradScaler raises 'Attempting to unscale FP16 gradients', unless the optimizer happens to be fused.

    Why: fp16 weights can be trained or they cannot: that does not depend on how the step is implemented.
    Remedy: keep the weights that are trained in fp32 and run the model under autocast.
    """
    results = []
    for fused in (False, True):
        weight = torch.nn.Parameter(torch.ones(1, device=device, dtype=torch.float16))
        optimizer = torch.optim.SGD([weight], lr=0.5, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=8.0)
        scaler.scale(torch.zeros((), device=device))
        weight.grad = torch.full_like(weight, 8.0)
        try:
            scaler.step(optimizer)
            results.append(f"the weight is {weight.item()}")
        except ValueError as error:
            results.append(f"ValueError: {error}")
    return "SGD: the weight is 0.5; fused SGD: the weight is 0.5", f"SGD: {results[0]}; fused SGD: {results[1]}"


@defect("#44511", "#67590", "huggingface/transformers#11144", matters=(TRAINING,))
def scheduler_after_skip(device: str) -> Answer:
    """After a skipped first step, the scheduler warns of 'lr_scheduler.step() before optimizer.step()'.

    Why: scaler.step, scaler.update and scheduler.step were called in the order that the manual shows.
    Remedy: call scheduler.step() only where scaler.get_scale() has not fallen in scaler.update().
    """
    weight = torch.nn.Parameter(torch.ones(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler(device)
    scaler.scale(torch.zeros((), device=device))
    weight.grad = torch.full_like(weight, float("inf"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    expected = "no warning"
    said = [str(one.message).split(". ")[0] for one in caught]
    return expected, next((f"a warning: {line}" for line in said if "lr_scheduler" in line), "no warning")


@defect("#152279", "#142472", "#67590", matters=(TRAINING,), by_design=True)
def skipped_step_unsaid(device: str) -> Answer:
    """GradScaler.step does not say whether it took the step or skipped it.

    Why: schedules, averages and logs count steps that were taken, and have nothing else to ask.
    Remedy: compare scaler.get_scale() before and after scaler.update(): it falls where the step was skipped.
    """
    weight = torch.nn.Parameter(torch.ones(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler(device)
    scaler.scale(torch.zeros((), device=device))
    returned = []
    for gradient in (1.0, float("inf")):
        weight.grad = torch.full_like(weight, gradient)
        returned.append(scaler.step(optimizer))
        scaler.update()
    expected = "step() returns one thing for a step that is taken, another for one that is skipped"
    good = returned[0] != returned[1]
    seen = f"step() returns {returned[0]} for a step that is taken, {returned[1]} for one that is skipped"
    return expected, seen, good


@defect(
    "Haian-Jin/LVSM#19",
    "huggingface/transformers#24449",
    matters=(TRAINING,),
    by_design=True,
    error=r"unscale_\(\) has already been called on this optimizer",
)
def unscale_after_skip_by_hand(device: str) -> Answer:
    """'unscale_() has already been called': a step skipped by hand, without update(), fails the next one.

    Why: a new iteration has new gradients, which are not unscaled yet.
    Remedy: call scaler.update() in every iteration in which scaler.unscale_ was called, stepped or not.
    """
    layer = torch.nn.Linear(1, 1, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device)
    expected = "the next iteration is unscaled"
    seen = "the next iteration is unscaled"
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(layer(torch.ones(1, 1, device=device)).sum()).backward()
        try:
            scaler.unscale_(optimizer)
        except RuntimeError as error:
            seen = f"RuntimeError: {error}"
    return expected, seen


@defect("#120376", "pytorch/ao#1124", "meta-pytorch/torchtune#2254", matters=(TRAINING,), by_design=True)
def bf16_weight_update(device: str) -> Answer:
    """Weights in bf16 do not move where steps are smaller than 1/512 of them: updates are rounded away.

    Takes 1000 steps of 0.001 from 1.0; the next bf16 value below 1.0 is 0.996, so that every step is rounded away.
    Why: a thousand steps of 0.001 are a step of 1; bf16 keeps 8 bits, and drops each of them.
    Remedy: keep weights in fp32 under autocast, or use an optimizer that rounds stochastically (torchao's _AdamW with
    bf16_stochastic_round=True).
    """
    weight = torch.nn.Parameter(torch.ones(1, device=device, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    weight.grad = torch.ones_like(weight)
    for _ in range(1000):
        optimizer.step()
    expected = "1000 steps of -0.001 take a bf16 weight from 1.0 to about 0.0"
    good = abs(weight.item()) < 0.1
    return expected, f"1000 steps of -0.001 take a bf16 weight from 1.0 to {weight.item()}", good


@defect("Nerogar/OneTrainer#996", matters=(TRAINING,), by_design=True)
def bf16_weight_decay(device: str) -> Answer:
    """Weight decay does nothing to bf16 weights where the learning rate times it is below 1/512.

    Decays a bf16 weight by a factor of 0.999 a thousand times; in bf16 that factor, applied to 1.0, gives 1.0.
    Why: a thousand factors of 0.999 come to 0.37; bf16 rounds what each gives back to what was there.
    Remedy: keep weights in fp32 under autocast, or use an optimizer that rounds stochastically (torchao's _AdamW with
    bf16_stochastic_round=True).
    """
    weight = torch.nn.Parameter(torch.ones(1, device=device, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1)
    weight.grad = torch.zeros_like(weight)
    for _ in range(1000):
        optimizer.step()
    expected = f"1000 steps of weight decay take a bf16 weight from 1.0 to about {0.999**1000:.2f}"
    good = abs(weight.item() - 0.999**1000) < 0.05
    return expected, f"1000 steps of weight decay take a bf16 weight from 1.0 to {weight.item():.2f}", good


@defect("FluxML/Optimisers.jl#215", "Nerogar/OneTrainer#1005", matters=(TRAINING,), by_design=True)
def bf16_second_moment(device: str) -> Answer:
    """Adam's mean of squared gradients never fades for bf16 weights: its factor of 0.999 is 1 in bf16.

    Why: each step multiplies the mean by 0.999: a thousand of them leave 0.37 of it.
    Remedy: keep weights in fp32 under autocast, or lower beta2 to 0.99, which bf16 can apply.
    """
    weight = torch.nn.Parameter(torch.zeros(1, device=device, dtype=torch.bfloat16))
    optimizer = torch.optim.Adam([weight], betas=(0.9, 0.999))
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    first = optimizer.state[weight]["exp_avg_sq"].item()
    weight.grad = torch.zeros_like(weight)
    for _ in range(1000):
        optimizer.step()
    kept = optimizer.state[weight]["exp_avg_sq"].item() / first
    expected = f"the mean of squares fades to about {0.999**1000:.2f} of it in 1000 steps"
    good = abs(kept - 0.999**1000) < 0.05
    return expected, f"the mean of squares fades to {kept:.2f} of it in 1000 steps", good


@defect(
    "d8ahazard/sd_dreambooth_extension#1415",
    "d8ahazard/sd_dreambooth_extension#1417",
    matters=(TRAINING,),
    by_design=True,
)
def bf16_weight_average(device: str) -> Answer:
    """An average of bf16 weights (AveragedModel, EMA) stays at its first values.

    Why: each update closes a thousandth of the gap, and a thousand of them 0.63 of it.
    Remedy: average in fp32: AveragedModel(copy.deepcopy(model).float(), avg_fn=get_ema_avg_fn(0.999)).
    """
    model = torch.nn.Linear(1, 1, bias=False, device=device, dtype=torch.bfloat16)
    torch.nn.init.constant_(model.weight, 1.0)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    average.update_parameters(model)
    torch.nn.init.constant_(model.weight, 2.0)
    for _ in range(1000):
        average.update_parameters(model)
    right = 2 - 0.999**1000
    reached = average.state_dict()["module.weight"].item()
    expected = f"1000 updates take the average from 1.0 to about {right:.2f}"
    good = abs(reached - right) < 0.05
    return expected, f"1000 updates take the average from 1.0 to {reached:.2f}", good


@defect("#120168", "NVIDIA/Megatron-LM#502", "NVIDIA/Megatron-LM#800", matters=(TRAINING,), by_design=True)
def bf16_gradient_accumulation(device: str) -> Answer:
    """Gradients accumulated over many small batches stall for bf16 weights.

    Why: a thousand ones are a thousand; .grad has the weight's dtype, in which 256 + 1 is 256.
    Remedy: keep weights in fp32 under autocast; weight.grad_dtype = torch.float32 also adds up right, but Adam raises
    on such gradients.
    """
    layer = torch.nn.Linear(1, 1, bias=False, device=device, dtype=torch.bfloat16)
    batch = torch.ones(1, 1, device=device, dtype=torch.bfloat16)
    for _ in range(1000):
        layer(batch).sum().backward()
    gradient = layer.weight.grad
    expected = "1000 gradients of 1.0 add up to 1000.0"
    return expected, f"1000 gradients of 1.0 add up to {None if gradient is None else gradient.item()}"


@defect("#53843", "#46849", "facebookresearch/fairscale#263", matters=(TRAINING,), by_design=True)
def clip_norm_fp16(device: str) -> Answer:
    """clip_grad_norm_ sets all fp16 gradients to 0 where their norm is beyond 65504.

    Why: the gradients are finite and so is their norm, 80000: each is clipped to 40000 / 80000.
    Remedy: keep weights, and so gradients, in fp32 and clip after scaler.unscale_; without a GradScaler pass
    error_if_nonfinite=True.
    """
    weight = torch.nn.Parameter(torch.ones(4, device=device, dtype=torch.float16))
    weight.grad = torch.full_like(weight, 40000.0)
    torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
    expected = "four gradients of 40000 are clipped to 0.5 each"
    return expected, f"four gradients of 40000 are clipped to {weight.grad[0].item()} each"
