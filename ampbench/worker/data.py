"""A network's data: placed batches, drawn weights and inputs, further batches, losses.

Weights and inputs outlive a torch version: every tensor of a built-in workload is drawn by name from NumPy's Philox
generator, whose raw stream NumPy promises not to change, and turned into fp32 by arithmetic of our own; torch only
receives the values. A batch is a prefix of every larger one, because the batch size is not part of the key. Source of
the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import contextlib
import copy
import dataclasses
import functools
import hashlib
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ampbench.records.case import ParameterValue
from ampbench.trace.dtypes import HALVES
from ampbench.workload import Workload


def batches_of(inputs: object) -> list[Any]:
    """Return `inputs` as a list of batches: a list is one already."""
    return inputs if isinstance(inputs, list) else [inputs]


def stored_dtype(dtype: torch.dtype, storage: torch.dtype) -> torch.dtype:
    """Return the dtype of a stored tensor of `dtype` where floating ones are stored in `storage`.

    Complex tensors become complex128 in fp64 and otherwise stay, as in `Module.half`; so do integers.
    """
    if dtype.is_complex:
        return torch.complex128 if storage is torch.float64 else dtype
    return storage if dtype.is_floating_point else dtype


def is_loaded_low(module: torch.nn.Module) -> bool:
    """Return whether a network was loaded in half: its trained weights decide, or all if none is trained."""
    weights = list(module.parameters())
    return any(
        weight.dtype in HALVES for weight in [trained for trained in weights if trained.requires_grad] or weights
    )


def in_fp32(module: torch.nn.Module) -> None:
    """Upcast weights and buffers in half of a network that `is_loaded_low`."""
    if is_loaded_low(module):
        module._apply(lambda tensor: tensor.float() if tensor.dtype in HALVES else tensor)  # type: ignore[no-untyped-call]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's class keeps its values in inner tensors, as quantized weights do."""
    return hasattr(tensor, "__tensor_flatten__")


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the inner tensors of a tensor that `is_wrapper`; any other tensor alone."""
    if not is_wrapper(tensor):
        return [tensor]
    inner = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])  # type: ignore[attr-defined]
    return [part for held in inner if isinstance(held, torch.Tensor) for part in plain_parts(held)]


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that a tensor of any class and layout stores."""
    match tensor.layout:
        case torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        case torch.sparse_csr | torch.sparse_bsr:
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        case torch.sparse_csc | torch.sparse_bsc:
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        case torch.jagged:
            return [tensor.values()]
    return plain_parts(tensor)


def in_batches(data: tuple[Any, Any], samples: int) -> list[tuple[Any, Any]]:
    """Return inputs and targets, whose tensors are all ordered by sample, in batches of `samples`; [] for others.

    An incomplete last batch is dropped.
    """
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors_of(data)}
    if len(lengths) != 1:
        return []
    (length,) = lengths

    def part(start: int) -> tuple[Any, Any]:
        inputs, targets = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor[start : start + samples], data)
        return inputs, targets

    return [part(at) for at in range(0, length - samples + 1, samples)]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in `tree`, in order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


Place = Callable[[Any], Any]
"""Returns a copy of a tree of tensors on the network's device."""


class Data:
    """Copies of a workload's batches and their targets on the network's device, and the tensors that steps change.

    `given` are the workload's batches, which `place_inputs` and `place_targets` copy. `seen` are the batches that ran
    since the last restore: all of them, unless steps are `counted`, as in training. `weights`, a network and its
    original, must not change either, as in inference. `changed` names the tensors that steps change nevertheless (None:
    not checked yet).
    """

    def __init__(self, workload: Workload, place_inputs: Place, place_targets: Place, *, counted: bool) -> None:
        self.given = pairs_of(workload)
        self.batches = [place_inputs(batch) for batch, _ in self.given]
        self.targets = [place_targets(targets) for _, targets in self.given]
        self.place_inputs, self.place_targets, self.counted = place_inputs, place_targets, counted
        self.weights: tuple[torch.nn.Module, torch.nn.Module] | None = None
        self.seen: set[int] = set()
        self.changed: list[str] | None = None
        self.learned = [leaf for leaf in tensors_of(self.batches) if leaf.requires_grad]
        """The tensors of the batches that require a gradient."""

    def placed(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return copies of another batch and its targets, placed like these."""
        return self.place_inputs(inputs), self.place_targets(targets)

    def changed_in_place(self, known: Sequence[str] | None = None) -> list[str]:
        """Return the names of the tensors that steps change in place but must not; call it after a step.

        These are inputs and targets and, in inference, weights and buffers. The check runs once, and not at all where
        the result is `known` from another build; afterwards all values are restored.
        """
        if self.changed is None and known is not None:
            self.changed = list(known)
        self.renew()
        self.changed = self.changed or []
        return self.changed

    def renew(self) -> None:
        """Restore the tensors that steps change in place, hidden from modes that watch a step's ops."""
        with torch.no_grad(), _disable_current_modes():
            ran = sorted(self.seen) if self.counted else list(range(len(self.batches)))
            if self.changed is None:
                names = [
                    f"{kind}{place}"
                    for turn in ran
                    for kind, copied, original in (
                        ("input", self.batches[turn], self.given[turn][0]),
                        ("target", self.targets[turn], self.given[turn][1]),
                    )
                    for place in differing(copied, original)
                ]
                names += [name for name, tensor, original in self._weights() if differs(tensor, original)]
                self.changed = list(dict.fromkeys(names)) or ([] if self.seen else None)
            if not self.changed:
                return
            for turn in ran:
                tensors = tensors_of([self.batches[turn], self.targets[turn]])
                for tensor, original in zip(tensors, tensors_of(list(self.given[turn])), strict=False):
                    if tensor.grad_fn is not None:  # a weight was added to it in place
                        tensor.detach_()
                    tensor.copy_(original)
            for _, tensor, original in self._weights():
                made_anew = tensor.is_inference()
                with torch.inference_mode() if made_anew else contextlib.nullcontext():
                    tensor.copy_(original)
        self.seen.clear()

    def _weights(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the weights and buffers that no step may change, with their originals.

        A buffer whose shape has changed is left out: the network has rebuilt it for its inputs, as with tables of
        positions.
        """
        if self.weights is None:
            return
        module, original = self.weights
        for kind, tensors, original_tensors in (
            ("weight", module.named_parameters(), original.named_parameters()),
            ("buffer", module.named_buffers(), original.named_buffers()),
        ):
            originals = dict(original_tensors)
            for name, tensor in tensors:
                if name in originals and originals[name].shape == tensor.shape and not is_wrapper(tensor):
                    yield f"{kind} {name}", tensor, originals[name]


def placed(tree: Any, storage: torch.dtype, where: Mapping[str, Any], *, channels_last: bool) -> Any:
    """Return a copy of `tree` on the device, in the dtypes of `stored_dtype`.

    Leaves that require a gradient still do: a network may differentiate by its inputs. `where` are further arguments of
    `Tensor.to`: the device, unless the tensors are there already.
    """

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        layout = torch.channels_last if channels_last and leaf.ndim == 4 else torch.preserve_format
        dtype = stored_dtype(leaf.dtype, storage)
        moved = leaf.detach().to(dtype=dtype, copy=True, memory_format=layout, **where)
        return moved.requires_grad_(leaf.requires_grad and leaf.is_leaf)

    return pytree.tree_map(place, tree)


def differing(tree: Any, original: Any) -> list[str]:
    """Return the places in `tree`, a copy by `placed` of `original`, where tensors have other values.

    A tensor alone is at "". Sparse and nested tensors are skipped.
    """
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [
        pytree.keystr(path)
        for (path, leaf), expected in zip(leaves, pytree.tree_leaves(original), strict=False)
        if isinstance(leaf, torch.Tensor) and isinstance(expected, torch.Tensor) and differs(leaf, expected)
    ]


def differs(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether `tensor`, a copy of `original` that may have another dtype, has other values; NaN equals NaN."""
    if any(side.layout is not torch.strided or side.is_nested or is_wrapper(side) for side in (tensor, original)):
        return False
    value, expected = tensor.detach(), original.detach().to(tensor.device, tensor.dtype)
    return not torch.equal(value, expected) and (
        value.shape != expected.shape or not bool(((value == expected) | (value.isnan() & expected.isnan())).all())
    )


def bound(forward: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    """Return `forward` called with `batch`."""
    args, kwargs = called_with(batch)
    return functools.partial(forward, *args, **kwargs)


def called_with(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `batch` as arguments: a tuple is positional, a dict by name, anything else a single argument."""
    if isinstance(batch, tuple):
        return batch, {}
    return ((), batch) if isinstance(batch, dict) else ((batch,), {})


CHUNK_WORDS = 1 << 16
"""Words drawn at a time: half a mebibyte, which stays in a core's second-level cache."""


class Generator:
    """Draws tensors that depend only on workload, version, parameters, seed and the tensor's name."""

    def __init__(self, workload: str, version: int, parameters: Mapping[str, ParameterValue], seed: int):
        settings = {name: value for name, value in sorted(parameters.items()) if name != "batch_size"}
        self._key = json.dumps([workload, version, settings, seed])

    def uniform(self, name: str, shape: tuple[int, ...], rms: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        """Return fp32 values of this `shape`, uniform around `mean` with the standard deviation `rms`."""
        values = np.empty(math.prod(shape), np.float32)
        scale, lowest = np.float32(2.0**-23 * math.sqrt(3.0) * rms), np.float32(mean - math.sqrt(3.0) * rms)
        start = 0
        for words in self._words(name, (len(values) + 1) // 2):
            part = values[start : start + 2 * len(words)]
            part[:] = words.view(np.uint32)[: len(part)] >> np.uint32(8)  # 24 bits: every value is exact in fp32
            part *= scale
            part += lowest
            start += len(part)
        return torch.from_numpy(values.reshape(shape))

    def integers(self, name: str, shape: tuple[int, ...], high: int) -> torch.Tensor:
        """Return int64 values uniform in [0, `high`); `high` is far below 2**32, so the modulo's bias is nil."""
        values = np.empty(math.prod(shape), np.int64)
        start = 0
        for words in self._words(name, len(values)):
            values[start : start + len(words)] = words % np.uint64(high)
            start += len(words)
        return torch.from_numpy(values.reshape(shape))

    def fill(self, module: torch.nn.Module, initial: Callable[[str, torch.Tensor], torch.Tensor | float]) -> None:
        """Set every parameter and buffer of `module` to the result of `initial(name, tensor)`.

        A module on the meta device first gets storage on the CPU. Parameters shared under several names are filled
        once, under the first.
        """
        if any(tensor.is_meta for _, tensor in named_tensors(module)):
            module.to_empty(device="cpu")
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                value = initial(name, tensor)
                if isinstance(value, torch.Tensor):
                    tensor.copy_(value)
                else:
                    tensor.fill_(value)

    def _words(self, name: str, count: int) -> Iterator["np.ndarray[tuple[int], np.dtype[np.uint64]]"]:
        """Yield the first `count` words of the stream called `name`, in chunks."""
        key = hashlib.sha256(f"{self._key}\n{name}".encode()).digest()
        philox = np.random.Philox(key=int.from_bytes(key[:16], "little"))
        for start in range(0, count, CHUNK_WORDS):
            yield philox.random_raw(min(CHUNK_WORDS, count - start))


class InputsOnly(Generator):
    """Draws inputs and targets, and leaves weights unchanged."""

    def fill(self, module: torch.nn.Module, initial: Callable[[str, torch.Tensor], torch.Tensor | float]) -> None:
        """Do nothing."""


def named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every parameter and buffer of `module` once, by its first name."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def digest(tensors: Iterator[tuple[str, torch.Tensor]]) -> str:
    """Return a 16-digit digest of names, dtypes, shapes and bytes of `tensors` (on CPU)."""
    sha = hashlib.sha256()
    for name, tensor in tensors:
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for part in plain_parts(tensor):
            data = part.detach().cpu().contiguous().reshape(-1)
            if data.numel():
                sha.update(data.view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]


def weights_digest(workload: Workload) -> str:
    """Return the digest of the workload's fp32 parameters and buffers."""
    return digest(named_tensors(workload.module))


def inputs_digest(workload: Workload) -> str:
    """Return the digest of the workload's inputs and targets."""
    leaves = pytree.tree_leaves([workload.inputs, workload.targets])
    return digest((str(place), leaf) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))


SAME_INPUTS = "the workload has no further batch, and its inputs do not depend on the seed"

Batch = tuple[Any, Any]
"""Inputs and targets."""
Larger = Callable[[int], Sequence[Batch]]
"""Returns this many further batches from a larger one, always in the same order; fewer where there are no more."""
Rebuilt = Callable[[int], Workload]
"""Builds a workload again with this much added to the seed."""


class FreshBatches:
    """The fresh batches of a workload, always in the same order.

    First the workload's own: all but the first of its list, then held-out data in full batches of `samples` (None:
    unknown, none). Then those of `larger`, which builds no weights. Then, one by one, the inputs of `rebuilt` with
    other seeds (None: none).
    """

    def __init__(
        self, workload: Workload, samples: int | None, *, larger: Larger | None = None, rebuilt: Rebuilt | None = None
    ):
        self._workload, self._larger, self._rebuilt = workload, larger, rebuilt
        self._own = pairs_of(workload)[1:]
        if workload.held_out is not None and samples:
            self._own += in_batches(workload.held_out, samples)

    def first(self, count: int) -> Sequence[Batch]:
        """Return the first `count` batches, or all without another seed."""
        lacking = count - len(self._own)
        more = self._larger(lacking) if self._larger is not None and lacking > 0 else ()
        return [*self._own[:count], *more]

    def workload(self, number: int) -> Workload | None:
        """Return the workload with only its fresh batch of this number, from 1; None where there is none.

        Weights, loss and optimizer stay. Raises any error of building it again.
        """
        batches = self.first(number)
        if number > len(batches):
            rebuilt = self._rebuilt(number - len(batches)) if self._rebuilt is not None else self._workload
            if inputs_digest(rebuilt) == inputs_digest(self._workload):
                return None
            batches = pairs_of(rebuilt)[:1]
        inputs, targets = batches[-1]
        return dataclasses.replace(self._workload, inputs=inputs, targets=targets)


def pairs_of(workload: Workload) -> list[Batch]:
    """Return the batches of a workload with their targets."""
    batches = batches_of(workload.inputs)
    several = isinstance(workload.inputs, list) and workload.targets
    targets = workload.targets if several else [workload.targets] * len(batches)
    return list(zip(batches, targets, strict=True))


Move = Callable[[Any], Any]
"""Returns a copy of a tensor on the step's device, floating ones in the dtype of targets."""

Store = Callable[[torch.nn.Module], None]
"""Moves a module to the step's device, and its weights to the step's storage dtype."""


def carried(loss: Any, copies: dict[int, Any], move: Move, store: Store) -> tuple[Any, list[torch.Tensor]]:
    """Return `loss` with copies of its modules and tensors, moved and cast like targets; and the copies.

    These are a function's closure, defaults and global variables, the contents of a `partial`, a bound method or
    another object, at any depth of lists, tuples and dicts; the loss may itself be a module. `copies` maps ids of
    originals to the modules and parameters of the step's network, so that a penalty on weights uses the trained ones;
    it is added to. A value without tensors is returned unchanged; so are torch's own objects and containers of more
    than `MOST_ITEMS`.
    """
    carrier = _Carrier(copies, move, store)
    return carrier.carry(loss), carrier.held


MOST_ITEMS = 10_000
"""A larger container holds data, not weights, and would take too long to search."""


class _Carrier:
    def __init__(self, copies: dict[int, Any], move: Move, store: Store):
        self._copies, self._move, self._store = copies, move, store
        self._kept: list[Any] = []  # keeps objects alive, and so their ids unique
        self.held: list[torch.Tensor] = []

    def carry(self, value: Any) -> Any:
        """Return a value with copies of its tensors and modules, or the value itself where it has none."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if not isinstance(value, torch.Tensor | torch.nn.Module | list | tuple | dict) and not _may_hold(value):
            return value
        self._kept.append(value)
        self._copies[id(value)] = value  # for objects that contain themselves
        carried_value = self._copies[id(value)] = self._copy(value)
        return carried_value

    def _copy(self, value: Any) -> Any:
        match value:
            case torch.nn.Module():
                del self._copies[id(value)]
                module = copy.deepcopy(value, self._copies)
                self._store(module)
                self.held += [*module.parameters(), *module.buffers()]
                return module
            case torch.Tensor():
                self.held.append(self._move(value))
                return self.held[-1]
            case dict():
                items = self._carry_all(value.values())
                return value if items is None else _like(value, dict(zip(value, items, strict=True)))
            case list() | tuple():
                items = self._carry_all(value)
                return value if items is None else _like(value, items)
            case functools.partial():
                func, args, keywords = (self.carry(part) for part in (value.func, value.args, value.keywords))
                held = (func, args, keywords)
                same = all(a is b for a, b in zip(held, (value.func, value.args, value.keywords), strict=True))
                return value if same else functools.partial(func, *args, **keywords)
            case types.MethodType():
                owner = self.carry(value.__self__)
                return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
            case types.FunctionType():
                return self._function(value)
        items = self._carry_all(vars(value).values())
        if items is None:
            return value
        carried_object = copy.copy(value)
        vars(carried_object).update(zip(vars(value), items, strict=True))
        return carried_object

    def _carry_all(self, values: Any) -> list[Any] | None:
        """Return the carried values; None where all are unchanged."""
        before = list(values)
        if len(before) > MOST_ITEMS:
            return None
        after = [self.carry(value) for value in before]
        return None if all(old is new for old, new in zip(before, after, strict=True)) else after

    def _function(self, function: types.FunctionType) -> Any:
        cells = [cell for cell in function.__closure__ or () if cell != types.CellType()]  # empty ones are equal
        contents = self._carry_all(cell.cell_contents for cell in cells)
        defaults, keywords = self.carry(function.__defaults__), self.carry(function.__kwdefaults__)
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        named = {  # of a module's variables: tensors, networks and a user's functions
            name: value
            for name, value in named.items()
            if isinstance(value, torch.Tensor | torch.nn.Module)
            or (
                isinstance(value, types.FunctionType)
                and value.__module__.partition(".")[0] not in {"torch", "ampbench"}
            )
        }
        variables = self._carry_all(named.values())
        if (
            contents is None
            and variables is None
            and defaults is function.__defaults__
            and keywords is function.__kwdefaults__
        ):
            return function
        filled = dict(zip(map(id, cells), contents or [], strict=False))
        closure = tuple(
            types.CellType(filled[id(cell)]) if id(cell) in filled else cell for cell in function.__closure__ or ()
        )
        surroundings = function.__globals__
        if variables is not None:
            surroundings = {**surroundings, **dict(zip(named, variables, strict=True))}
        carried_function = types.FunctionType(function.__code__, surroundings, function.__name__, defaults, closure)
        carried_function.__kwdefaults__ = keywords
        carried_function.__dict__.update(function.__dict__)
        return carried_function


def _may_hold(value: Any) -> bool:
    """Return whether a value that is no tensor, module or container may hold some: a function, or a user's object."""
    if isinstance(value, types.MethodType | functools.partial):
        return True
    if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
        return False
    home = value.__module__ if isinstance(value, types.FunctionType) else type(value).__module__
    return (home or "").partition(".")[0] not in {"torch", "builtins", "numpy", "random"}


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _like(value: Any, items: Any) -> Any:
    if isinstance(value, dict):
        mapping = copy.copy(value)
        mapping.update(items)
        return mapping
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
