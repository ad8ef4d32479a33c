"""A training watched in its own program: `watch` sees a loop by hooks around its steps and leaves its numbers alone."""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from msgspec import structs
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampbench.core.precisions import FORMATS
from ampbench.core.statement import Statement
from ampbench.errors import UsageError, first_line
from ampbench.records.kinds import WATCH
from ampbench.records.measured import Recipe
from ampbench.records.ranges import GRADIENT, WEIGHT
from ampbench.records.run import Footer, Selection, Settings
from ampbench.result import Findings, Plot, plotted
from ampbench.show.document import Document
from ampbench.show.studies import Subject
from ampbench.show.terminal import Printed
from ampbench.studies import watch as study
from ampbench.studies.watch import GRADIENTS, LOSS, WEIGHTS, Arrival, Look, Watched, Watching, spared_skips
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.modules import ModuleRun, is_compiled, watch_runs
from ampbench.trace.nonfinite import program_lines
from ampbench.trace.ranges import Ranges
from ampbench.watching.culprit import Culprit
from ampbench.watching.updates import Updates
from ampbench.worker.network import recipe_of, running_statistics, stops_away

if TYPE_CHECKING:
    import pandas as pd

Method = TypeVar("Method", bound=Callable[..., None])
Listener = Callable[..., None]
"""Called with the arguments of a method."""
LOGS = "add_scalar", "log_metric", "log", "log_metrics"
"""Methods of loggers: the first two take a name, a value and a step, the others a mapping and a step."""
WRAPPERS = "OptimizedModule", "DistributedDataParallel", "DataParallel"
"""Modules around a network, for several devices or by torch.compile."""
MOST_UNREAD = 1000
"""Losses that are left on a device: their memory is bounded, for any number of steps between looks."""
SKIPS_IN_A_ROW = 8
"""Skipped steps one after the other from which the culprit is looked for: GradScaler begins at 2^16."""


def watch(model: torch.nn.Module, optimizer: Any = None, *, scaler: Any = None, every: int = 100) -> "Watch":
    """Return a context manager that watches the training loop in its block and leaves its numbers alone.

    The first step and each `every`-th are looked at; between looks nothing waits for the device. `optimizer` is one, or
    a list (default: every optimizer of torch that moves parameters of `model`), `scaler` the GradScaler that the loop
    uses. Printing the watch, in the loop or after it, shows what is wrong and what half precision would change.

    Raises `UsageError` for a model that is no module, and for an `every` below 1.
    """
    return Watch(model, optimizer, scaler, every)


def _guarded(method: Method) -> Method:
    """Return a method that does nothing outside the block or within another, and keeps its errors from the loop."""

    @functools.wraps(method)
    def guarded(self: "Watch", *args: Any, **kwargs: Any) -> None:
        if self._deaf:
            return
        self._deaf = True
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a training does not die of being watched
            self._fails(error)
        finally:
            self._deaf = False

    return guarded  # type: ignore[return-value]


class Watch(Printed):
    """A watched training loop; `watch` makes it, and it prints what it saw so far."""

    def __init__(self, model: torch.nn.Module, optimizer: Any, scaler: Any, every: int):
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"watch(model, optimizer): model is {type(model).__name__}, no torch.nn.Module")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"every={every!r}: a number of steps, 1 or more")
        self._model = self._network = model
        while type(self._network).__name__ in WRAPPERS:
            self._network = next(self._network.children())
        given = [] if optimizer is None else [*optimizer] if isinstance(optimizer, list | tuple) else [optimizer]
        self._optimizers = [_of_torch(member) for member in given]
        self._scaler: Any = scaler if scaler is not None and scaler.is_enabled() else None
        self._every = every
        self._unseen: dict[str, str] = {}
        self._compiled = any(map(is_compiled, model.modules()))
        self._seen = _Values(torch.nn.Identity() if self._compiled else self._network, self._fails)
        self._updates = Updates()
        self._culprit = Culprit(self._network, self._scaler is not None)
        self._sinks: list[tuple[Callable[..., Any], bool]] = []
        self._looks: list[Look] = []
        self._arrivals: list[Arrival] = []
        self._mine: dict[int, bool] = {}
        self._leader: Any = None
        self._deaf, self._looking = True, False
        self._hooks, self._look = ExitStack(), ExitStack()
        self._steps = self._taken = self._skipped = self._last = self._in_a_row = self._calls = 0
        self._loss: torch.Tensor | None = None
        self._norms: list[float | None] = []
        self._unread: list[tuple[int, torch.Tensor]] = []
        self._found: list[torch.Tensor] = []
        self._broken: tuple[int, str] | None = None
        self._line = self._raised = ""
        self._recipe: Recipe | None = None

    def __enter__(self) -> "Watch":
        if not self._deaf or self._steps:
            raise UsageError("this watch has been used: make another with ampbench.watch")
        self._deaf = False
        if self._compiled:
            self._unseen[Watching.COMPILED] = ""
        for member in self._optimizers:
            if not isinstance(member, torch.optim.Optimizer):
                self._unseen[Watching.UNKNOWN] = type(member).__name__
        if getattr(self._model, "_compiled_call_impl", None) is None:
            begins = self._model.register_forward_pre_hook(self.begins, with_kwargs=True)
            self._hooks.callback(begins.remove)
        self._hooks.enter_context(_around(torch.Tensor, "backward", self._differentiates, self._differentiated))
        self._hooks.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self._hooks.callback(register_optimizer_step_post_hook(self._after_step).remove)
        if self._scaler is not None:
            self._hooks.enter_context(_around(self._scaler, "step", self._before_scaled_step, self._after_scaled_step))
        self._open()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            self._raised = first_line(error)
        self._end()
        self._deaf = True

    @_guarded
    @torch.no_grad()
    def _end(self) -> None:
        self._look.close()
        self._hooks.close()
        self._culprit.stop()
        self._culprit.forget()
        self._seen.stop()
        self._read()
        self._loss = self._leader = None

    @_guarded
    def begins(self, *call: Any) -> None:
        """Take note of a step's module and inputs; callbacks call this without any where a module is not called."""
        if not self._compiled and torch.is_grad_enabled():  # no evaluation within the loop
            self._culprit.begins(call[1:])

    @_guarded
    def _differentiates(self, loss: torch.Tensor, *_: Any, **__: Any) -> None:
        is_loss, value, waits = loss.numel() == 1 and loss.is_floating_point(), loss.detach(), self._waits(loss)
        is_broken = is_loss and not waits and not math.isfinite(value)
        if self._looking or is_broken:
            self._line = next(reversed(program_lines()), "")
        if is_loss:
            self._loss = value
            self._unread += [(self._steps, value)] if waits else []
        if is_broken:
            self._breaks(LOSS, self._steps, loss)

    @staticmethod
    def _waits(tensor: torch.Tensor) -> bool:
        """Return whether reading a tensor waits for a device."""
        return tensor.device.type != "cpu"

    @_guarded
    def _differentiated(self, *_: Any, **__: Any) -> None:
        self._culprit.stop()

    @_guarded
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._calls += 1
        if not self._is_mine(optimizer):
            return
        found = getattr(optimizer, "found_inf", None)  # a fused step skips by itself
        if found is not None:
            self._found.append(found)
        if not self._looking or (found is not None and bool(found)):
            return
        names = {id(member): name for name, member in self._network.named_parameters()}
        with torch.no_grad():
            self._norms.append(self._updates.before(optimizer, names))
            for name, gradient in () if self._compiled else self._updates.gradients.items():
                self._seen.count(name.rpartition(".")[0], GRADIENT, name, gradient)

    @_guarded
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._is_mine(optimizer):
            return
        try:
            if self._looking:
                self._updates.after(optimizer)
        finally:
            if optimizer is self._leader:
                self._taken += 1
                self._in_a_row = 0
                self._next()

    @_guarded
    def _before_scaled_step(self, *_: Any, **__: Any) -> None:
        self._calls = 0

    @_guarded
    def _after_scaled_step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Count a scaled step that no step of the optimizer came of as skipped."""
        if self._calls or not self._is_mine(_of_torch(optimizer)) or _of_torch(optimizer) is not self._leader:
            return
        self._skipped += 1
        self._in_a_row += 1
        self._last += bool(self._taken)
        if (
            self._last > spared_skips(self._taken, self._scaler.get_growth_interval())
            or self._in_a_row >= SKIPS_IN_A_ROW
        ):
            self._culprit.search(self._steps)
        self._next()

    def _is_mine(self, optimizer: Any) -> bool:
        """Return whether an optimizer is watched; the first that is ends the steps."""
        mine = self._mine.get(id(optimizer))
        if mine is None:
            ours = {id(member) for member in self._network.parameters()}
            moves = any(id(member) in ours for group in optimizer.param_groups for member in group["params"])
            mine = any(optimizer is member for member in self._optimizers) if self._optimizers else moves
            self._mine[id(optimizer)] = mine
        if mine and self._leader is None:
            self._leader = optimizer
        return mine

    def _next(self) -> None:
        """End a step, and a look at it; begin one if the next step is due."""
        try:
            if self._looking:
                self._close()
            elif len(self._unread) >= MOST_UNREAD:
                self._read()
        finally:
            self._steps += 1
            self._culprit.forget()
        if (self._steps + 1) % self._every == 0 and Watching.FAILED not in self._unseen:
            self._open()

    def _open(self) -> None:
        self._looking = True
        self._norms = []
        self._mine.clear()
        if not self._compiled:
            self._seen.renew(self._network)
            after, before = functools.partial(self._sees, "after"), functools.partial(self._sees, "before")
            self._look.enter_context(watch_runs(self._network, after, before))

    @_guarded
    def _sees(self, moment: str, run: ModuleRun) -> None:
        if torch.is_grad_enabled():
            with torch.no_grad():
                getattr(self._seen, moment)(run)

    @torch.no_grad()
    def _close(self) -> None:
        """End a look: read what the device still has."""
        self._looking = False
        self._look.close()
        self._read()
        if not self._looks and not self._compiled:
            for name, tensor in (*self._network.named_parameters(), *self._network.named_buffers()):
                if tensor.is_floating_point():
                    self._seen.count(name.rpartition(".")[0], WEIGHT, name, tensor)
        self._recipe = recipe_of(self._leader, self._network)
        scale = None if self._scaler is None else float(self._scaler.get_scale())
        loss = None if self._loss is None else float(self._loss) / (scale or 1.0)
        rates = [float(group["lr"]) for group in self._leader.param_groups if "lr" in group]
        arrivals, shares = self._updates.close()
        norms = [norm for norm in self._norms if norm is not None]
        if self._norms and not norms:
            self._breaks(GRADIENTS, self._steps)
        elif self._updates.strange:
            self._breaks(WEIGHTS, self._steps)
        look = Look(
            step=self._steps + 1,
            loss=loss if loss is not None and math.isfinite(loss) else None,
            grad_norm=math.hypot(*norms) if norms else None,
            lr=max(rates, default=None),
            scale=scale,
            skipped=self._skipped,
            **shares,
        )
        self._arrivals = arrivals or self._arrivals
        self._looks.append(look)
        if self._updates.unjudged:
            self._unseen[Watching.UNJUDGED] = self._updates.unjudged
        self._logs(look)

    def _read(self) -> None:
        """Read what steps left on a device: whether their losses are finite, and whether fused steps were skipped."""
        unread, found = self._unread, self._found
        self._unread, self._found = [], []
        if unread:
            finite = torch.stack([loss.reshape(()).to(unread[0][1]) for _, loss in unread]).isfinite().tolist()
            for (step, _), is_finite in zip(unread, finite, strict=True):
                if not is_finite:
                    self._breaks(LOSS, step)
                    break
        skipped = int(sum(float(flag) for flag in found))
        self._skipped += skipped
        self._taken -= skipped
        self._last += skipped if len(self._looks) > 1 else 0  # before, the scale settles

    def _breaks(self, what: str, step: int, loss: torch.Tensor | None = None) -> None:
        """Keep the first step, from 0, in which something was not finite, and look for the culprit.

        A loss that is known at once, of weights that are not finite, is due to the step before.
        """
        named = self._network.named_parameters()
        strange = self._updates.strange or [name for name, member in named if not bool(member.isfinite().all())]
        if strange and loss is not None and self._broken is None:
            what, step = WEIGHTS, step - 1
        self._updates.strange = strange
        self._broken = self._broken or (step + 1, what)
        if not strange:
            self._culprit.search(self._steps, loss, self._line)

    def _fails(self, error: Exception) -> None:
        """Stop looking after an error of the watch itself."""
        self._unseen[Watching.FAILED] = first_line(error)
        self._looking = False
        with suppress(Exception):
            self._look.close()

    def log_to(self, sink: Any) -> "Watch":
        """Have each look written to a logger by the first of the methods `LOGS` that it has; return the watch.

        These are of TensorBoard's `SummaryWriter`, the module `mlflow`, a run of W&B and Lightning's loggers.
        """
        method = next((name for name in LOGS if callable(getattr(sink, name, None))), None)
        if method is None:
            raise UsageError(f"{type(sink).__name__} is no logger: it needs one of {', '.join(LOGS)}")
        self._sinks.append((getattr(sink, method), method in LOGS[:2]))
        return self

    def _logs(self, look: Look) -> None:
        values = {f"ampbench/{name}": value for name, value in structs.asdict(look).items() if value is not None}
        for log, single in self._sinks:
            for name, value in values.items() if single else ():
                log(name, value, look.step)
            if not single:
                log(values, step=look.step)

    @property
    def record(self) -> Watched:
        """All that was seen so far."""
        broken, what = self._broken or (None, "")
        stored = {short_dtype(member.dtype) for member in self._network.parameters() if member.requires_grad}
        trained = [name for name, member in self._network.named_parameters() if member.requires_grad]
        moved, looked = self._updates.moved, any(look.grad_norm is not None for look in self._looks)
        return Watched(
            network=type(self._network).__name__,
            device=next((member.device.type for member in self._network.parameters()), "cpu"),
            every=self._every,
            steps=self._steps,
            taken=self._taken,
            skipped=self._skipped,
            last=self._last,
            growth_interval=None if self._scaler is None else self._scaler.get_growth_interval(),
            looks=[*self._looks],
            arrivals=[*self._arrivals],
            magnitudes=self._seen.magnitudes,
            stalls={name: stops_away(momentum, dtype) for name, momentum, dtype in running_statistics(self._network)},
            recipe=self._recipe,
            halves=[name for name in FORMATS if name in stored],
            strange=self._updates.strange,
            still=[name for name, moves in moved.items() if not moves],
            idle=[name for name in trained if looked and name not in moved],
            broken=broken,
            what=what,
            first=self._culprit.first,
            outputs=self._culprit.outputs,
            line=self._line if self._broken else "",
            raised=self._raised,
            unseen=dict(self._unseen),
        )

    @property
    def findings(self) -> Findings:
        """The watch as a run, with the tables and the `save` of a study."""
        from ampbench.drive.session import new_header, now
        from ampbench.live import no_trace
        from ampbench.store import gathered
        from ampbench.worker.environment import read_environment

        with no_trace():
            environment = read_environment()
        record, settings = self.record, Settings(isolation=False)
        header = new_header(Selection(), settings, environment, [], "", ["ampbench.watch", record.network])
        header = structs.replace(header, explains=WATCH, asked={"every": self._every})
        return Findings(gathered(Path(), header, [record, Footer(ended="complete", finished_at=now())]))

    @property
    def statements(self) -> list[Statement]:
        """What is wrong, and what half precision would change, as codes with facts."""
        return list(study.conclusions(None, self.record))

    @property
    def frame(self) -> "pd.DataFrame":
        """A row for each look."""
        return self.findings.frame

    def document(self) -> Document:
        """Return the statements and tables, as `ampbench show` prints a saved watch."""
        return self.findings.document()

    def plot(self) -> Plot:
        """Return a chart of the share of each update that arrives, which a notebook shows."""
        drawing, record = study.STUDY.charts[0], self.record
        rows = drawing.rows(Subject(record.name, record))
        sized = {"data": {"values": rows}, "width": 420, "height": 220}
        return plotted(sized | dict(drawing.spec(rows)), drawing.title.lower())

    def save(self, folder: Path | str) -> Path:
        """Write the watch as a run into a results folder, for `ampbench show` and `report`; return its file.

        Raises `StoreError` where it cannot be written.
        """
        return self.findings.save(folder)

    def __repr__(self) -> str:
        return f"<ampbench.watch: {self.record.name}>"


class _Values(Ranges):
    """The values of a network over all looks; errors go to `fails`, as autograd would raise those of a hook."""

    def __init__(self, network: torch.nn.Module, fails: Callable[[Exception], None]):
        super().__init__(network)
        self._fails = fails

    def renew(self, network: torch.nn.Module) -> None:
        """Get to know modules and parameters that were added."""
        self._kinds |= {path: type(module).__name__ for path, module in network.named_modules()}

    def gradient(self, module: str, name: str, gradient: torch.Tensor) -> None:
        """Count a gradient; a hook on a tensor."""
        try:
            super().gradient(module, name, gradient)
        except Exception as error:  # noqa: BLE001 - a training does not die of being watched
            self._active = False
            self._fails(error)


def _of_torch(optimizer: Any) -> Any:
    """Return the optimizer of torch within wrappers, as Accelerate's and Lightning's are."""
    inner = getattr(optimizer, "optimizer", None)
    return _of_torch(inner) if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer else optimizer


@contextmanager
def _around(owner: Any, name: str, before: Listener, after: Listener) -> Iterator[None]:
    """Call functions before each call of a method of `owner`, a class or an object, in this block and after it returns.

    The method is replaced for as long as anybody listens: torch has no hook on these.
    """
    own = vars(owner).get(name)
    listeners: list[tuple[Listener, Listener]] | None = getattr(own, "listeners", None)
    own = getattr(own, "own", own)
    if listeners is None:
        listeners = []
        setattr(owner, name, _heard(getattr(owner, name), listeners, own))
    listeners.append((before, after))
    try:
        yield
    finally:
        listeners.remove((before, after))
        method = vars(owner).get(name)
        if not listeners and getattr(method, "listeners", None) is listeners:  # nobody replaced it since
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _heard(method: Callable[..., Any], listeners: list[tuple[Listener, Listener]], own: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def heard(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(*args, **kwargs)
        for before, _ in listeners:
            before(*args, **kwargs)
        returned = method(*args, **kwargs)
        for _, after in listeners:
            after(*args, **kwargs)
        return returned

    heard.listeners, heard.own = listeners, own  # type: ignore[attr-defined]
    return heard
