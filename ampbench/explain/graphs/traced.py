"""The graph of torch.jit.trace: made here for whoever runs it, and read with the dtypes that really come out."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from ampbench.errors import first_line
from ampbench.explain.graphs.names import stored_tensors
from ampbench.explain.graphs.observed import Region, observe
from ampbench.explain.graphs.script import FrozenGraph, removed, stored_casts
from ampbench.records.casts import TRACED, GraphTrace
from ampbench.units import counted


def trace_frozen(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region) -> Any:
    """Return `model` traced inside `region` and the same frozen, as a pair of ScriptModules.

    The weight cache is off while tracing: with it, `torch.jit.trace` can fail with "Cannot insert a Tensor that
    requires grad as a constant". Raises whatever tracing raises, and RuntimeError for a model in training mode.
    """
    cache = torch.is_autocast_cache_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, in other words in every torch version
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.no_grad(), region():
                inputs: dict[str, Any] = {"example_inputs": args}
                if kwargs:
                    positional = inspect.signature(model.forward).bind_partial(*args).arguments
                    inputs = {"example_kwarg_inputs": {**positional, **kwargs}}
                traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                    model, check_trace=False, strict=False, **inputs
                )
                return traced, torch.jit.freeze(traced)
        finally:
            torch.set_autocast_cache_enabled(cache)


def traced_graph(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> GraphTrace:
    """Return the graph of `model` traced inside `region` and frozen, with the casts it had before it was frozen.

    Ops are those of the frozen graph, which is run once, inside `region`, to learn their dtypes. A cast of a weight
    that freezing has done once and for all is folded. A model in training mode cannot be frozen: that is the `error`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced, frozen = trace_frozen(model, args, kwargs, region)
            return _read(model, traced.inlined_graph, frozen.graph, args, kwargs, region)
    except Exception as error:  # noqa: BLE001 - whatever keeps a graph from being made is what there is to say
        return GraphTrace(graph=TRACED, error=first_line(error))


def _read(
    model: torch.nn.Module, before: Any, graph: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], region: Region
) -> GraphTrace:
    stored = stored_tensors(model)
    seen = observe(model, graph, args, kwargs, region)
    reader = FrozenGraph(graph, seen.tensors, {one.tensor.data_ptr(): one for one in stored})
    inside = reader.inside(seen.inside)
    casts = [*reader.casts(), *inside]
    kept = {(cast.name, cast.to_dtype) for cast in casts}
    folded = [cast for cast in stored_casts(before, stored) if (cast.name, cast.to_dtype) not in kept]
    notes = removed(before, graph)
    if inside:
        notes.append(f"{counted(len(inside), 'cast')} are made inside ops of the graph when it runs, not by its nodes")
    return GraphTrace(graph=TRACED, ops=reader.ops(), casts=[*folded, *casts], notes=notes)
