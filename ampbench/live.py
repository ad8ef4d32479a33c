"""Networks of a program, measured in its process: `measure`, which changes nothing that it is given."""

import contextlib
import copy
import dataclasses
import functools
import gc
import importlib
import inspect
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from msgspec import structs
from rich.live import Live
from rich.text import Text
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from ampbench.core.precisions import BUILT_IN, Precision, meet
from ampbench.core.recipes import parse_optimizer
from ampbench.core.units import parse_seconds
from ampbench.drive import session
from ampbench.drive.planning import GIVEN, find_workloads
from ampbench.drive.rounds import MOST_ROUNDS
from ampbench.drive.servers import InProcess
from ampbench.errors import UsageError, WorkloadError, first_line
from ampbench.judge.verdict import undecided
from ampbench.records.case import AUTOCAST_DEVICES, WorkloadSource
from ampbench.records.kinds import verb_of
from ampbench.records.run import MEASURE, Selection, Settings
from ampbench.result import Findings, Result
from ampbench.show.terminal import make_console
from ampbench.store import StoredRun, read_run
from ampbench.studies.study import SELECTING, asked_for, study_of
from ampbench.studies.work import Piece, begin
from ampbench.studies.work import Watch as PieceWatch
from ampbench.worker.data import carried
from ampbench.worker.machine import SWITCHES, Products
from ampbench.workload import Workload

WHAT = (
    "a torch.nn.Module with its inputs, an ampbench.Workload, a function that returns one, or a name for ampbench run"
)
GIVEN_MODULE = "ampbench_given"
"""The prefix of the modules that hold a program's functions."""
_SERIAL = itertools.count(1)


def measure(
    model_or_workload: Any,
    inputs: Any = None,
    loss: Callable[..., Any] | None = None,
    *,
    targets: Any = None,
    optimizer: Any = None,
    precisions: str | Precision | Iterable[str | Precision] | None = None,
    device: Any = None,
    phase: str | None = None,
    budget: str | float = "30s",
) -> Result:
    """Return speed, memory, errors and verdicts of a network in every precision, measured in this process.

    `inputs` is a tensor, a tuple (positional) or a mapping (keywords); a list of these is a list of batches. `loss` is
    called with the output or, where there are `targets`, with both; without one training is left out. `optimizer` is
    text ("adamw:lr=3e-4"), a function of parameters, or the network's own, which is never stepped: its class, groups
    and state are copied. A workload, a function that returns one and a name bring inputs and loss themselves.
    `precisions`: names or `ampbench.Precision` (default: those of the device). `device`: "cpu", "cuda", … (default: the
    accelerator). `phase`: "inference" or "training" (default: both). `budget`: wall time of a network, in seconds or as
    "30s", "2m"; one round of all is measured in any case.

    Network, gradients, modes, random state and torch's switches are restored when this returns or raises. Ctrl-C
    returns the results so far. Raises `AmpbenchError`, in one line, for anything that cannot be measured.
    """
    with no_trace(), contextlib.ExitStack() as stack:
        selection = selected(
            stack, model_or_workload, inputs, loss, targets=targets, optimizer=optimizer, precisions=precisions,
            device=device, phase=phase,
        )  # fmt: skip
        if isinstance(model_or_workload, torch.nn.Module) and loss is None and phase in (None, "training"):
            if phase:
                raise UsageError("training needs a loss: measure(model, inputs, loss)")
            selection = structs.replace(selection, phases=["inference"])
        return Result(_measured(selection, _seconds(budget), stack))


def study(kind: str, model_or_workload: Any = None, inputs: Any = None, loss: Any = None, **arguments: Any) -> Findings:
    """Return the findings of a study of a `kind` on a network, in this process.

    Arguments are those of `measure`, and the study's own options by their names in its verb. A study of devices runs in
    separate processes, as its verb does.

    Restores all state, as `measure`; Ctrl-C returns the findings so far, if any. Raises `AmpbenchError`, in one line,
    for invalid arguments, and where every case failed.
    """
    row = study_of(kind)
    selecting = {name: arguments.pop(name) for name in SELECTING if name in arguments}
    workload = model_or_workload if row.selects is not None else ""
    settings = Settings(isolation=row.selects is None)
    with no_trace(), contextlib.ExitStack() as stack:
        selection = selected(stack, workload, inputs, loss, **selecting)
        asked = asked_for(row, arguments)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ampbench-")))
        done = begin(
            row, selection, settings, asked, folder, "",
            [f"ampbench.{verb_of(kind).replace(' ', '.').replace('-', '_')}", *selection.workloads],
            watching=functools.partial(_watching_pieces, row.doing),
            open_channel=None if settings.isolation else InProcess,
        )  # fmt: skip
        if done.problem is not None:
            raise done.problem
        stored = done.stored()
    if done.failed:
        raise WorkloadError(f"{', '.join(selection.workloads)} cannot be studied: {done.failed[0].message}")
    return Findings(_with_sources(stored))


def selected(
    stack: contextlib.ExitStack,
    model_or_workload: Any,
    inputs: Any,
    loss: Any,
    *,
    targets: Any = None,
    optimizer: Any = None,
    precisions: Any = None,
    device: Any = None,
    phase: str | None = None,
    within: str = "",
) -> Selection:
    """Return the selection for a program's workload ("": none), which this process can plan until `stack` ends.

    The user's own precisions are registered. A network that no other process can import gets a name `within` a place.
    """
    asked = [precisions] if isinstance(precisions, str | Precision) else [*(precisions or ())]
    for precision in asked:
        if not isinstance(precision, str | Precision):
            raise UsageError(f"precision {precision!r}: a name, or an ampbench.Precision")
        if isinstance(precision, Precision) and precision.name not in BUILT_IN:
            meet(precision)
    devices = device if isinstance(device, list | tuple) else [] if device is None else [device]
    name = model_or_workload
    if isinstance(model_or_workload, str):
        refuse(inputs, loss, targets, None if isinstance(optimizer, str) else optimizer, of="a name")
    else:
        build = maker(model_or_workload, inputs, loss, targets, optimizer)
        name = label(model_or_workload)
        if within and importable(model_or_workload) is None:
            name = f"{within}:{name}"
        stack.enter_context(given(build, name))
    return Selection(
        workloads=[name] if name else [],
        precisions=[precision.name if isinstance(precision, Precision) else precision for precision in asked],
        devices=[str(wanted).partition(":")[0] for wanted in devices],
        phases=[phase] if phase is not None else [],
        recipes=[parse_optimizer(optimizer).spelling] if isinstance(optimizer, str) else [],
    )


def _measured(selection: Selection, seconds: float, stack: contextlib.ExitStack) -> StoredRun:
    """Return the run of a selection, with as many rounds as time allows."""
    importlib.import_module("torch._dynamo")  # slow, so not within a step
    if not gc.get_freeze_count():  # collections between builds skip the program's objects, which would take long
        gc.freeze()
        stack.callback(gc.unfreeze)
    settings = Settings(isolation=False, rounds=MOST_ROUNDS, budget_seconds=seconds)
    prepared = stack.enter_context(session.prepare(selection, settings))
    in_phases = [  # inference first: training may take longer or be interrupted
        [sorted(first, key=lambda turn: turn.planned.case.phase), *others] for first, *others in prepared.schedule
    ]
    prepared = dataclasses.replace(prepared, schedule=in_phases)
    session.require_work(prepared)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ampbench-"))
    command = [MEASURE, *selection.workloads]
    with session.begin(prepared, folder, "", command) as writer, _watching() as show:
        open_cases = lambda: undecided(read_run(writer.path))  # noqa: E731
        session.measure(
            prepared, writer, lambda step: show(f"{step.turn.task.name}: {step.turn.planned.case.case_id}"), open_cases
        )
    stored = read_run(writer.path)
    failures = list(stored.failures.values())
    if failures and not stored.cases.keys() - stored.failures.keys() - stored.skips.keys():
        raise WorkloadError(f"{stored.cases[failures[0].case_id].workload} failed: {failures[0].message}")
    return _with_sources(stored)


def _with_sources(stored: StoredRun) -> StoredRun:
    """Return a run whose sources of this process's workloads name this module."""
    sources = [
        structs.replace(source, module=__name__) if source.module.startswith(GIVEN_MODULE) else source
        for source in stored.header.sources
    ]
    return dataclasses.replace(stored, header=structs.replace(stored.header, sources=sources))


def _seconds(budget: str | float) -> float:
    try:
        seconds = parse_seconds(budget) if isinstance(budget, str) else float(budget)
    except (UsageError, TypeError, ValueError) as error:
        raise UsageError(f"budget: {error}") from None
    if not 0 < seconds < float("inf"):
        raise UsageError(f"budget={budget!r}: a time above 0, as in 30, '30s' or '2m'")
    return seconds


def refuse(inputs: Any, loss: Any, targets: Any, optimizer: Any, of: str) -> None:
    """Raise `UsageError` for arguments that `of`, a name, a function or a workload, already brings."""
    arguments = {"inputs": inputs, "loss": loss, "targets": targets, "optimizer": optimizer}
    if names := [name for name, value in arguments.items() if value is not None]:
        text = "; name an optimizer as text, as in 'adamw:lr=3e-4'" if names == ["optimizer"] else ""
        raise UsageError(f"{of} brings its own {' and '.join(names)}: give {WHAT}{text}")


def label(workload: Any) -> str:
    """Return the name of a network in tables: its class, or the function that makes it, as in `ampbench run`."""
    if (source := importable(workload)) is not None:
        return source.name
    named = workload.module if isinstance(workload, Workload) else workload
    return str(getattr(named, "__name__", "") or type(named).__name__).strip("<>")


def importable(function: Any) -> WorkloadSource | None:
    """Return the source of a module's function; None for a closure, a lambda, a method, or a replaced function.

    A package and its modules are imported by their names, any other module by its file, as a test's file is.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if "." in module.__name__ or hasattr(module, "__path__"):
        return find_workloads(f"{module.__name__}:{name}")[0]
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or module.__name__ == "__main__":
        return None
    return find_workloads(f"{path}:{name}")[0]


def maker(workload: Any, inputs: Any, loss: Any, targets: Any, optimizer: Any) -> Callable[..., Any]:
    """Return the function that builds the workload, separate from the caller's objects."""
    if isinstance(workload, torch.nn.Module):
        if inputs is None:
            raise UsageError(f"{type(workload).__name__} is a network without inputs: measure(model, inputs)")
        if loss is None and (optimizer is not None or targets is not None):
            raise UsageError("an optimizer and targets are for a loss: measure(model, inputs, loss, ...)")
        workload = Workload(module=workload, inputs=_batches(inputs), targets=targets, loss=loss)
    elif isinstance(workload, Workload):
        refuse(inputs, loss, targets, None, of="an ampbench.Workload")
    elif isinstance(workload, type):
        raise UsageError(f"{workload.__name__} is a class: give a network of it")
    elif callable(workload):
        refuse(inputs, loss, targets, None, of="a function that makes a workload")
        if isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError("a live optimizer needs the network that it trains: give the network, not a function")

        @functools.wraps(workload)
        def make(**parameters: Any) -> Any:
            returned = workload(**parameters)
            if isinstance(returned, tuple) and len(returned) in (2, 3):
                returned = Workload(module=returned[0], inputs=returned[1], loss=(*returned, None)[2])
            return _apart(returned, optimizer) if isinstance(returned, Workload) else returned

        return make
    else:
        raise UsageError(f"{type(workload).__name__} is no network: give {WHAT}")
    separate = _apart(workload, optimizer)
    return lambda: separate


def _batches(inputs: Any) -> Any:
    """Return inputs in a workload's form: a packed sequence is one argument, any mapping a dict."""
    if isinstance(inputs, list):
        return [_batches(batch) for batch in inputs]
    if isinstance(inputs, PackedSequence):
        return (inputs,)
    return dict(inputs) if isinstance(inputs, Mapping) else inputs


def _apart(workload: Workload, optimizer: Any) -> Workload:
    """Return a workload with CPU copies of its network and of the contents of its loss, step and optimizer.

    Raises `WorkloadError` where they cannot be copied, `UsageError` for an optimizer of another network.
    """
    module: Any = workload.module
    if not isinstance(module, torch.nn.Module):
        return workload
    if isinstance(optimizer, torch.optim.Optimizer):
        state = copy.deepcopy(optimizer.state_dict()) if optimizer.state else None
        workload = dataclasses.replace(workload, optimizer=_remade(optimizer, module), optimizer_state=state)
    elif optimizer is not None and not isinstance(optimizer, str):
        if not callable(optimizer):
            raise UsageError(
                f"optimizer is {type(optimizer).__name__}: text, a function of parameters, or an Optimizer"
            )
        workload = dataclasses.replace(workload, optimizer=optimizer)
    copies: dict[int, Any] = {}
    try:
        network = copy.deepcopy(module, copies)
        loss, step, make = (
            carried(original, copies, copy.deepcopy, lambda _: None)[0]
            for original in (workload.loss, workload.step, workload.optimizer)
        )
        inputs, targets = pytree.tree_map(  # every step copies tensors
            lambda leaf: leaf if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf),
            (workload.inputs, workload.targets),
        )
    except Exception as error:
        why = f"{type(module).__name__} cannot be copied ({first_line(error)})"
        raise WorkloadError(f"{why}: give a function that builds it anew") from error
    if any(tensor.device.type not in ("cpu", "meta") for tensor in (*network.parameters(), *network.buffers())):
        network = network.to("cpu")
    return dataclasses.replace(
        workload, module=network, inputs=inputs, targets=targets, loss=loss, step=step, optimizer=make
    )


def _remade(optimizer: torch.optim.Optimizer, module: torch.nn.Module) -> Callable[..., torch.optim.Optimizer]:
    """Return a function that makes an optimizer of the same class and groups for a copy of the network."""
    kind: Any = type(optimizer)
    places = {id(parameter): place for place, parameter in enumerate(module.parameters())}
    groups = []
    for group in optimizer.param_groups:
        if any(id(parameter) not in places for parameter in group["params"]):
            raise UsageError(f"{kind.__name__} moves parameters that {type(module).__name__} has not: give its own")
        settings = {
            name: copy.deepcopy(value) for name, value in group.items() if name not in ("params", "param_names")
        }
        groups.append((settings, [places[id(parameter)] for parameter in group["params"]]))
    takes = inspect.signature(kind).parameters
    defaults = {name: copy.deepcopy(value) for name, value in optimizer.defaults.items() if name in takes}

    def make(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        copies = list(parameters)
        rows = [{**copy.deepcopy(settings), "params": [copies[place] for place in at]} for settings, at in groups]
        remade: torch.optim.Optimizer = kind(rows, **defaults)
        return remade

    return make


@contextlib.contextmanager
def given(function: Callable[..., Any], name: str) -> Iterator[WorkloadSource]:
    """Register a workload's function under a name for plans of this process, within the context; yield its source."""
    module = ModuleType(f"{GIVEN_MODULE}_{next(_SERIAL)}")
    module.__dict__["make"] = function
    source = WorkloadSource(name=name, family="user", module=module.__name__, function="make", builtin=False)
    before = GIVEN.get(name)
    sys.modules[module.__name__], GIVEN[name] = module, source
    try:
        yield source
    finally:
        del sys.modules[module.__name__], GIVEN[name]
        if before is not None:
            GIVEN[name] = before


Switch = tuple[Callable[[], Any], Callable[[Any], object]]
"""A function that reads a state of this process, and one that sets it."""


def _states() -> list[Switch]:
    """Return all states of this process that a measurement, or a network's code, may change."""
    device: Any = torch.get_device_module() if torch.accelerator.is_available() else torch
    suffix = "_all" if hasattr(device, "get_rng_state_all") else ""  # of all accelerators
    by_device: Sequence[tuple[Callable[..., Any], Callable[..., Any]]] = (
        (torch.is_autocast_enabled, torch.set_autocast_enabled),
        (torch.get_autocast_dtype, torch.set_autocast_dtype),
    )
    cuda = torch.backends.cuda
    return [
        (random.getstate, random.setstate),
        (np.random.get_state, np.random.set_state),
        (torch.get_rng_state, torch.set_rng_state),
        (getattr(device, f"get_rng_state{suffix}"), getattr(device, f"set_rng_state{suffix}")),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        *(
            (functools.partial(read, name), functools.partial(write, name))
            for name in AUTOCAST_DEVICES
            for read, write in by_device
        ),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
        ),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        *(
            (getattr(cuda, f"{kernel}_sdp_enabled"), getattr(cuda, f"enable_{kernel}_sdp"))
            for kernel in ("flash", "mem_efficient", "math", "cudnn")
        ),
        *((switch.now, switch.set) for switch in SWITCHES),
        (Products.now, Products.set),
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (lambda: list(sys.path), lambda paths: sys.path.__setitem__(slice(None), paths)),
    ]


@contextlib.contextmanager
def no_trace() -> Iterator[None]:
    """Restore the random numbers, modes and switches of this process at the end, also after an error.

    Within, gradients are on, autocast is off and the default dtype is fp32, as at the start of a program.
    """
    before = [(write, read()) for read, write in _states()]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            torch.set_default_dtype(torch.float32)
            for name in AUTOCAST_DEVICES:
                torch.set_autocast_enabled(name, False)
            yield
    finally:
        for write, value in before:
            write(value)


@contextlib.contextmanager
def _watching() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows progress, in a line on a terminal or in a notebook, and nowhere else."""
    console = make_console(stderr=True)
    if "ipykernel" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        display: Any = sys.modules["IPython"].display.display
        handle = display({"text/plain": "measuring"}, raw=True, display_id=True)
        yield lambda line: handle.update({"text/plain": line}, raw=True)
        handle.update({"text/plain": ""}, raw=True)
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as screen:  # drawn only between turns
            yield lambda line: screen.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
    else:
        yield lambda _: None


@contextlib.contextmanager
def _watching_pieces(doing: str, _: Sequence[Piece]) -> Iterator[PieceWatch]:
    """Yield a function that shows the current piece of work."""
    with _watching() as show:
        yield lambda piece, _: show(f"{doing} {piece.named}")
