"""A step of a network in each precision, and its distance from fp64, from their definitions in docs/: in plain torch.

precisions.md, workloads.md (what is cast), measuring.md (a step), advice.md (an update), statistics.md (outputs).
"""

import contextlib
import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Format:
    """What a precision stores, casts, scales and keeps: a row of the table of docs/precisions.md."""

    storage: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    scaler: bool = False
    master: bool = False
    bf16_products: bool = False


FP64 = Format(torch.float64)
FORMATS = {
    "fp32": Format(),
    "fp32_bf16_products": Format(bf16_products=True),
    "fp16_autocast": Format(autocast=torch.float16, scaler=True),
    "bf16_autocast": Format(autocast=torch.bfloat16),
    "fp16_master": Format(torch.float16, scaler=True, master=True),
    "bf16_master": Format(torch.bfloat16, master=True),
    "fp16_pure": Format(torch.float16),
    "bf16_pure": Format(torch.bfloat16),
}


@dataclass
class Step:
    """What a step leaves: of training also unscaled gradients, and what is stored afterwards."""

    outputs: Tensors
    loss: float = math.nan
    gradients: Tensors = field(default_factory=dict)
    stored: Tensors = field(default_factory=dict)
    bytes_kept: int = 0


def doubled(tensors: Any) -> Tensors:
    """Return copies of tensors in fp64 by name, of a tensor alone by the name ""."""
    named = {"": tensors} if torch.is_tensor(tensors) else tensors
    return {name: tensor.detach().to(torch.float64, copy=True) for name, tensor in named.items()}


def batches_in(workload: Any, dtype: torch.dtype) -> Any:
    """Return batches of inputs and targets, floating ones in `dtype`."""
    pairs = list(zip(workload.inputs, workload.targets, strict=True))
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, pairs)


@contextlib.contextmanager
def products(kind: Format) -> Iterator[None]:
    """Let factors of fp32 products be rounded as a format has it."""
    before = torch.get_float32_matmul_precision(), torch.backends.mkldnn.conv.fp32_precision
    if kind.bf16_products:
        torch.set_float32_matmul_precision("medium")
        torch.backends.mkldnn.conv.fp32_precision = "bf16"
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.mkldnn.conv.fp32_precision = before[1]


def trained_module(workload: Any, storage: torch.dtype) -> nn.Module:
    """Return a copy of the network in `storage`, without dropout."""
    module: nn.Module = copy.deepcopy(workload.module).to(storage).train()
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
    return module


def infer(workload: Any, kind: Format) -> Step:
    module = copy.deepcopy(workload.module).to(kind.storage).eval()
    with torch.inference_mode(), products(kind), torch.autocast("cpu", kind.autocast, kind.autocast is not None):
        return Step(doubled(module(batches_in(workload, kind.storage)[0][0])))


def train(workload: Any, kind: Format) -> Step:
    module = trained_module(workload, kind.storage)
    given = copy.deepcopy(module.state_dict())
    weights = dict(module.named_parameters())
    if kind.master:
        originals = copy.deepcopy(dict(workload.module.named_parameters()))
        weights |= {name: originals[name] for name, own in weights.items() if own.requires_grad}
    optimizer = workload.optimizer(weights.values())
    scaler = torch.amp.GradScaler("cpu", enabled=kind.scaler)

    def backward(inputs: Any, targets: Any) -> tuple[Any, torch.Tensor, Tensors]:
        while True:  # until GradScaler has found its scale
            module.load_state_dict(given)
            for weight in (*module.parameters(), *weights.values()):
                weight.grad = None
            with torch.autocast("cpu", kind.autocast, kind.autocast is not None):
                output = module(inputs)
                loss = workload.loss(output, targets)
            scaler.scale(loss).backward()
            for name, own in module.named_parameters():
                if own is not weights[name]:
                    weights[name].grad, own.grad = None if own.grad is None else own.grad.float(), None
            scaler.unscale_(optimizer)
            gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
            if not kind.scaler or math.isfinite(squares(gradients.values())):
                return output, loss.detach(), gradients
            scaler.update()

    with products(kind):
        output, loss, gradients = backward(*batches_in(workload, kind.storage)[0])
        step = Step(doubled(output), float(loss), copy.deepcopy(gradients))
        scaler.step(optimizer)
        scaler.update()
        buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        step.stored = doubled(buffers | weights)
        kept = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
        kept += [*gradients.values(), *{*module.parameters(), *weights.values()}]
        step.bytes_kept = sum(tensor.nbytes for tensor in kept)
    return step


def late(workload: Any) -> tuple[Tensors, dict[str, Any]]:
    """Return weights and optimizer state after 20 fp32 steps, or 2 of an optimizer that keeps no state."""
    module = trained_module(workload, torch.float32)
    optimizer, batches = workload.optimizer(module.parameters()), batches_in(workload, torch.float32)
    for number in range(20):
        inputs, targets = batches[number % len(batches)]
        optimizer.zero_grad()
        workload.loss(module(inputs), targets).backward()
        optimizer.step()
        if number == 1 and not any(value is not None for state in optimizer.state.values() for value in state.values()):
            break
    return dict(module.named_parameters()), optimizer.state_dict()


def update(workload: Any, gradients: Tensors, begin: tuple[Tensors, dict[str, Any]], storage: torch.dtype) -> Tensors:
    """Return what a step with `gradients` changes of weights, from those and the state of `begin`, in `storage`."""
    weights = {name: nn.Parameter(own.detach().to(storage, copy=True)) for name, own in begin[0].items()}
    before = doubled(weights)
    optimizer = workload.optimizer(weights.values())
    optimizer.load_state_dict(copy.deepcopy(begin[1]))  # in the dtypes that the optimizer chooses
    for name, gradient in gradients.items():
        weights[name].grad = gradient.to(storage)
    optimizer.step()
    return {name: after - before[name] for name, after in doubled(weights).items()}


def squares(tensors: Iterable[torch.Tensor]) -> float:
    return math.fsum(float(tensor.double().square().sum()) for tensor in tensors)


def dot(first: Tensors, second: Tensors) -> float:
    return math.fsum(float((first[name] * second[name]).sum()) for name in second)


def less(first: Tensors, second: Tensors, times: float = 1.0) -> Tensors:
    return {name: first[name].double() - times * tensor for name, tensor in second.items()}


def relative(values: Tensors, references: Tensors) -> float:
    """Return the norm of the error of tensors, taken as one vector, relative to that of the references."""
    return math.sqrt(squares(less(values, references).values()) / squares(references.values()))


def of_outputs(own: Step, exact: Step, fp32: Step, kind: Format, logits: str | None) -> dict[str, Any]:
    """Return the columns of an output's error; logits have their classes in dimension 1, and no common shift."""
    values, references = own.outputs, exact.outputs
    rounded = {name: tensor.to(kind.autocast or kind.storage) for name, tensor in references.items()}
    judged, exactly = (
        {name: each - each.mean(1, keepdim=True) if name == logits else each for name, each in outputs.items()}
        for outputs in (values, references)
    )
    each = {name: relative(judged, {name: reference}) for name, reference in exactly.items()}
    spread = {
        name: math.sqrt(
            float((judged[name] - true).var(0, correction=0).sum() + (judged[name] - true).mean(0).square().sum())
        )
        / math.sqrt(float(true.var(0, correction=0).sum()))
        for name, true in exactly.items()
        if name != logits
    }
    return {
        "output_rel_l2": (error := relative(values, references)),
        "output_max_abs": max(float(apart.abs().max()) for apart in less(values, references).values()),
        "output_cosine": dot(values, references) / math.sqrt(squares(values.values()) * squares(references.values())),
        "output_floor_ratio": error / relative(rounded, references),
        "output_fp32_ratio": error / relative(fp32.outputs, references),
        "output_over_spread": max(spread.values(), default=None),
        "output_spread_name": max(spread, key=spread.__getitem__) if spread and len(each) > 1 else None,
        "output_worst_rel_l2": max(each.values()),
        "output_worst_name": max(each, key=each.__getitem__) if len(each) > 1 else None,
    }


def of_training(own: Step, exact: Step) -> dict[str, Any]:
    """Return the columns of the errors of loss, gradients and what is stored after a step."""
    gradients, references = own.gradients, exact.gradients
    norms = {name: math.sqrt(squares([true])) for name, true in references.items()}
    flushed = [true[(gradients[name] == 0) & (true != 0)] for name, true in references.items()]

    def worst(share: float) -> tuple[float, str]:
        judged = [name for name, norm in norms.items() if norm >= share * math.hypot(*norms.values())]
        return max((relative(gradients, {name: references[name]}), name) for name in judged)

    return {
        "loss_abs_error": abs(own.loss - exact.loss),
        "loss_rel_error": abs(own.loss - exact.loss) / abs(exact.loss),
        "grad_rel_l2": relative(gradients, references),
        "grad_worst_parameter": worst(1e-6)[1],
        "grad_tensor_parameter": worst(1e-2)[1],
        "grad_tensor_rel_l2": worst(1e-2)[0],
        "grad_flushed_share": sum(map(torch.numel, flushed)) / sum(map(torch.numel, references.values())),
        "param_rel_l2": relative(own.stored, exact.stored),
    }


def of_update(moved: Tensors, intended: Tensors) -> dict[str, Any]:
    """Return the columns of the update that arrives; none of them is defined where a weight is not finite."""
    if not math.isfinite(squares(moved.values())):
        return {"update_rel_l2": None, "update_kept": None, "update_noise": None, "update_worst_kept": None}
    energy, kept = squares(intended.values()), dot(moved, intended) / squares(intended.values())
    moving = sum(int(true.count_nonzero()) for true in intended.values())
    still = [true[(moved[name] == 0) & (true != 0)] for name, true in intended.items()]
    carrying = {name: part for name, true in intended.items() if (part := squares([true])) >= 0.01 * energy}
    worst_kept, worst = min((dot(moved, {name: intended[name]}) / part, name) for name, part in carrying.items())
    return {
        "update_rel_l2": relative(moved, intended),
        "update_kept": kept,
        "update_noise": math.sqrt(squares(less(moved, intended, kept).values()) / energy),
        "update_swallowed_share": sum(map(torch.numel, still)) / moving,
        "update_swallowed_energy": squares(still) / energy,
        "update_worst_parameter": worst,
        "update_worst_kept": worst_kept,
    }
