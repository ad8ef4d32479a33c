"""`find_nonfinite`: the first op that makes a NaN or infinity, with its place."""

import linecache
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple

import torch

from ampbench.records.ranges import IN_LOSS, FirstNonfinite
from ampbench.trace.dtypes import Kind, op_kind
from ampbench.trace.ledger import CastLedger, leaves_ahead, op_tensors, program_frames, recording

FRAMES = 5
"""How many lines of the program's own code are kept."""

MOST_OPS = 1000
"""How many ops before a loss are looked through."""

_LOGARITHMS = frozenset({"aten.log", "aten.log2", "aten.log10", "aten.log1p", "aten.log_", "aten.special_xlogy"})

_HANDED = ("aten.empty", "aten.new_empty", "aten.resize", "aten.set_")
"""Ops that return uninitialised memory."""

_OVERWRITES = frozenset(
    {"aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten._foreach_copy_"}
)
"""Ops that write into a tensor without reading it."""

_NAN, _PLUS, _MINUS = "NaN", "+inf", "-inf"

_SHOWN = {"sqrt": _NAN, "rsqrt": _NAN, "reciprocal": _PLUS, "exp": _PLUS, "expm1": _PLUS}
"""Ops whose result alone autograd keeps, with the kind of value that these make; in fp16 sums overflow to it."""


class _State(NamedTuple):
    kinds: frozenset[str] = frozenset()
    largest: float | None = None


@contextmanager
def find_nonfinite(model: torch.nn.Module) -> Iterator["_Finder"]:
    """Find the first op of the block that makes NaN or infinity, in the forward or backward pass or the optimizer.

    What is yielded has it as `first`: None while every value was finite or meant. It prints as a sentence, and has
    `operation`, `module`, `phase`, `step`, `parameter` (whose gradient it is), `inputs_largest` and `frames`, the last
    lines of the program's own code; of an op in the backward pass the last is that of its forward op.

    At fault is the first op that computes, that is, one given at least one tensor, and returns a NaN, +inf or -inf
    where none of the tensors and numbers it was given holds the same. So an infinity that is meant is not taken for a
    fault: a mask filled with -inf (the number was given), a bias that is -inf already, softmax of such scores; yet a
    NaN made of infinities is (a row that is masked altogether, 0 * inf, inf - inf). Two more are meant: the -inf of a
    logarithm of zero, which is exact, and the lowest number of a wider dtype, as masks use it, cast to a narrower one.
    An infinity of that kind whose sign is turned (the loss -log 0) is found there.

    Gradients that overflow below `torch.amp.GradScaler` are found, too. Results equal the program's, bit by bit; rows
    of all ops are kept, so a block should hold steps, and programs are refused as by `trace_casts`.
    """
    finder = _Finder(model)
    with recording(finder):
        yield finder


class _Finder(CastLedger):  # type: ignore[no-untyped-call]
    """A ledger that also looks at values until it has found the op."""

    def __init__(self, model: torch.nn.Module):
        super().__init__(model, sources=True)
        self.first: FirstNonfinite | None = None
        self._model = model

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op, record it, and look at its results."""
        kwargs = kwargs or {}
        kind = op_kind(func)
        if self.first is not None or kind.silent or kind.decomposes(args, kwargs):
            return super().__torch_dispatch__(func, types, args, kwargs)
        with torch._C.DisableTorchFunction():
            written = op_tensors([args[place] for place in kind.writes if isinstance(place, int) and place < len(args)])
            before = _state([] if kind.name in _OVERWRITES else written)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        with torch._C.DisableTorchFunction():
            self._look(kind, (*args, *kwargs.values()), out, written, before)
        return out

    def _look(self, kind: Kind, inputs: tuple[Any, ...], out: Any, written: list[torch.Tensor], before: _State) -> None:
        outputs = op_tensors(out if isinstance(out, list | tuple) else [out])
        appeared = _state([*outputs, *written]).kinds
        if not appeared or kind.name.startswith(_HANDED):
            return
        read = [tensor for tensor in op_tensors(inputs) if not any(tensor is output for output in (*written, *outputs))]
        if not read and (kind.name in _OVERWRITES or not written):
            return  # a constant
        state = _state(read)
        if not appeared - before.kinds - state.kinds - _numbers(inputs) - _meant(kind, read):
            return
        row = self.ops[-1]
        forward = self.ops[row.forward].source if row.forward is not None else None
        file, _, line = (forward or "").rpartition(":")
        code = [f"{file}:{line} in the forward pass: {linecache.getline(file, int(line)).strip()}"] if file else []
        self.first = FirstNonfinite(
            operation=row.name,
            module=row.module,
            phase=row.phase,
            step=max(self.stack.begun - 1, 0),
            inputs_largest=max((side.largest for side in (before, state) if side.largest is not None), default=None),
            parameter=self._parameter(outputs) if row.phase == "backward" else "",
            frames=[*program_lines(), *code][-FRAMES:],
        )

    def _parameter(self, outputs: list[torch.Tensor]) -> str:
        """Return the parameter whose gradient an op of the backward pass returned, or ""."""
        shapes = [tensor.shape for tensor in outputs if _state([tensor]).kinds]
        shapes += [shape[::-1] for shape in shapes]  # a Linear's weight is transposed on the way
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return next((names[id(leaf)] for leaf in leaves_ahead() if leaf.shape in shapes and id(leaf) in names), "")


def first_in_graph(loss: torch.Tensor) -> FirstNonfinite | None:
    """Return the first op before a loss on the CPU that made NaN or infinity.

    Only autograd's graph is read: ops run again on the inputs it keeps. None where these do not show the op.
    """
    nodes: list[Any] = [loss.grad_fn] if loss.grad_fn is not None else []
    first: FirstNonfinite | None = None
    order = math.inf
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]):
        for node in nodes:
            name, inputs, results, is_whole = _run_again(node)
            given, made = _state(inputs), _state(results)
            makes = made.kinds - given.kinds if inputs else made.kinds & {_SHOWN.get(name)}
            if makes and node._sequence_nr() < order:
                order = node._sequence_nr()
                first = FirstNonfinite(
                    operation=f"aten.{name}", module="", phase=IN_LOSS, step=0, inputs_largest=given.largest
                )
            is_open = given.kinds or not (makes or is_whole) if inputs else made.kinds or not is_whole
            if is_open and len(nodes) < MOST_OPS:
                nodes += [before for before, _ in node.next_functions if before is not None and before not in nodes]
    return first


def _run_again(node: Any) -> tuple[str, list[torch.Tensor], list[torch.Tensor], bool]:
    """Return the name of an op, the inputs and then the results that are known, and whether nothing else matters.

    A first input that autograd does not keep is taken as 1: so a division by zero shows.
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", node.name().partition("Backward")[0]).lower()
    with suppress(Exception):  # no such op, or values that were freed or changed since
        op = getattr(torch.ops.aten, name)
        taken = {argument.name for kind in op.overloads() for argument in getattr(op, kind)._schema.arguments}
        kept = {field.removeprefix("_saved_"): getattr(node, field) for field in dir(node) if field[:7] == "_saved_"}
        given = {
            field: value - 2**64 if type(value) is int and value >= 2**63 else value  # negative numbers lose their sign
            for field, value in kept.items()
            if field in taken and value is not None
        }
        inputs = op_tensors(given.values())
        if inputs:
            return name, inputs, op_tensors([op(**{"self": torch.ones(()), **given})]), "self" in given
        results = [value for value in op_tensors(kept.values()) if value.is_floating_point()]
        is_half = any(value.dtype is torch.float16 for value in results)
        return "" if is_half else name, [], results, bool(results)
    return name, [], [], False


def _state(tensors: list[torch.Tensor]) -> _State:
    kinds: set[str] = set()
    largest: float | None = None
    for value in tensors:
        tensor = value.values() if value.is_nested else value
        if not tensor.is_floating_point() or not tensor.numel() or tensor.layout is not torch.strided:
            continue
        low, high = (float(edge) for edge in torch.aminmax(tensor.detach()))
        if not (math.isfinite(low) and math.isfinite(high)):
            for kind, mask in (
                (_NAN, tensor.isnan()),
                (_PLUS, tensor == math.inf),
                (_MINUS, tensor == -math.inf),
            ):
                if mask.any():
                    kinds.add(kind)
            finite = tensor[tensor.isfinite()]
            if not len(finite):
                continue
            low, high = (float(edge) for edge in torch.aminmax(finite))
        largest = max(largest or 0.0, abs(low), abs(high))
    return _State(frozenset(kinds), largest)


def _numbers(inputs: tuple[Any, ...]) -> set[str]:
    """Return the kinds of the numbers among an op's arguments that are not finite."""
    numbers = [number for number in inputs if isinstance(number, float) and not math.isfinite(number)]
    return {_NAN if math.isnan(number) else _PLUS if number > 0 else _MINUS for number in numbers}


def _meant(kind: Kind, read: list[torch.Tensor]) -> set[str]:
    """Return the kinds of non-finite values that an op may make from finite inputs."""
    if kind.name in _LOGARITHMS:
        return {_MINUS}
    if kind.casts and read[0].is_floating_point():
        lowest = torch.finfo(read[0].dtype).min
        if not ((read[0] < -1e38) & (read[0] != lowest)).any() and (read[0] == lowest).any():
            return {_MINUS}
    return set()


def program_lines() -> list[str]:
    """Return the last lines of the program's own code, as "file:line in function: code", the innermost last."""
    return [
        f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}: "
        f"{linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"
        for frame in reversed(list(islice(program_frames(), FRAMES)))
    ]
