"""`watch_ranges`: how large the values of a network are while anyone's fp32 code runs it, module by module.

Magnitudes are exact histograms by binary exponent, in two passes over the bits. For each channel or row that a
normalisation takes statistics over, the largest magnitude is counted (`count_together`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ampbench.records.ranges import ACTIVATION, GRADIENT, INPUT, UPDATE, WEIGHT, Magnitudes, Swallowed
from ampbench.trace.dtypes import HALVES, short_dtype
from ampbench.trace.modules import ModuleRun, module_paths, tensors_in, version, watch_runs

_SPREAD = 3
"""Mantissa bits that are counted apart and then put together: most values share few exponents, and a counter that is
incremented again at once waits for its own last write."""

_FEW = 1 << 12
"""Up to this number of elements, merging counters costs more than the waiting."""

_CHUNK = {"cpu": 1 << 18}
"""Elements counted at a time, so that the copies stay in the cache; on other devices `_LARGE`, to save launches."""

_LARGE = 1 << 24

SMALL = -25
"""Powers of two are counted apart up to this exponent: the largest magnitude that fp16 rounds to zero is one."""


_LOOK = 1 << 12
"""So many elements of a chunk are looked at for powers of two, before all are."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The bits of a floating dtype: the integer of its width, of how many bits the mantissa is, the exponent's bias."""

    integer: torch.dtype
    mantissa: int
    bias: int

    @property
    def infinity(self) -> int:
        """The bits of +inf; a NaN has larger ones."""
        return (2 * self.bias + 1) << self.mantissa


LAYOUTS = {torch.float32: _Layout(torch.int32, 23, 127), torch.float64: _Layout(torch.int64, 52, 1023)}


@dataclass(slots=True)
class Counts:
    """The magnitudes of `elements` values.

    `exponents[e]` of them have 2**e <= |x| < 2**(e + 1), `zeros` are zero, `nonfinite` infinite or NaN; `largest` is
    the largest finite |x| (None: none is finite). `powers[e]` of `exponents[e]`, for e up to `SMALL`, are 2**e exactly;
    of large tensors those are left out of which not one is among a few thousand values, evenly spaced.
    """

    elements: int = 0
    zeros: int = 0
    nonfinite: int = 0
    largest: float | None = None
    exponents: Counter[int] = field(default_factory=Counter)
    powers: Counter[int] = field(default_factory=Counter)

    def add(self, added: "Counts") -> None:
        """Put the values of `other` to these."""
        self.elements += added.elements
        self.zeros += added.zeros
        self.nonfinite += added.nonfinite
        self.exponents.update(added.exponents)
        self.powers.update(added.powers)
        if added.largest is not None:
            self.largest = added.largest if self.largest is None else max(self.largest, added.largest)


def count_magnitudes(tensor: torch.Tensor) -> Counts:
    """Return the magnitudes of a floating tensor of any dtype, shape, layout and device, subnormals included.

    Exact: nothing is sampled, and no value is rounded. What a sparse tensor does not store is zero.
    """
    counts = count_chunks(in_chunks(flat(tensor.detach())))
    if not tensor.is_nested and tensor.numel() > counts.elements:
        absent = tensor.numel() - counts.elements
        counts.add(Counts(elements=absent, zeros=absent, largest=0.0))
    return counts


def count_chunks(chunks: Iterable[torch.Tensor]) -> Counts:
    """Return the magnitudes of floating tensors of one dimension, put together; none may be empty."""
    counts = Counts()
    for chunk in chunks:
        _count(chunk if chunk.dtype in LAYOUTS else chunk.float(), counts)  # every narrower dtype fits into fp32
    return counts


def in_chunks(values: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return a tensor of one dimension in parts of a size that is quick to work on, as views."""
    size = _CHUNK.get(values.device.type, _LARGE)
    return [values[start : start + size] for start in range(0, len(values), size)]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in one dimension, in memory order, without a copy where they are dense."""
    if tensor.is_nested:
        return tensor.values()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.reshape(-1)


def _count(values: torch.Tensor, counts: Counts) -> None:
    layout, elements = LAYOUTS[values.dtype], len(values)
    bits = _magnitude_bits(values, layout)
    largest = bits.max().view(values.dtype).item()
    spread = _SPREAD if elements > _FEW else 0
    bits >>= layout.mantissa - spread  # in place: a second copy takes as long to allocate as to fill
    fields = _fields(bits, layout, spread)
    counts.elements += elements
    zeros = 0
    nonfinite = int(fields[-1])
    if nonfinite:
        counts.nonfinite += nonfinite
        finite = _magnitude_bits(values, layout)
        largest = finite.where(finite < layout.infinity, 0).max().view(values.dtype).item()
    if nonfinite < elements:
        counts.largest = largest if counts.largest is None else max(counts.largest, largest)
    if fields[0]:
        # Zeros and subnormals share an exponent field; a subnormal's bits are its value in steps of the smallest one.
        bits = _magnitude_bits(values, layout)
        zeros = elements - int(torch.count_nonzero(bits))
        counts.zeros += zeros
        if zeros < fields[0]:
            small = bits[(bits > 0) & (bits < 1 << layout.mantissa)]
            smallest = 1 - layout.bias - layout.mantissa
            counts.exponents.update((small.double().frexp().exponent + (smallest - 1)).tolist())
            single = small[(small & (small - 1)) == 0]
            counts.powers.update((single.double().frexp().exponent + (smallest - 1)).tolist())
    sample = _magnitude_bits(values[:: -(-elements // _LOOK)], layout)
    least, most = 1 << layout.mantissa, (SMALL + layout.bias) << layout.mantissa
    powers = (sample & (least - 1) == 0) & (sample >= least) & (sample <= most)
    if fields[1 : SMALL + layout.bias + 1].any() and powers.any():
        # One step below a power of two is the exponent below; below zero the bits of a NaN.
        torch.bitwise_and(values.view(layout.integer), torch.iinfo(layout.integer).max, out=bits)
        bits -= 1
        bits &= torch.iinfo(layout.integer).max
        bits >>= layout.mantissa - spread
        moved = zeros + (_fields(bits, layout, spread) - fields)[: SMALL + layout.bias].cumsum()
        places = moved.nonzero()[0]
        counts.powers.update(dict(zip((places + (1 - layout.bias)).tolist(), moved[places].tolist(), strict=True)))
    places = fields[1:-1].nonzero()[0]
    counts.exponents.update(dict(zip((places + (1 - layout.bias)).tolist(), fields[places + 1].tolist(), strict=True)))


def _fields(bits: torch.Tensor, layout: _Layout, spread: int) -> Any:
    """Return how many values have each exponent field, of bits that are it and `spread` more; a NumPy array."""
    fields = torch.bincount(bits, minlength=(2 * layout.bias + 2) << spread).cpu().numpy()
    return fields.reshape(-1, 1 << spread).sum(axis=1) if spread else fields


def _magnitude_bits(values: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """Return the bits of |x|, in the same order as the values."""
    return values.view(layout.integer) & torch.iinfo(layout.integer).max


def normalises_together(module: torch.nn.Module) -> bool:
    """Return whether a torch module subtracts the mean of its input, not a running mean."""
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return module.training or module.running_mean is None
    return isinstance(module, torch.nn.LayerNorm | torch.nn.GroupNorm)


def count_together(module: torch.nn.Module, tensor: torch.Tensor) -> Counter[int]:
    """Return by exponent the number of values in channels or rows whose largest exponent is at most `SMALL`.

    By that exponent; all-zero channels and rows are left out. `tensor` is the input of `module`, which
    `normalises_together`.
    """
    largest = _largest(module, tensor.detach())
    counts = count_magnitudes(largest)
    members = tensor.numel() // largest.numel() if largest.numel() else 0
    return Counter({exponent: count * members for exponent, count in counts.exponents.items() if exponent <= SMALL})


def _largest(module: torch.nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each channel or row."""
    if isinstance(module, torch.nn.GroupNorm):
        rows = tensor.reshape(len(tensor), module.num_groups, -1)
    elif isinstance(module, torch.nn.LayerNorm):
        last = len(module.normalized_shape)
        if tuple(tensor.shape[-last:]) != tuple(module.normalized_shape):  # a subclass for images, by their channels
            tensor = tensor.movedim(1, -1)
        rows = tensor.flatten(-last)
    elif isinstance(module, torch.nn.modules.instancenorm._InstanceNorm):
        rows = tensor.flatten(1 - module._get_no_batch_dim())  # type: ignore[no-untyped-call]
    else:
        rows = tensor.transpose(0, 1).flatten(1) if tensor.dim() > 1 else tensor[:, None]
    return rows.abs().amax(-1)


_ORDER = (WEIGHT, INPUT, ACTIVATION, GRADIENT, UPDATE)

_Key = tuple[str, str, str]


class Ranges:
    """The magnitudes that `watch_ranges` has seen so far, readable at any time.

    `nonfinite_in_fp32` is the path of the module that first had a value that is not finite (None: none had). `unread`
    are the parameters, and modules, whose values are in separate tensors, such as quantized weights, and are not
    counted.
    """

    def __init__(self, model: torch.nn.Module):
        self.nonfinite_in_fp32: str | None = None
        self.unread: dict[str, None] = {}
        self._kinds = {path: type(module).__name__ for module, path in module_paths(model).items()}
        self._counts: dict[_Key, Counts] = {}
        self._together: dict[str, Counter[int]] = {}
        self._ran: dict[str, None] = {}
        self._moved: dict[str, tuple[int, list[int]]] = {}
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._room: dict[str, torch.Tensor] = {}
        self._known = WeakIdKeyDictionary()
        self._active = True

    @property
    def magnitudes(self) -> list[Magnitudes]:
        """A record per module and kind of values, and per parameter; modules in the order of first running."""
        places = {path: place for place, path in enumerate([*self._ran, *self._kinds.keys() - self._ran])}
        ordered = sorted(self._counts.items(), key=lambda item: (places[item[0][0]], _ORDER.index(item[0][1])))
        return [
            record_of(*key, self._kinds[key[0]], counts, self._together.get(key[0]) if key[1] == INPUT else None)
            for key, counts in ordered
        ]

    @property
    def swallowed(self) -> list[Swallowed]:
        """Per parameter and low dtype, the updates that would be lost to rounding were it stored in that."""
        return [
            Swallowed(parameter=name, dtype=short_dtype(dtype), moved=moved, swallowed=lost)
            for name, (moved, losses) in self._moved.items()
            for dtype, lost in zip(HALVES, losses, strict=True)
        ]

    def stop(self) -> None:
        """Let graphs that outlive the block be differentiated without being counted."""
        self._active = False
        self._before.clear()
        self._room.clear()
        self._known.clear()

    def count(self, module: str, role: str, name: str, tensor: torch.Tensor) -> Counts:
        """Count the values of `tensor` and return them."""
        if hasattr(tensor, "__tensor_flatten__"):
            self.unread.setdefault(name or module)
            return Counts()
        counts = count_magnitudes(tensor)
        self._add(module, role, name, counts)
        return counts

    def _add(self, module: str, role: str, name: str, counts: Counts) -> None:
        """Put values that are counted already to the module's."""
        if counts.nonfinite and self.nonfinite_in_fp32 is None:
            self.nonfinite_in_fp32 = module
        self._counts.setdefault((module, role, name), Counts()).add(counts)

    def before(self, run: ModuleRun) -> None:
        """Count the inputs of modules without modules running inside."""
        self._ran.setdefault(run.path)
        if not run.module._modules:
            run.kept = True
            for tensor in tensors_in(run.args):
                self._count_input(run, tensor)

    def after(self, run: ModuleRun) -> None:
        """Count the outputs, and their gradients when these come."""
        if run.leaf:
            # Inputs by keyword are shown to global hooks only now.
            for tensor in tensors_in(run.kwargs if run.kept else (run.args, run.kwargs)):
                self._count_input(run, tensor)
        for tensor in run.outputs:
            counts = self.count(run.path, ACTIVATION, "", tensor)
            self._remember(tensor, counts)
            if tensor.requires_grad:
                tensor.register_hook(partial(self.gradient, run.path, ""))  # type: ignore[no-untyped-call]
        if not run.within:
            self._known.clear()

    def gradient(self, module: str, name: str, gradient: torch.Tensor) -> None:
        """Count a gradient; a hook on a tensor."""
        if self._active and isinstance(gradient, torch.Tensor):
            self.count(module, GRADIENT, name, gradient)

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep a copy of the parameters, in memory that every step reuses."""
        for parameter in (member for group in optimizer.param_groups for member in group["params"]):
            name = self._names.get(id(parameter))
            if name is None or name in self.unread or parameter.grad is None or not parameter.is_floating_point():
                continue
            values = flat(parameter.detach())
            kept = self._room.get(name)
            self._room[name] = values.clone() if kept is None else kept.copy_(values)
            self._before[name] = (parameter.detach(), self._room[name])

    def after_step(self, *_: Any) -> None:
        """Count the update of each parameter, and the part that each low dtype would lose."""
        while self._before:
            name, (after, before) = self._before.popitem()
            visible = [0] * len(HALVES)
            counts = count_chunks(_differences(before, flat(after), visible))
            self._add(name.rpartition(".")[0], UPDATE, name, counts)
            changed = counts.elements - counts.zeros
            moved, losses = self._moved.get(name, (0, [0] * len(HALVES)))
            self._moved[name] = (
                moved + changed,
                [old + changed - new for old, new in zip(losses, visible, strict=True)],
            )

    def _count_input(self, run: ModuleRun, tensor: torch.Tensor) -> None:
        if not tensor.is_floating_point():
            return
        since, counts = self._known.get(tensor, (None, None))  # type: ignore[no-untyped-call]
        if counts is not None and since == version(tensor):
            self._add(run.path, INPUT, "", counts)
        else:
            counts = self.count(run.path, INPUT, "", tensor)
            self._remember(tensor, counts)
        if normalises_together(run.module):
            together = self._together.setdefault(run.path, Counter())
            if min(counts.exponents, default=0) <= SMALL:
                together.update(count_together(run.module, tensor))

    def _remember(self, tensor: torch.Tensor, counts: Counts) -> None:
        """Keep a module's output for the next module, unless it changes in between."""
        since = version(tensor)
        if since is not None:
            self._known[tensor] = (since, counts)


@contextmanager
def watch_ranges(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[Ranges]:
    """Count the magnitudes of `model`'s values while the block runs it in fp32, over one or many batches.

    Counted exactly, and put together over all calls of a module:

    * its floating inputs and outputs, for a module in which no other module of `model` ran; of the others only the
      outputs that no module within them returned as they are;
    * the gradients of these outputs, and of parameters, at each backward pass;
    * parameters and floating buffers, once, as the block begins; shared ones once, below their first name;
    * with `optimizer`, what each of its steps adds to a parameter of `model`, and how much of it rounding to nearest
      would swallow were the parameter stored in fp16 or bf16: added to the rounded parameter, it leaves that as it is.

    Results equal the unwatched program's, bit by bit. Values of other dtypes are ignored. Where the user's hooks
    change what a module returns, what it computed itself is counted. Raises `UsageError` for compiled modules.
    """
    watcher = Ranges(model)
    with ExitStack() as stack:
        stack.callback(watcher.stop)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not tensor.is_floating_point() or torch.nn.parameter.is_lazy(tensor):
                continue
            module = name.rpartition(".")[0]
            watcher.count(module, WEIGHT, name, tensor)
            if tensor.requires_grad and tensor.is_leaf:
                hook = tensor.register_hook(partial(watcher.gradient, module, name))  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
        if optimizer is not None:
            stack.callback(optimizer.register_step_pre_hook(watcher.before_step).remove)
            stack.callback(optimizer.register_step_post_hook(watcher.after_step).remove)
        stack.enter_context(watch_runs(model, watcher.after, watcher.before))
        yield watcher


def _differences(before: torch.Tensor, after: torch.Tensor, visible: list[int]) -> Iterator[torch.Tensor]:
    """Yield a step's update in parts; add to `visible` the number of elements it changes in each of `HALVES`.

    A stored weight lies on the grid of its dtype, where half a unit decides; the fp32 weights that it was rounded from
    lie anywhere between two of its numbers, so that some of them cross over however little is added.
    """
    for start, end in zip(in_chunks(before), in_chunks(after), strict=True):
        added = end - start
        for place, dtype in enumerate(HALVES):
            stored = start.to(dtype)
            visible[place] += int(torch.count_nonzero(stored != (stored + added).to(dtype)))
        yield added


def record_of(
    module: str, role: str, name: str, kind: str, counts: Counts, together: Mapping[int, int] | None = None
) -> Magnitudes:
    """Return counted values as a record; the arguments are its fields."""
    lowest, highest = min(counts.exponents, default=0), max(counts.exponents, default=-1)
    return Magnitudes(
        module=module,
        kind=kind,
        what=role,
        name=name,
        elements=counts.elements,
        zeros=counts.zeros,
        nonfinite=counts.nonfinite,
        largest=counts.largest,
        lowest=lowest,
        counts=[counts.exponents[exponent] for exponent in range(lowest, highest + 1)],
        powers=_from(lowest, counts.powers),
        together=None if together is None else _from(lowest, together),
    )


def _from(lowest: int, counts: Mapping[int, int]) -> list[int]:
    """Return counts by exponent from `lowest` on, up to the largest."""
    return [counts.get(exponent, 0) for exponent in range(lowest, max(counts, default=lowest - 1) + 1)]
