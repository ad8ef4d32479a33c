"""`watch_ranges`: how large the values of a network are while anyone's fp32 code runs it, module by module."""

import mmap
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch

from ampbench.explain.dtypes import short_dtype
from ampbench.explain.magnitudes import SMALL, Counts, count_chunks, count_magnitudes, flat, in_chunks
from ampbench.explain.module_runs import ModuleRun, module_paths, version, watch_runs
from ampbench.explain.modules import tensors_in
from ampbench.explain.normalisations import count_together, normalises_together
from ampbench.records.ranges import ACTIVATION, GRADIENT, INPUT, UPDATE, WEIGHT, Magnitudes, Swallowed

LOW_DTYPES = (torch.float16, torch.bfloat16)

_ORDER = (WEIGHT, INPUT, ACTIVATION, GRADIENT, UPDATE)

_Key = tuple[str, str, str]


class Ranges:
    """What `watch_ranges` has seen so far, readable at any time.

    `batches` counts the calls of the network itself. `nonfinite_in_fp32` is the path of the module that first had a
    value that is not finite (None: none had).
    """

    def __init__(self, paths: Mapping[torch.nn.Module, str]):
        self.batches = 0
        self.nonfinite_in_fp32: str | None = None
        self._kinds = {path: type(module).__name__ for module, path in paths.items()}
        self._counts: dict[_Key, Counts] = {}
        self._together: dict[str, Counter[int]] = {}
        self._ran: dict[str, None] = {}
        self._moved: dict[str, tuple[int, list[int]]] = {}

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
            Swallowed(parameter=name, dtype=short_dtype(dtype), moved=moved, swallowed=lost, on_grid=True)
            for name, (moved, each) in self._moved.items()
            for dtype, lost in zip(LOW_DTYPES, each, strict=True)
        ]

    def ran(self, path: str) -> None:
        """Note that a module runs."""
        self._ran.setdefault(path)

    def count(self, module: str, what: str, name: str, tensor: torch.Tensor) -> Counts:
        """Count the values of `tensor` and return them."""
        counts = count_magnitudes(tensor)
        self.add(module, what, name, counts)
        return counts

    def add(self, module: str, what: str, name: str, counts: Counts) -> None:
        """Put values that are counted already to the module's."""
        if counts.nonfinite and self.nonfinite_in_fp32 is None:
            self.nonfinite_in_fp32 = module
        self._counts.setdefault((module, what, name), Counts()).add(counts)

    def normalised(self, path: str, module: torch.nn.Module, tensor: torch.Tensor, counts: Counts) -> None:
        """Count what of an input, which has `counts`, lies in channels or rows of small values alone."""
        together = self._together.setdefault(path, Counter())
        if min(counts.exponents, default=0) <= SMALL:
            together.update(count_together(module, tensor))

    def compare_step(self, name: str, before: torch.Tensor, after: torch.Tensor) -> None:
        """Count what a step changed a parameter by, and what of it each low dtype would not show; both are `flat`."""
        shown = [0] * len(LOW_DTYPES)
        counts = count_chunks(_differences(before, after, shown))
        self.add(name.rpartition(".")[0], UPDATE, name, counts)
        here = counts.elements - counts.zeros
        moved, each = self._moved.get(name, (0, [0] * len(LOW_DTYPES)))
        self._moved[name] = (moved + here, [old + here - new for old, new in zip(each, shown, strict=True)])


@contextmanager
def watch_ranges(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[Ranges]:
    """Count the magnitudes of `model`'s values while the block runs it in fp32, over one or many batches.

    Counted exactly, and put together over all calls of a module:

    * its floating inputs and outputs (tensors in tuples, lists and mappings), for a module in which no other module of
      `model` ran; of the others only the outputs that no module within them returned as they are. Outputs are counted
      before anything can overwrite them in place, inputs before the module can;
    * the gradients of these outputs, and of parameters, at each backward pass;
    * parameters and floating buffers, once, as the block begins; shared ones once, below their first name;
    * with `optimizer`, what each of its steps adds to a parameter of `model`, and how much of it rounding to nearest
      would swallow were the parameter stored in fp16 or bf16: added to the rounded parameter, it leaves that as it is.

    Results are those of the unwatched program, bit by bit, and only statistics are kept; from the optimizer's first
    step on, a copy of the parameters, too. Values of other dtypes are ignored. Where the user's hooks change what a
    module returns, what it computed itself is counted. Raises `UsageError` for modules compiled by torch.compile.
    """
    paths = module_paths(model)
    seen = Ranges(paths)
    watcher = _Watcher(seen, model)
    with ExitStack() as stack:
        stack.callback(watcher.stop)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not tensor.is_floating_point() or torch.nn.parameter.is_lazy(tensor):
                continue
            module = name.rpartition(".")[0]
            seen.count(module, WEIGHT, name, tensor)
            if tensor.requires_grad and tensor.is_leaf:
                hook = tensor.register_hook(partial(watcher.gradient, module, name))  # type: ignore[no-untyped-call]
                stack.callback(hook.remove)
        if optimizer is not None:
            stack.callback(optimizer.register_step_pre_hook(watcher.before_step).remove)
            stack.callback(optimizer.register_step_post_hook(watcher.after_step).remove)
        stack.enter_context(watch_runs(model, watcher.after, watcher.before))
        yield seen


class _Watcher:
    """Hears of runs, gradients and steps, and has them counted."""

    def __init__(self, seen: Ranges, model: torch.nn.Module):
        self._seen = seen
        self._model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._room = _room(0)
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, Counts]] = {}
        self._active = True

    def stop(self) -> None:
        """Let graphs that outlive the block be differentiated without being counted."""
        self._active = False
        self._before.clear()
        self._room = _room(0)
        self._known.clear()

    def before(self, run: ModuleRun) -> None:
        """Count the inputs, except those of modules that have others run within them."""
        self._seen.ran(run.path)
        if run.module is self._model:
            self._seen.batches += 1
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
            counts = self._seen.count(run.path, ACTIVATION, "", tensor)
            self._remember(tensor, counts)
            if tensor.requires_grad:
                tensor.register_hook(partial(self.gradient, run.path, ""))  # type: ignore[no-untyped-call]
        if not run.within:
            self._known.clear()

    def gradient(self, module: str, name: str, gradient: torch.Tensor) -> None:
        """Count a gradient; a hook on a tensor."""
        if self._active and isinstance(gradient, torch.Tensor):
            self._seen.count(module, GRADIENT, name, gradient)

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Keep the parameters as they are; those on the CPU in one place, which every step uses again."""
        watched = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is not None and parameter.grad is not None and parameter.is_floating_point():
                    watched[name] = parameter.detach()
        sizes = [_aligned(tensor.nbytes) if tensor.is_cpu else 0 for tensor in watched.values()]
        if sum(sizes) > len(self._room):
            self._room = _room(sum(sizes))
        rooms = self._room[: sum(sizes)].split_with_sizes(sizes)
        for (name, tensor), room in zip(watched.items(), rooms, strict=True):
            values = flat(tensor)
            kept = room[: values.nbytes].view(values.dtype).copy_(values) if tensor.is_cpu else values.clone()
            self._before[name] = (tensor, kept)

    def after_step(self, *_: Any) -> None:
        """Count what was added to each of them."""
        while self._before:
            name, (after, before) = self._before.popitem()
            self._seen.compare_step(name, before, flat(after))

    def _count_input(self, run: ModuleRun, tensor: torch.Tensor) -> None:
        if not tensor.is_floating_point():
            return
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version(tensor):
            counts = known[2]
            self._seen.add(run.path, INPUT, "", counts)
        else:
            counts = self._seen.count(run.path, INPUT, "", tensor)
            self._remember(tensor, counts)
        if normalises_together(run.module):
            self._seen.normalised(run.path, run.module, tensor, counts)

    def _remember(self, tensor: torch.Tensor, counts: Counts) -> None:
        """Keep what one module returned for the next, which is given it, unless it is changed in between."""
        since = version(tensor)
        if since is not None:
            self._known[id(tensor)] = (weakref.ref(tensor), since, counts)


def _differences(before: torch.Tensor, after: torch.Tensor, shown: list[int]) -> Iterator[torch.Tensor]:
    """Yield what a step added in parts; put to `shown` how many elements it changes that are stored in `LOW_DTYPES`.

    A stored weight lies on the grid of its dtype, where half a unit decides; the fp32 weights that it was rounded from
    lie anywhere between two of its numbers, so that some of them cross over however little is added.
    """
    for one, other in zip(in_chunks(before), in_chunks(after), strict=True):
        added = other - one
        for place, dtype in enumerate(LOW_DTYPES):
            stored = one.to(dtype)
            shown[place] += _differing(stored, (stored + added).to(dtype))
        yield added


def _aligned(size: int) -> int:
    """Return the bytes that `size` bytes take up where every tensor begins at a multiple of a cache line."""
    return -(-size // 64) * 64


def _room(size: int) -> torch.Tensor:
    """Return `size` bytes on the CPU, in huge pages where the system has them.

    What is allocated for one step is new to the process, and to touch it page by page takes several times as long as
    the copy.
    """
    if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _differing(first: torch.Tensor, second: torch.Tensor) -> int:
    """Return how many elements of two half tensors differ; by their bits, which is twice as fast as by their values."""
    one, other = first.view(torch.int16), second.view(torch.int16)
    bits = one ^ other
    count = int(torch.count_nonzero(bits))
    sign = torch.iinfo(torch.int16).min
    if count and bits.min() == sign:  # 0 and -0 are the same value
        count -= int(torch.count_nonzero((bits == sign) & ((one | other) == sign)))
    return count


def record_of(
    module: str, what: str, name: str, kind: str, counts: Counts, together: Mapping[int, int] | None = None
) -> Magnitudes:
    """Return counted values as a record; the arguments are its fields."""
    lowest, highest = min(counts.exponents, default=0), max(counts.exponents, default=-1)
    return Magnitudes(
        module=module,
        kind=kind,
        what=what,
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
