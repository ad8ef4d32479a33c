"""The network of a case, built once at a fresh place in memory: on its device, in its precision, with data and loss."""

import copy
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ampbench.core.precisions import FP64, PRECISIONS, SHORT_DTYPES, Precision
from ampbench.core.recipes import find_recipe
from ampbench.errors import UnknownNameError, UsageError, WorkloadError
from ampbench.records.case import COMPILE_MODES, Case, compile_mode
from ampbench.trace.dtypes import autocast_of, short_dtype
from ampbench.worker.data import (
    Data,
    Place,
    bound,
    called_with,
    carried,
    in_fp32,
    is_wrapper,
    named_tensors,
    place_data,
    placed,
    stored_dtype,
)
from ampbench.worker.machine import Accelerator, Device
from ampbench.worker.optimizer import MakeOptimizer, clipping, default_optimizer, optimizer_of
from ampbench.workload import Workload

Region = Callable[[], AbstractContextManager[Any]]
REFUSING: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
"""Networks that failed in `torch.inference_mode`, and run in `torch.no_grad`."""
_REFUSED = re.compile("inference ?(mode|tensor)|does not require grad|attempting to run", re.IGNORECASE)
"""torch's errors for code that inference mode does not support, and torchao's for ops that are not decomposed."""
OWN_STEP = "the workload trains by its own step, and this measurement needs a loss"
_LONG_DTYPES = {short: getattr(torch, name) for name, short in SHORT_DTYPES.items()}


def refuses(workload: Workload, case: Case, error: Exception) -> bool:
    """Return whether an error means that a network refuses inference mode; it then runs without it from now on."""
    known = workload.module in REFUSING or case.phase != "inference" or not _REFUSED.search(str(error))
    if not known:
        REFUSING.add(workload.module)
    return not known


@dataclass(slots=True, eq=False, kw_only=True)
class Network:
    """A network on its device, with weights in its precision's storage, its `data` and its loss.

    `autocast` is entered once a step, around forward and loss. `forward` is called by steps: the module itself,
    compiled or traced; `calls` are its calls on each batch. In training, modules and tensors of the loss, or of
    `own_step`, are moved and cast like targets; `held` are their tensors. `make_optimizer` is the workload's, as recipe
    and precision change it. `turn` is the number of the next batch.
    """

    module: torch.nn.Module
    device: Device
    training: bool
    data: Data
    autocast: Region
    loss: Callable[..., torch.Tensor] | None
    has_targets: bool
    own_step: Callable[..., Any] | None = None
    make_optimizer: MakeOptimizer = default_optimizer
    held: list[torch.Tensor] = field(default_factory=list)
    no_grad: bool = False
    forward: Callable[..., Any] = field(init=False)
    calls: list[Callable[[], Any]] = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        self.module.train(self.training)
        self.use(self.module)

    def use(self, forward: Callable[..., Any]) -> None:
        """Let steps call `forward`."""
        self.forward = forward
        self.calls = [bound(forward, batch) for batch in self.data.batches]

    def prepare(self, path: str, once: Callable[[], object]) -> float | None:
        """Compile or trace the network for `path`, and run it `once`; return the seconds, None for eager."""
        if path == "eager":
            return None
        if mode := compile_mode(path):
            torch.compiler.reset()  # one process may compile many networks, and torch gives up after eight of a class
        start = perf_counter()
        with freezing() if mode == "freezing" else nullcontext():
            self.use(compiled(self.module, mode) if mode else self._traced())
            once()
            self.device.synchronize()
            seconds = perf_counter() - start
            if mode == "freezing":  # other shapes compile again, and must be frozen, too
                for call, targets in zip(self.calls[1:], self.data.targets[1:], strict=True):
                    with self.mode():
                        self._called(call, targets)
        self.rewind()
        return seconds

    def mode(self) -> AbstractContextManager[Any]:
        """Return the context around a loop of steps: `torch.inference_mode`, as PyTorch advises, or nothing in
        training.

        With `no_grad` it is `torch.no_grad`. Where an input requires a gradient it is nothing: such a network
        differentiates in its forward pass.
        """
        if self.training:
            return nullcontext()
        return self.without_gradients() if self.no_grad or self.data.learned else torch.inference_mode()

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return `torch.no_grad`, or nothing where an input requires a gradient, as in `mode`."""
        return nullcontext() if self.data.learned else torch.no_grad()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the network's arguments for the first batch: positional ones, and those by name."""
        return called_with(self.data.batches[0])

    def rewind(self) -> None:
        """Start again at the first batch, with its original values."""
        self.turn = 0
        self.data.renew()

    def forward_and_loss(self, forward: Callable[..., Any] | None = None) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on the next batch, inside autocast; return both results.

        `forward` replaces the network.
        """
        turn = self._next_turn()
        call = self.calls[turn] if forward is None else bound(forward, self.data.batches[turn])
        return self._called(call, self.data.targets[turn])

    def next_batch(self) -> Any:
        """Return the next batch for `Workload.step`: inputs and targets, or inputs alone."""
        turn = self._next_turn()
        return (self.data.batches[turn], self.data.targets[turn]) if self.has_targets else self.data.batches[turn]

    def judge(self, batch: Any, targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Run the forward pass and, in training, the loss on a copy of a batch."""
        batch, targets = pytree.tree_map_only(torch.Tensor, _copied, (batch, targets))
        return self._called(bound(self.forward, batch), targets)

    def forward_alone(self, batch: Any) -> Any:
        """Run only the forward pass, inside autocast, on a batch of `Data.placed`, which it may change."""
        with self.autocast():
            return bound(self.forward, batch)()

    def watch_loss(self, region: AbstractContextManager[Any]) -> None:
        """Hold `region` around each call of the loss."""
        function = self.loss

        def within(*arguments: Any) -> torch.Tensor:
            with region:
                return function(*arguments)  # type: ignore[misc]

        self.loss = within if function is not None else None

    def apply_loss(self, output: Any) -> None:
        """Call the loss, if there is one, on the output of the first batch, whatever the phase."""
        if self.loss is not None:
            self.loss(*((output, self.data.targets[0]) if self.has_targets else (output,)))

    def release(self) -> None:
        """Release the modules that `keep_fp32` keeps in fp32, which form reference cycles."""
        from ampbench.trace.keep_fp32 import release_fp32  # timed steps do not need it

        for module in self.module.modules():
            release_fp32(module)

    def store_weights(self, names: Iterable[str], dtype: torch.dtype) -> None:
        """Store the named parameters in `dtype`."""
        parameters = dict(self.module.named_parameters())
        for name in names:
            parameters[name].data = parameters[name].data.to(dtype)

    def _next_turn(self) -> int:
        """Return the number of the next batch, after restoring its values."""
        data, turn = self.data, self.turn
        self.turn = (turn + 1) % len(self.calls)
        if data.changed != [] and turn in data.seen:
            data.renew()
        data.seen.add(turn)
        return turn

    def _called(self, call: Callable[[], Any], targets: Any) -> tuple[Any, torch.Tensor | None]:
        """Return the result of `call` and, in training, its loss, both inside autocast."""
        with self.autocast():
            output = call()
            if not self.training:
                return output, None
            if self.loss is None:
                raise WorkloadError(OWN_STEP)
            arguments = (output, targets) if self.has_targets else (output,)
            loss = self.loss(*arguments)
        return output, loss

    def _traced(self) -> Callable[..., Any]:
        """Return the network traced inside autocast and frozen."""
        from ampbench.trace.traced import trace_frozen  # only the traced path needs it

        args, kwargs = self.arguments()
        return trace_frozen(self.module, args, kwargs, self.autocast)[1]  # type: ignore[no-any-return]


def build_network(
    workload: Workload,
    case: Case,
    device: Device,
    *,
    precision: Precision | None = None,
    no_grad: bool = False,
    kept: Sequence[str] = (),
) -> Network:
    """Return a copy of a workload's network for `case`, with copies of its batches.

    Where the precision stores fp32, weights and buffers loaded in half are upcast, and others unchanged; in half and in
    the reference, `stored_dtype` decides. Floating inputs have the case's `input_dtype`, or the storage dtype of
    another `precision`, such as `FP64`; `cached` ones have the precision's compute dtype. `keep_fp32` keeps the modules
    in `kept` ("" is the network) in fp32, except in the reference; where weights are stored in half, their outputs are
    cast back to half, except those of a whole network in inference. A user's own precision prepares the network and its
    optimizer. Raises `UnknownNameError` for an unknown module, and `UsageError` where a kept module shares a parameter
    with one that moves it to half, or where a precision prepares no module.
    """
    row = precision or PRECISIONS[case.precision]
    training, channels_last = case.phase == "training", case.memory_format == "channels_last"
    storage = getattr(torch, row.storage)
    input_dtype = _LONG_DTYPES[case.input_dtype] if precision is None else storage
    copies: dict[int, Any] = {}
    module = copy.deepcopy(workload.module, copies)
    kept = () if row is FP64 else kept
    if kept:
        # a user takes a whole network's output in fp32; a loss may not, with targets in half
        _keep_named(module, kept, cast_back=storage is not torch.float32 and (training or "" not in kept))
    store = partial(_store, device=device, storage=storage)
    store(module)
    if precision is not None:
        _refuse_stuck(module, storage)
    if kept and storage is not torch.float32:
        _refuse_moved(module, kept, storage)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    recipe = find_recipe(case.recipe)
    make_optimizer = optimizer_of(recipe, workload.optimizer or default_optimizer)
    module, make_optimizer = _prepared(module, make_optimizer, row, training=training)
    place = partial(placed, where={"device": device.type}, channels_last=channels_last)
    place_inputs = _place_inputs(workload, place, input_dtype, row)
    data = place_data(workload, place_inputs, partial(place, storage=storage), counted=training)
    if not training and row.prepare is None:  # a prepared network may have other weights with these names
        data.weights = (module, workload.module)
    loss, step, held = workload.loss, workload.step, list[torch.Tensor]()
    if training:
        loss, held = carried(loss, copies, data.place_targets, store)
    if training and step is not None:
        step, more = carried(step, copies, data.place_targets, store)
        held += more
    return Network(
        module=module,
        device=device,
        training=training,
        data=data,
        autocast=autocast_of(row, device.type),
        loss=loss,
        has_targets=workload.targets is not None,
        own_step=step,
        make_optimizer=clipping(make_optimizer, recipe.clip),
        held=held,
        no_grad=no_grad or workload.module in REFUSING,
    )


def compiled(module: torch.nn.Module, mode: str) -> Callable[..., Any]:
    """Return a network compiled by torch.compile in one of `COMPILE_MODES`; its first call compiles it.

    The mode "freezing" is the default mode, and needs a call within `freezing()`.
    """
    has_mode = mode not in (COMPILE_MODES[0], "freezing")
    return torch.compile(module, mode=mode) if has_mode else torch.compile(module)


def freezing() -> AbstractContextManager[Any]:
    """Return a context in which inductor folds weights into the code, where gradients are off.

    The option of torch.compile is not enough: dynamo reads the global switch.
    """
    import torch._inductor.config  # seconds: no other path needs it

    return torch._inductor.config.patch(freezing=True)  # type: ignore[no-any-return]


def fake_network(workload: Workload, case: Case) -> Network:
    """Return the network of a workload of fake tensors, already on the case's absent device in their dtypes.

    Only its batches are copied. It can run only forward and loss.
    """
    row, training = PRECISIONS[case.precision], case.phase == "training"
    place = partial(placed, where={}, channels_last=case.memory_format == "channels_last")
    place_inputs = _place_inputs(workload, place, _LONG_DTYPES[case.input_dtype], row)
    data = place_data(workload, place_inputs, partial(place, storage=getattr(torch, row.storage)), counted=training)
    data.changed = []
    return Network(
        module=workload.module,
        device=Accelerator(case.device),
        training=training,
        data=data,
        autocast=autocast_of(row, case.device, absent=True),
        loss=workload.loss,
        has_targets=workload.targets is not None,
    )


def _place_inputs(workload: Workload, place: Callable[..., Any], dtype: torch.dtype, row: Precision) -> Place:
    """Return a function that places a batch, floating tensors in `dtype`, cached ones in the compute dtype."""
    if not workload.cached:
        return partial(place, storage=dtype)
    computed = getattr(torch, row.autocast or row.storage)

    def place_each(batch: Any) -> Any:
        named = batch.items() if isinstance(batch, dict) else enumerate(called_with(batch)[0])
        inputs = {name: place(part, storage=computed if name in workload.cached else dtype) for name, part in named}
        return inputs if isinstance(batch, dict) else tuple(inputs.values())

    return place_each


def _store(module: torch.nn.Module, *, device: Device, storage: torch.dtype) -> None:
    """Move a network to the device, its weights and buffers to `storage`; in fp32, upcast those loaded in half."""
    if storage is torch.float32:
        in_fp32(module)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        dtype = tensor.dtype if storage is torch.float32 else stored_dtype(tensor.dtype, storage)
        return tensor.to(device=device.type, dtype=dtype)

    module._apply(moved)  # type: ignore[no-untyped-call]


def _refuse_stuck(module: torch.nn.Module, storage: torch.dtype) -> None:
    """Raise `WorkloadError` for a weight whose class does not take the reference's storage dtype."""
    for name, tensor in named_tensors(module):
        if is_wrapper(tensor) and tensor.is_floating_point() and tensor.dtype is not storage:
            raise WorkloadError(f"{name} is {type(tensor).__name__}, which stays in {short_dtype(tensor.dtype)}")


def _prepared(
    module: torch.nn.Module, make_optimizer: MakeOptimizer, row: Precision, *, training: bool
) -> tuple[torch.nn.Module, MakeOptimizer]:
    """Return a network, and the function that makes its optimizer, after a user's own precision has prepared them."""
    if row.prepare is None:
        return module, make_optimizer
    returned = row.prepare(module, make_optimizer if training else None)
    prepared, prepared_optimizer = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(prepared, torch.nn.Module) or not (prepared_optimizer is None or callable(prepared_optimizer)):
        wrong = f"precision {row.name}: prepare returned {type(returned).__name__}"
        raise UsageError(f"{wrong}; expected the module, or (module, optimizer)")
    return prepared, prepared_optimizer or make_optimizer


def _keep_named(module: torch.nn.Module, names: Iterable[str], *, cast_back: bool) -> None:
    """Keep the named submodules in fp32; names are no patterns."""
    from ampbench.trace.keep_fp32 import keep_fp32  # timed steps do not need it

    in_fp32(module)
    known = dict(module.named_modules(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise UnknownNameError("submodule", name, [path for path in known if path])
        keep_fp32(known[name], cast_back=cast_back)


def _refuse_moved(module: torch.nn.Module, names: Iterable[str], storage: torch.dtype) -> None:
    """Raise `UsageError` where a kept submodule's parameter was moved to `storage` with a module that shares it."""
    everywhere = list(module.named_parameters(remove_duplicate=False))
    for name in names:
        for parameter in module.get_submodule(name).parameters():
            shared = [path for path, candidate in everywhere if candidate is parameter]
            if parameter.dtype is storage and len(shared) > 1:
                raise UsageError(f"{name}: {' and '.join(shared)} are one parameter: keep the modules of all, or none")


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
