"""Values by their storage: what a tensor is, what it is called, and which cast made it."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ampbench.records.casts import ACTIVATION, GRADIENT, INPUT, WEIGHT


class OpRow(NamedTuple):
    """One op as recorded: `function` is the Python function that led to it, `forward` the op it differentiates."""

    name: str
    function: Any
    module: str
    phase: str
    recomputed: bool
    forward: int | None
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    source: str | None
    seconds: float | None


@dataclass(slots=True, kw_only=True)
class CastRow:
    """One cast as recorded; `operation` is known once the copy is used, `value` is what was cast, made in `call`.

    `read` and `elements` are the elements read and written.
    """

    index: int
    operation: int | None = None
    what: str
    name: str
    module: str
    phase: str
    source_dtype: torch.dtype
    dtype: torch.dtype
    read: int
    elements: int
    seconds: float | None
    origin: str
    cached: bool
    tensor: int
    made_by: int | None
    producer: int | None
    call: int
    value: "Value"


class Value:
    """What is known of one storage's content: what it is, its name, and the cast that made it, if one did.

    `call` is the Python call it was made in, `op` the op that made it, `alive` a reference to a tensor that came from
    outside (None: made here), `uses` the forward ops that took it as it is, casts of it included.
    """

    __slots__ = ("alive", "call", "cast", "name", "op", "read_as_is", "uses", "views", "what")

    def __init__(
        self,
        what: str,
        name: str,
        cast: CastRow | None = None,
        call: int = 0,
        op: int | None = None,
        alive: Any = None,
    ):
        self.what, self.name, self.cast, self.call, self.op, self.alive = what, name, cast, call, op, alive
        self.read_as_is = False
        self.views: dict[Any, int] = {}
        self.uses: list[int] = []


class Values:
    """What is `known` of values, by the key of their storage; `owner` names a parameter that is not known."""

    def __init__(self, owner: Callable[[torch.Tensor], str]):
        self.known: dict[int, Value] = {}
        self._owner = owner

    def name(self, tensor: torch.Tensor, what: str, name: str) -> None:
        """Give a tensor from outside its name, unless it is known already."""
        with torch._C.DisableTorchFunction():
            key = storage_key(tensor)
            known = self.known.get(key)
            if known is not None and lives(known) and what == known.what == INPUT:
                known.name = known.name or name
            elif what != INPUT or known is None or not lives(known):
                self.known[key] = Value(what, name, alive=weakref.ref(tensor))

    def find(self, tensor: torch.Tensor, key: int, phase: str) -> Value:
        """Return what is known of a tensor; one never seen came from outside."""
        known = self.known.get(key)
        if known is not None and lives(known):
            return known
        if isinstance(tensor, torch.nn.Parameter):
            known = Value(WEIGHT, self._owner(tensor), alive=weakref.ref(tensor))
        elif phase == "backward":
            known = Value(GRADIENT, "", alive=weakref.ref(tensor))
        else:
            leaf = tensor.requires_grad and tensor.is_leaf
            known = Value(WEIGHT if leaf else INPUT, "", alive=weakref.ref(tensor))
        self.known[key] = known
        return known

    def written(self, op: int, tensors: Iterable[torch.Tensor]) -> None:
        """Forget what was known of the content of what `op` wrote into; a parameter stays that parameter."""
        for tensor in tensors:
            value = self.known.get(storage_key(tensor))
            if value is not None:
                value.views, value.op = {}, op
                if value.cast is not None:
                    value.cast = None
                    value.what = ACTIVATION


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


def copied(args: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return which tensors `copy_` and `_foreach_copy_` write in which of another floating dtype, all the same way."""
    pairs = [
        (source, target)
        for target, source in zip(tensors_of(args[:1]), tensors_of(args[1:2]), strict=False)
        if source.dtype is not target.dtype and source.is_floating_point() and target.is_floating_point()
    ]
    return [pair for pair in pairs if [one.dtype for one in pair] == [one.dtype for one in pairs[0]]]


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
