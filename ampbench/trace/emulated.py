"""Products in formats below 16 bits, emulated layer by layer where no kernel of such a format is needed.

A layer's factors are rounded to the precision's formats (`core.precisions.COMPUTES`, `formats.quantise`), multiplied
and added in fp32, and the result is rounded once to the dtype around: the arithmetic of `torch._scaled_mm`. Each of the
three products of a step rounds its own factors along its own inner dimension. A convolution is a sum of such products
over the pixels of its kernel: a row or block of its inputs runs along the channels of a pixel, one of its weights along
channels and kernel in the order of `torch.nn.functional.unfold`.
"""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from ampbench.core.precisions import COMPUTES, Factors, Precision
from ampbench.errors import UnknownNameError, UsageError
from ampbench.trace.formats import CONVOLUTIONS, quantise
from ampbench.trace.keep_fp32 import leave_fused, without_autocast


class _Layer(NamedTuple):
    """A layer's product of inputs and weights, without bias.

    `channel` is the dimension of channels, from the last, in inputs and outputs; `outputs` and `inputs` are those of
    the weights.
    """

    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    channel: int = -1
    outputs: int = 0
    inputs: int = 1


def _layer_of(module: torch.nn.Module) -> _Layer | None:
    """Return the product of a linear layer or a convolution without groups; None for others, even derived ones."""
    kind = type(module)
    if isinstance(module, torch.nn.Linear) and kind.forward is torch.nn.Linear.forward:
        return _Layer(torch.nn.functional.linear)
    if kind.__name__ == "Conv1D" and hasattr(module, "nf"):  # a linear layer of transformers, for GPT-2
        return _Layer(torch.matmul, outputs=1, inputs=0)
    if (
        isinstance(module, CONVOLUTIONS)
        and module.groups == 1
        and kind.forward in [row.forward for row in CONVOLUTIONS]
    ):
        method: Any = weakref.WeakMethod(module._conv_forward)
        return _Layer(lambda *factors: method()(*factors, None), channel=-1 - len(module.kernel_size))
    return None


def _over_rest(tensor: torch.Tensor, fmt: str, channel: int) -> torch.Tensor:
    """Return a tensor rounded to a format whose rows and blocks run along all dimensions but `channel`."""
    moved = tensor.movedim(channel, 0)
    return _along(moved.reshape(len(moved), -1), fmt, 1).reshape(moved.shape).movedim(0, channel)


def _along(tensor: torch.Tensor, fmt: str, channel: int) -> torch.Tensor:
    return quantise(tensor, fmt, channel) if fmt else tensor


class _Product(torch.autograd.Function):
    """A layer's output, rounded to `output`; its gradients come from rounded factors, too."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, weights: Any, bias: Any, layer: _Layer, factors: Factors, output: Any) -> Any:
        """Return the layer's output."""
        ctx.save_for_backward(inputs, weights)
        ctx.layer, ctx.factors, ctx.output, ctx.bias = layer, factors, output, bias is not None and bias.dtype
        with without_autocast():
            left = _along(inputs.to(output).float(), factors.inputs, layer.channel)
            result = layer.multiply(left, _over_rest(weights.float(), factors.weights, layer.outputs))
            if bias is not None:
                result = result + bias.to(output).float().reshape(-1, *[1] * (-1 - layer.channel))
            return result.to(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradients of inputs, weights and bias."""
        (inputs, weights), layer, factors, output = ctx.saved_tensors, ctx.layer, ctx.factors, ctx.output
        left, right, moved = inputs.to(output).float(), weights.float(), gradient.float()
        of_inputs = of_weights = of_bias = None
        with without_autocast():
            if ctx.needs_input_grad[0]:
                rounded = _over_rest(right, factors.weights, layer.inputs)
                of_inputs = _pulled_back(layer, left, rounded, _along(moved, factors.gradients, layer.channel), 0)
                of_inputs = of_inputs.to(output).to(inputs.dtype)
            if ctx.needs_input_grad[1]:
                rounded = _over_rest(left, factors.inputs, layer.channel)
                of_weights = _pulled_back(layer, rounded, right, _over_rest(moved, factors.gradients, layer.channel), 1)
                of_weights = of_weights.to(output).to(weights.dtype)
            if ctx.needs_input_grad[2]:
                of_bias = moved.movedim(layer.channel, 0).flatten(1).sum(1).to(output).to(ctx.bias)
        return of_inputs, of_weights, of_bias, None, None, None


def _pulled_back(
    layer: _Layer, inputs: torch.Tensor, weights: torch.Tensor, gradient: torch.Tensor, of: int
) -> torch.Tensor:
    """Return the gradient of one factor of a product, of the inputs (0) or the weights (1)."""
    with torch.enable_grad():
        factors = [inputs.detach(), weights.detach()]
        factors[of].requires_grad_()
        return torch.autograd.grad(layer.multiply(*factors), factors[of], gradient)[0]


class _Forward:
    """The forward of a layer whose product is emulated; in the layer's instance, so without a reference to it."""

    def __init__(self, module: torch.nn.Module, layer: _Layer, row: Precision):
        self.module, self.layer, self.factors = weakref.ref(module), layer, COMPUTES[row.compute]
        self.output = getattr(torch, row.autocast or row.storage)

    def __call__(self, inputs: torch.Tensor) -> Any:
        module: Any = self.module()
        return _Product.apply(inputs, module.weight, module.bias, self.layer, self.factors, self.output)


def emulated_forward(module: torch.nn.Module, row: Precision) -> Callable[..., Any] | None:
    """Return the forward of a layer in a precision that is emulated; None where its own forward computes."""
    layer = _layer_of(module) if row.compute else None
    return None if layer is None else _Forward(module, layer, row)


def emulate(network: torch.nn.Module, row: Precision, kept: Iterable[str] = ()) -> None:
    """Let the layers of a network compute in an emulated precision, except within the modules `kept` or kept by it.

    Raises `UsageError` where the network has no such layer.
    """
    higher = [*kept, *kept_by(row, network)]
    layers = 0
    for path, module in network.named_modules():
        forward = emulated_forward(module, row)
        layers += forward is not None
        if forward is not None and not _within(path, higher):
            module.__dict__["forward"] = forward  # past Module.__setattr__, which other tools override
            leave_fused(module)
    if not layers:
        raise UsageError(
            f"{row.name} changes nothing: this network has no linear layer, nor a convolution without groups"
        )


def kept_by(row: Precision, network: torch.nn.Module, *, dtype: str = "") -> list[str]:
    """Return the paths of the modules that a precision keeps, of one `dtype` or all.

    Raises `UnknownNameError`, with the nearest names, for a pattern without a module.
    """
    paths = [path for path, _ in network.named_modules(remove_duplicate=False) if path]
    kept: dict[str, None] = {}
    for text in row.keep:
        pattern, _, held = text.rpartition(":")
        matching = [path for path in paths if fnmatchcase(path, pattern)]
        if not matching:
            raise UnknownNameError("submodule", pattern, paths)
        kept |= dict.fromkeys(matching if dtype in ("", held) else ())
    return [*kept]


def precision_at(row: Precision, network: torch.nn.Module) -> Callable[[str], Precision | None]:
    """Return the function that gives the precision of a module by its path; None for one kept in fp32."""
    fp32, every = kept_by(row, network, dtype="fp32"), kept_by(row, network)
    plain = replace(row, name="kept", compute="", keep=())
    return lambda path: None if _within(path, fp32) else plain if _within(path, every) else row


def _within(path: str, names: Iterable[str]) -> bool:
    return any(not name or f"{path}.".startswith(f"{name}.") for name in names)
