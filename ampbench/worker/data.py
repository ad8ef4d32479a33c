"""What a network is fed and judged by: batches where it takes them, drawn weights and inputs, further batches, losses.

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
    """Return the dtype in which a tensor of `dtype` is stored where floating ones are in `storage`.

    Complex tensors are twice as wide in fp64, and as they are else, as `Module.half` leaves them; so are integers.
    """
    if dtype.is_complex:
        return torch.complex128 if storage is torch.float64 else dtype
    return storage if dtype.is_floating_point else dtype


def is_loaded_low(module: torch.nn.Module) -> bool:
    """Return whether a network comes in half: frozen weights in half are meant, beside trained ones in fp32."""
    weights = list(module.parameters())
    return any(weight.dtype in HALVES for weight in [one for one in weights if one.requires_grad] or weights)


def in_fp32(module: torch.nn.Module) -> None:
    """Upcast weights and buffers in half of a network that `is_loaded_low`."""
    if is_loaded_low(module):
        module._apply(lambda tensor: tensor.float() if tensor.dtype in HALVES else tensor)  # type: ignore[no-untyped-call]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a class that keeps its values in tensors of its own, as quantized weights do."""
    return hasattr(tensor, "__tensor_flatten__")


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that one that `is_wrapper` keeps its values in; any other alone."""
    if not is_wrapper(tensor):
        return [tensor]
    own = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])  # type: ignore[attr-defined]
    return [part for held in own if isinstance(held, torch.Tensor) for part in plain_parts(held)]


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
    """Return inputs and targets, whose tensors all lie sample by sample, in batches of so many; [] for others.

    What is left over is no batch.
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
"""Returns a copy of a tree of tensors where a network takes them."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class Data:
    """The batches of a case and their targets, where its network takes them, and what steps change of them in place.

    `given` are the workload's own, which `place_inputs` and `place_targets` copied. `seen` are the batches that ran
    since all was as it was given: all of them, unless steps are `counted`, as in training. `weights`, a network and
    that which it is a copy of, are what else no step may change, as in inference. `changed` names what steps change
    nevertheless (None: it was not looked for yet).
    """

    batches: list[Any]
    targets: list[Any]
    given: list[tuple[Any, Any]]
    place_inputs: Place
    place_targets: Place
    counted: bool
    weights: tuple[torch.nn.Module, torch.nn.Module] | None = None
    seen: set[int] = dataclasses.field(default_factory=set)
    changed: list[str] | None = None
    learned: list[torch.Tensor] = dataclasses.field(init=False)
    """The tensors of the batches that require a gradient."""

    def __post_init__(self) -> None:
        self.learned = [leaf for leaf in tensors_of(self.batches) if leaf.requires_grad]

    def placed(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return copies of another batch and its targets, placed as these are."""
        return self.place_inputs(inputs), self.place_targets(targets)

    def changed_in_place(self, known: Sequence[str] | None = None) -> list[str]:
        """Return what steps change in place that is not theirs to change, by its name; to be asked after a step.

        That is inputs and targets and, in inference, weights and buffers. It is looked for once, and not where it is
        `known` of another build; after that, and for the next step, all is as it was given.
        """
        if self.changed is None and known is not None:
            self.changed = list(known)
        self.renew()
        self.changed = self.changed or []
        return self.changed

    def renew(self) -> None:
        """Put back what steps change in place, if they do, unseen by whoever watches the ops of a step."""
        with torch.no_grad(), _disable_current_modes():
            if self.changed is None:
                self.changed = self._differing() or ([] if self.seen else None)
            if not self.changed:
                return
            for turn in self._ran():
                own = tensors_of([self.batches[turn], self.targets[turn]])
                for tensor, given in zip(own, tensors_of(list(self.given[turn])), strict=False):
                    put_back(tensor, given)
            for _, tensor, given in self._weights():
                made_anew = tensor.is_inference()
                with torch.inference_mode() if made_anew else contextlib.nullcontext():
                    tensor.copy_(given)
        self.seen.clear()

    def _ran(self) -> list[int]:
        """Return which batches may have run."""
        return sorted(self.seen) if self.counted else list(range(len(self.batches)))

    def _differing(self) -> list[str]:
        """Return the names of what does not hold the values that it was given; of batches, those that ran are asked."""
        found = [
            f"{what}{place}"
            for turn in self._ran()
            for what, own, given in (
                ("input", self.batches[turn], self.given[turn][0]),
                ("target", self.targets[turn], self.given[turn][1]),
            )
            for place in differing(own, given)
        ]
        found += [name for name, tensor, given in self._weights() if differs(tensor, given)]
        return list(dict.fromkeys(found))

    def _weights(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yield the weights and buffers that no step may change, as they are and as they were given.

        A buffer of another shape than it was given is none of them: the network has made it anew for its inputs, as
        tables of positions are, and keeps it for the next step.
        """
        if self.weights is None:
            return
        module, original = self.weights
        for kind, own, given in (
            ("weight", module.named_parameters(), original.named_parameters()),
            ("buffer", module.named_buffers(), original.named_buffers()),
        ):
            originals = dict(given)
            for name, tensor in own:
                if name in originals and originals[name].shape == tensor.shape and not is_wrapper(tensor):
                    yield f"{kind} {name}", tensor, originals[name]


def place_data(workload: Workload, place_inputs: Place, place_targets: Place, *, counted: bool) -> Data:
    """Return copies of all batches of a workload and their targets; steps are `counted` or not."""
    given = pairs_of(workload)
    return Data(
        batches=[place_inputs(batch) for batch, _ in given],
        targets=[place_targets(targets) for _, targets in given],
        given=given,
        place_inputs=place_inputs,
        place_targets=place_targets,
        counted=counted,
    )


def placed(tree: Any, storage: torch.dtype, where: Mapping[str, Any], *, channels_last: bool) -> Any:
    """Return a copy of `tree` on the device, in the dtypes of `stored_dtype`.

    Leaves of a graph that require a gradient still do: a network may differentiate by its inputs.

    `where` are further arguments of `Tensor.to`: the device, unless the tensors lie there already.
    """

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        layout = torch.channels_last if channels_last and leaf.ndim == 4 else torch.preserve_format
        dtype = stored_dtype(leaf.dtype, storage)
        there = leaf.detach().to(dtype=dtype, copy=True, memory_format=layout, **where)
        return there.requires_grad_(leaf.requires_grad and leaf.is_leaf)

    return pytree.tree_map(place, tree)


def differing(tree: Any, original: Any) -> list[str]:
    """Return where in `tree`, a copy by `placed` of `original`, tensors no longer hold the values they were given.

    A tensor alone is at "". Tensors that are sparse or nested are not looked at.
    """
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [
        pytree.keystr(path)
        for (path, leaf), given in zip(leaves, pytree.tree_leaves(original), strict=False)
        if isinstance(leaf, torch.Tensor) and isinstance(given, torch.Tensor) and differs(leaf, given)
    ]


def differs(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether `tensor`, a copy of `original` that may have another dtype, holds other values; NaN is NaN."""
    if any(one.layout is not torch.strided or one.is_nested or is_wrapper(one) for one in (tensor, original)):
        return False
    value, given = tensor.detach(), original.detach().to(tensor.device, tensor.dtype)
    return not torch.equal(value, given) and (
        value.shape != given.shape or not bool(((value == given) | (value.isnan() & given.isnan())).all())
    )


def put_back(tensor: torch.Tensor, original: torch.Tensor) -> None:
    """Give `tensor`, a copy of `original` that may have another dtype, its values again, in place."""
    if tensor.grad_fn is not None:  # a weight was added to it in place
        tensor.detach_()
    with torch.no_grad():
        tensor.copy_(original)


def bound(forward: Callable[..., Any], batch: Any) -> Callable[[], Any]:
    """Return `forward` called with `batch`."""
    args, kwargs = called_with(batch)
    return functools.partial(forward, *args, **kwargs)


def called_with(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `batch` as arguments: a tuple is positional, a dict by name, anything else the one argument."""
    if isinstance(batch, tuple):
        return batch, {}
    return ((), batch) if isinstance(batch, dict) else ((batch,), {})


CHUNK_WORDS = 1 << 16
"""Words drawn at a time: half a mebibyte, which stays in a core's second-level cache while it becomes values."""


class Generator:
    """Draws tensors that depend on nothing but workload, version, parameters, seed and the tensor's name."""

    def __init__(self, workload: str, version: int, parameters: Mapping[str, ParameterValue], seed: int):
        settings = {name: value for name, value in sorted(parameters.items()) if name != "batch_size"}
        self._key = json.dumps([workload, version, settings, seed])

    def uniform(self, name: str, shape: tuple[int, ...], rms: float = 1.0, mean: float = 0.0) -> torch.Tensor:
        """Return fp32 values uniform around `mean` with the standard deviation `rms`; `shape` as given."""
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
        """Return int64 values uniform in [0, `high`); `high` is far below 2**32, so that the modulo's bias is nil."""
        values = np.empty(math.prod(shape), np.int64)
        start = 0
        for words in self._words(name, len(values)):
            values[start : start + len(words)] = words % np.uint64(high)
            start += len(words)
        return torch.from_numpy(values.reshape(shape))

    def fill(self, module: torch.nn.Module, initial: Callable[[str, torch.Tensor], torch.Tensor | float]) -> None:
        """Give every parameter and buffer of `module` its value: what `initial(name, tensor)` returns.

        A module built on the meta device is given storage on CPU first. Parameters shared under several names are
        filled once, under the first.
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
    """Draws inputs and targets, and leaves weights as they are."""

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


SAME_INPUTS = "the workload has no further batch, and its inputs are the same whatever the seed"

Batch = tuple[Any, Any]
"""Inputs and targets."""
Larger = Callable[[int], Sequence[Batch]]
"""Gives so many further batches from a larger one, the same first each time; fewer where there are no more."""
Rebuilt = Callable[[int], Workload]
"""Builds a workload anew, with a seed that is so much larger."""


class FreshBatches:
    """The fresh batches of a workload, always in the same order.

    First come its own: of its list all but the first, then held-out data in batches of as many `samples` as the first
    has (None: unknown, held-out data are none); what is left over is none. Then come those that `larger` gives, which
    makes no weights, then, one by one, the inputs that `rebuilt` has from other seeds; None: there are none of these.
    """

    def __init__(
        self, workload: Workload, samples: int | None, *, larger: Larger | None = None, rebuilt: Rebuilt | None = None
    ):
        self._workload, self._larger, self._rebuilt = workload, larger, rebuilt
        self._own = pairs_of(workload)[1:]
        if workload.held_out is not None and samples:
            self._own += in_batches(workload.held_out, samples)

    def first(self, count: int) -> Sequence[Batch]:
        """Return the first `count`, or as many as there are without another seed."""
        lacking = count - len(self._own)
        more = self._larger(lacking) if self._larger is not None and lacking > 0 else ()
        return [*self._own[:count], *more]

    def workload(self, number: int) -> Workload | None:
        """Return the workload with its fresh batch of this number, from 1, alone; None where there is none.

        The weights, loss and optimizer are its own. Raises what building it anew raises.
        """
        given = self.first(number)
        if number > len(given):
            other = self._rebuilt(number - len(given)) if self._rebuilt is not None else self._workload
            if inputs_digest(other) == inputs_digest(self._workload):
                return None
            given = pairs_of(other)[:1]
        inputs, targets = given[-1]
        return dataclasses.replace(self._workload, inputs=inputs, targets=targets)


def pairs_of(workload: Workload) -> list[Batch]:
    """Return the batches of a workload with their targets."""
    batches = batches_of(workload.inputs)
    several = isinstance(workload.inputs, list) and workload.targets
    targets = workload.targets if several else [workload.targets] * len(batches)
    return list(zip(batches, targets, strict=True))


Move = Callable[[Any], Any]
"""Returns a copy of a tensor on the device of the step, floating ones in the dtype of targets."""

Store = Callable[[torch.nn.Module], None]
"""Brings a module to the device of the step, and its weights into the dtype that the step's are stored in."""


def carried(loss: Any, copies: dict[int, Any], move: Move, store: Store) -> tuple[Any, list[torch.Tensor]]:
    """Return `loss` with copies of the modules and tensors that it holds, moved and cast as targets are; and these.

    They are what a function closes over, has as defaults or names among its module's variables, what a `partial`, a
    bound method or another object has been given, at any depth of lists, tuples and dicts; the loss itself may be a
    module. `copies` has, by the ids of the originals, the modules and parameters of the step's network, so that a loss
    that asks these (a penalty on weights) asks those that are trained; it is added to. What holds nothing is returned
    as it is, and so are torch's own objects and containers of more than `MOST_ITEMS`.
    """
    carrier = _Carrier(copies, move, store)
    return carrier.carry(loss), carrier.held


MOST_ITEMS = 10_000
"""A container of more items is data of another kind than weights, and looking at each would take too long."""


class _Carrier:
    def __init__(self, copies: dict[int, Any], move: Move, store: Store):
        self._copies, self._move, self._store = copies, move, store
        self._kept: list[Any] = []  # ids are of objects that live
        self.held: list[torch.Tensor] = []

    def carry(self, value: Any) -> Any:
        """Return a value with copies of what it holds, or itself where it holds nothing."""
        if id(value) in self._copies:
            return self._copies[id(value)]
        if not isinstance(value, torch.Tensor | torch.nn.Module | list | tuple | dict) and not _may_hold(value):
            return value
        self._kept.append(value)
        self._copies[id(value)] = value  # while it is looked at, for what holds itself
        made = self._copies[id(value)] = self._made(value)
        return made

    def _made(self, value: Any) -> Any:
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
                items = self._each(value.values())
                return value if items is None else _like(value, dict(zip(value, items, strict=True)))
            case list() | tuple():
                items = self._each(value)
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
        return self._object(value)

    def _each(self, values: Any) -> list[Any] | None:
        """Return what the values become; None where all are as they were."""
        before = list(values)
        if len(before) > MOST_ITEMS:
            return None
        after = [self.carry(value) for value in before]
        return None if all(one is other for one, other in zip(before, after, strict=True)) else after

    def _function(self, function: types.FunctionType) -> Any:
        cells = [cell for cell in function.__closure__ or () if _full(cell)]
        contents = self._each(cell.cell_contents for cell in cells)
        defaults, keywords = self.carry(function.__defaults__), self.carry(function.__kwdefaults__)
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        named = {name: value for name, value in named.items() if _is_plainly_held(value)}
        variables = self._each(named.values())
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
        made = types.FunctionType(function.__code__, surroundings, function.__name__, defaults, closure)
        made.__kwdefaults__ = keywords
        made.__dict__.update(function.__dict__)
        return made

    def _object(self, value: Any) -> Any:
        attributes = vars(value)
        items = self._each(attributes.values())
        if items is None:
            return value
        made = copy.copy(value)
        vars(made).update(zip(attributes, items, strict=True))
        return made


def _may_hold(value: Any) -> bool:
    """Return whether a value that is no tensor, module or container may hold some: a function, or a user's object."""
    if isinstance(value, types.MethodType | functools.partial):
        return True
    if isinstance(value, type | types.ModuleType) or not hasattr(value, "__dict__"):
        return False
    home = value.__module__ if isinstance(value, types.FunctionType) else type(value).__module__
    return (home or "").partition(".")[0] not in {"torch", "builtins", "numpy", "random"}


def _is_plainly_held(value: Any) -> bool:
    """Return whether a variable of a module is looked into: a tensor, a network, or a user's function."""
    return isinstance(value, torch.Tensor | torch.nn.Module) or (
        isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] not in {"torch", "ampbench"}
    )


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code, and functions within it, may look up among its module's variables."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _full(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _like(value: Any, items: Any) -> Any:
    """Return `items` as another of the class of `value`."""
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update(items)
        return made
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
