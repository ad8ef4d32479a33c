"""The calls that documents call not eligible: fp64 and integer inputs, in-place, `out=`, an explicit `dtype=`.

The forms of an op are found in the dispatcher's schemas, so that every torch version is asked for those it has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.explain.devices import autocast_to
from ampbench.explain.rules.observed import fill, outcome, run_trial
from ampbench.explain.rules.samples import Sample
from ampbench.records.rules import FLOAT32, WIDEST


def run_variants(
    op: Callable[..., Any], sample: Sample, device: str, dtype: torch.dtype, observed: str | None
) -> dict[str, str]:
    """Return for each variant that `op` has and that can be run what autocast made of it (`observed.outcome`).

    In-place and out= calls get the floating inputs that the op's rule would change, going by its category `observed`:
    the autocast dtype where the rule is fp32, mixed ones where it is the widest input, fp32 otherwise.
    """
    made: dict[str, tuple[Callable[..., Any], Callable[[], Sample]]] = {
        "fp64": (op, lambda: fill(sample, device, lambda _: torch.float64)),
        "integer": (op, lambda: fill(sample, device, lambda _: torch.int64)),
    }
    if isinstance(op, torch._ops.OpOverload):
        telling = _telling_inputs(observed, dtype)
        inplace, out = find_inplace(op), find_out(op)
        if inplace is not None:
            made["in-place"] = (inplace, lambda: fill(sample, device, telling))
        if out is not None:
            made["out="] = (out, lambda: _with_outputs(op, fill(sample, device, telling), device, dtype, out))
        if any(argument.name == "dtype" for argument in op._schema.arguments):
            made["dtype="] = (op, lambda: _with_dtype(fill(sample, device, lambda _: dtype), dtype))
    outcomes = {}
    for name, (form, make) in made.items():
        told = outcome(run_trial(form, make, device, dtype))
        if told is not None:
            outcomes[name] = told
    return outcomes


def find_inplace(op: torch._ops.OpOverload[..., Any]) -> torch._ops.OpOverload[..., Any] | None:
    """Return the in-place form of `op`: the op whose name has one more `_`, same overload, same arguments."""
    packet = getattr(getattr(torch.ops, op.namespace), f"{op._opname}_", None)
    form = getattr(packet, op._overloadname, None)
    return form if form is not None and _names(form) == _names(op) else None


def find_out(op: torch._ops.OpOverload[..., Any]) -> torch._ops.OpOverload[..., Any] | None:
    """Return the out= form of `op`: the overload with the same arguments and, after them, tensors to write to."""
    packet = op.overloadpacket
    for overload in packet.overloads():
        form = getattr(packet, overload)
        given = [argument for argument in form._schema.arguments if not argument.is_out]
        wanted = [argument for argument in op._schema.arguments if argument.name != "dtype"]
        if len(given) < len(form._schema.arguments) and [(a.name, str(a.type)) for a in given if a.name != "dtype"] == [
            (a.name, str(a.type)) for a in wanted
        ]:
            return form  # type: ignore[no-any-return]
    return None


def _names(op: torch._ops.OpOverload[..., Any]) -> list[str]:
    return [argument.name for argument in op._schema.arguments]


def _telling_inputs(observed: str | None, dtype: torch.dtype) -> Callable[[int], torch.dtype]:
    if observed == FLOAT32:
        return lambda _: dtype
    if observed == WIDEST:
        return lambda position: dtype if position else torch.float32  # what is written to can hold the result
    return lambda _: torch.float32


def _with_dtype(sample: Sample, dtype: torch.dtype) -> Sample:
    return Sample(sample.args, {**sample.kwargs, "dtype": dtype})


def _with_outputs(
    op: torch._ops.OpOverload[..., Any],
    sample: Sample,
    device: str,
    dtype: torch.dtype,
    form: torch._ops.OpOverload[..., Any],
) -> Sample:
    """Return `sample` with empty tensors to write to, of the shapes and dtypes that the op returns without autocast."""
    with torch.no_grad(), autocast_to(device, dtype, enabled=False):
        results = op(*sample.args, **sample.kwargs)
    tensors = [torch.empty_like(leaf) for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    names = [argument.name for argument in form._schema.arguments if argument.is_out]
    return Sample(sample.args, {**sample.kwargs, **dict(zip(names, tensors, strict=True))})
