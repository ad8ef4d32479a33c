"""Values by their storage: what a tensor is, what it is called, and which cast made it."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True, kw_only=True)
class CastRow:
    """One cast as recorded; `operation` is known once the copy is used, `value` is what was cast, made in `call`."""

    index: int
    operation: int | None = None
    what: str
    name: str
    module: str
    phase: str
    source_dtype: torch.dtype
    dtype: torch.dtype
    elements: int
    seconds: float | None
    origin: str
    cached: bool
    tensor: int
    made_by: int | None
    call: int
    value: "Value"


class Value:
    """What is known of one storage's content: what it is, its name, and the cast that made it, if one did.

    `call` is the Python call it was made in, `alive` a reference to a tensor that came from outside (None: made here).
    """

    __slots__ = ("alive", "call", "cast", "name", "read_as_is", "views", "what")

    def __init__(self, what: str, name: str, cast: CastRow | None = None, call: int = 0, alive: Any = None):
        self.what, self.name, self.cast, self.call, self.alive = what, name, cast, call, alive
        self.read_as_is = False
        self.views: dict[Any, int] = {}


def storage_key(tensor: torch.Tensor) -> int:
    """Return what all views of one storage share; a tensor without a storage (sparse) stands for itself."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def lives(value: Value) -> bool:
    """Return whether a value can still be what its storage holds: an address is used again after a tensor is freed."""
    return value.alive is None or value.alive() is not None


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Return the tensors among an op's arguments, and in lists of them."""
    tensors = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [leaf for leaf in value if isinstance(leaf, torch.Tensor)]
    return tensors


def cacheable(source: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether autocast keeps this copy: ATen's `cached_cast` (autocast_mode.cpp) decides by these conditions."""
    return (
        source.dtype is torch.float32
        and out.dtype is torch.get_autocast_dtype(source.device.type)
        and source.requires_grad
        and source.is_leaf
        and not source._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )
