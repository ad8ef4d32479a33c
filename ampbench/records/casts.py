"""The casts of a traced program, op by op: raw records, avoidable casts, and ops as rows.

Seconds of ops are medians over the traced steps. Dtypes are short names ("fp32", "bf16"; others as in torch, "int64").
A module path is a name of `named_modules` below the traced model; "" is the model itself, or no module. Phases are
"forward", "backward" and "optimizer". Ops have the names of eager mode ("aten.addmm"), TorchScript ("aten::linear") or
inductor ("prims.convert_element_type"); `plain_name` unifies them. Fake tensors have no fused kernels: ops that
hardware runs whole are decomposed, with casts in between (`casts_inside`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from ampbench.records import Builds, Count, Positive, Seconds, one_of
from ampbench.records.measured import Fitness

INPUT, WEIGHT, BUFFER, ACTIVATION, GRADIENT, STATE = SUBJECTS = (
    "input", "weight", "buffer", "activation", "gradient", "state",
)  # fmt: skip
"""The kinds of cast values, in the order of tables: from outside or from no tensor; parameters; buffers; results of
ops or autograd; the state of an optimizer or GradScaler."""

AUTOCAST, EXPLICIT, INTERNAL = "autocast", "explicit", "internal"
"""The origin of a cast: autocast; the user's own `.half()`; or an op's implementation, such as attention in fp32, or an
op that promotes a mixed pair and returns each gradient in its own dtype. A gradient's cast that undoes a forward cast
has the same origin."""

CAST, REUSED, NOT_NEEDED = "cast", "reused", "not needed"
"""How a weight reached an op: cast for it, from autocast's cache, or as stored."""

AUTOGRAD, TRACED, COMPILED = "autograd", "traced", "compiled"
"""Graphs besides the eager step: of `grad_fn`, of torch.jit.trace, of torch.compile."""

KEPT, FUSED, FOLDED = "kept", "fused", "folded"
"""The fate of a cast in a graph: a separate op or kernel; a part of another op's kernel; a constant."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One op that ran; `index` counts from 0 in the order of running.

    `name` is the op's ("aten.addmm"), `function` the Python function that called it ("torch.nn.functional.linear";
    None: no Python did, as in most of a backward pass). A backward op has the module and the function of its forward
    op, whose `index` is `forward`. `recomputed`: a forward op run again in the backward pass (activation
    checkpointing). `inputs` and `outputs` are the dtypes of its tensors. `source` ("file:line") and its own `seconds`
    are optional.
    """

    index: Count
    name: str
    function: str | None = None
    module: str = ""
    phase: str = "forward"
    recomputed: bool = False
    forward: Count | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    source: str | None = None
    seconds: Seconds | None = None


class Cast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One copy of a tensor into another dtype, a new one or an existing one (`copy_`).

    `index` is the cast's own op, `operation` the op that used the copy (None: none did, as with a stored gradient).
    `name` is that of the parameter, buffer or input, or the path of the module that made the activation; a gradient has
    the name of the forward cast. `cached`: autocast keeps the copy until its outermost region ends. Casts with one
    number `tensor` cast the same, unchanged value. `made_by` is the cast whose copy is cast here, `producer` the op
    that made the value (None: from outside); `read_as_is`: another forward op reads the value without a cast.
    """

    index: Count
    operation: Count | None = None
    what: Annotated[str, one_of(*SUBJECTS)]
    name: str = ""
    module: str = ""
    phase: str = "forward"
    from_dtype: str
    to_dtype: str
    elements: Count
    bytes_read: Count
    bytes_written: Count
    seconds: Seconds | None = None
    origin: Annotated[str, one_of(AUTOCAST, EXPLICIT, INTERNAL)] = AUTOCAST
    cached: bool = False
    tensor: Count
    made_by: Count | None = None
    producer: Count | None = None
    read_as_is: bool = False

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


class Promotion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An input that `operation` converts inside its kernel to the widest dtype of its inputs.

    A CPU copies the input for it, a GPU converts it as it reads.
    """

    operation: Count
    from_dtype: str
    to_dtype: str
    elements: Count
    bytes_read: Count
    bytes_written: Count

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


class WeightUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One forward use of a parameter by `operation` in `module`; `cast` is the op that made the copy (None: no copy).

    A Python function that reads a weight in several ops (an LSTM its time steps) uses it once.
    """

    name: str
    operation: Count
    module: str = ""
    status: Annotated[str, one_of(CAST, REUSED, NOT_NEEDED)]
    cast: Count | None = None


class ModuleCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The dtypes of a module's inputs, outputs and own parameters, in `calls` calls; `kind` is its class."""

    module: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    calls: Count = 1


class CastTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One trace of a step.

    `timed`: ops have seconds; `inference`: without gradients. `model_ops` counts the ops until the model's last call
    outside a backward pass returned; the loss comes after (None: it was never called).
    """

    ops: list[Operation] = []
    casts: list[Cast] = []
    promotions: list[Promotion] = []
    weights: list[WeightUse] = []
    modules: list[ModuleCalls] = []
    timed: bool = False
    inference: bool = False
    model_ops: Count | None = None


class GraphCast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One cast in a graph, with fields as in `Cast`; `elements` is None if unknown."""

    what: Annotated[str, one_of(*SUBJECTS)]
    name: str = ""
    module: str = ""
    phase: str = "forward"
    from_dtype: str
    to_dtype: str
    elements: Count | None = None
    fate: str = KEPT


class GraphTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The ops and casts of the same step in one `graph`.

    An op has its `name` in the graph ("aten::addmm"); autograd's graph has casts alone. `notes` list unread parts.
    If making the graph failed, `error` is the first line of the exception and there are no ops.
    """

    graph: str
    ops: list[Operation] = []
    casts: list[GraphCast] = []
    notes: list[str] = []
    error: str = ""


class CastPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One step of a case, traced in eager mode, with the costs of its casts and the same step in other graphs.

    `how` is "device", or "fake tensors" if the device is absent: then nothing is timed. Seconds of ops are medians over
    `traced_steps`. `step_samples[b]` are the seconds per step of build `b` of the untraced step. `notes` say what was
    left out and why.
    """

    case_id: str
    how: str
    trace: CastTrace
    traced_steps: Positive = 1
    step_samples: Builds = []
    fitness: Fitness = Fitness()
    graphs: list[GraphTrace] = []
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for a reference to an op that did not run."""
        pointing = [op.forward for op in self.trace.ops]
        for cast in self.trace.casts:
            pointing += cast.index, cast.operation, cast.producer
        if any(at is not None and at >= len(self.trace.ops) for at in pointing):
            raise ValueError("an op that did not run")


class Tracing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a worker traces a step.

    `sources` adds the line of code to each op. `time` times ops and the step, for about `seconds`; a slow step takes
    longer. `graphs` are the graphs to read.
    """

    sources: bool = False
    time: bool = True
    seconds: Seconds = 4.0
    graphs: list[str] = []


FLOATING = ("fp16", "bf16", "fp32", "fp64")
"""The dtypes of autocast and mixed precision."""

VIEWS = frozenset({"t", "view", "permute", "transpose", "expand", "slice", "select", "squeeze", "unsqueeze", "detach"})
VIEWS |= {"alias", "reshape", "flatten", "unsafe_view", "reshape_alias", "split", "split_with_sizes", "chunk", "unbind"}
VIEWS |= {"as_strided", "view_as", "expand_as", "lift_fresh"}
"""Ops that return a view of their input."""

CASTS = frozenset({"to", "to_copy", "convert_element_type", "type_as", "autocast_to_reduced_precision"})
CASTS |= {"autocast_to_full_precision"}
"""Ops that copy into another dtype or, where the dtype is right already, do nothing."""


def plain_name(name: str) -> str:
    """Return an op's name without namespace, underscores and "native": "unsafe_view"."""
    return name.rpartition("::")[2].rpartition(".")[2].strip("_").removeprefix("native_")


def is_view(name: str) -> bool:
    """Return whether an op of any graph returns a view."""
    return plain_name(name) in VIEWS


class Whole(NamedTuple):
    """A kernel that runs a function whole, on which devices; `lowers`: autocast casts all its inputs."""

    devices: Collection[str]
    lowers: bool = False


WHOLE: Mapping[str, Whole] = {
    "scaled_dot_product_attention": Whole(("cuda", "xpu")),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), Whole(("cuda",), lowers=True)),  # cuDNN's `_cudnn_rnn`
}
"""Composite functions of torch by name, and the kernels that devices have for them."""


STORE, KEEP, ONCE, STAY = "store", "keep", "once", "stay"
"""Ways to save casts: store the value in the low dtype, keep a weight's copy, cast once, stay in the low dtype."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Casts (their ops) to `to_dtype` that one change would make unnecessary: `kind` is a key above.

    `names` are the tensors: all inputs, weights or buffers of one change of one kind, or one activation. `bytes_moved`
    and `seconds` are the cost of the casts.
    """

    kind: str
    what: str
    names: tuple[str, ...]
    casts: tuple[int, ...]
    bytes_moved: int
    seconds: float | None
    to_dtype: str


def bytes_moved(conversions: Iterable[Cast | Promotion]) -> int:
    """Return the bytes that casts, or conversions inside ops, read and write."""
    return sum(conversion.bytes_moved for conversion in conversions)


def cache_bytes(trace: CastTrace) -> int:
    """Return the bytes of the copies that autocast's cache keeps until its region ends, each weight's once.

    A weight that an optimizer has changed is another value of the same weight, in another region.
    """
    held = {(cast.name or cast.tensor, cast.to_dtype): cast.bytes_written for cast in trace.casts if cast.cached}
    return sum(held.values())


def savings(trace: CastTrace) -> list[Saving]:
    """Return possible savings, the largest first; a cast is counted in one only.

    An input that every op casts could be stored in that dtype; a weight that autocast's cache does not hold is cast at
    each use; a value cast twice to one dtype could be cast once; a copy that is cast back could have stayed. In
    inference, a weight or a buffer that no op reads as it is could be stored in the dtype it is cast to; training
    updates it in fp32. Casts inside an op's implementation cannot be saved.
    """
    groups: dict[tuple[str, str, str, int], list[Cast]] = {}
    by_index = {cast.index: cast for cast in trace.casts}
    known: set[tuple[int, str]] = set()
    for cast in trace.casts:
        kind = None if cast.origin == INTERNAL else _kind(cast, known, by_index, trace.inference)
        known.add((cast.tensor, cast.to_dtype))
        if kind is not None:
            together = cast.name and cast.what in (INPUT, WEIGHT, BUFFER)
            groups.setdefault((kind, cast.what, cast.to_dtype, 0 if together else cast.tensor), []).append(cast)
    possible = [
        Saving(
            kind=kind,
            what=subject,
            names=tuple(dict.fromkeys(cast.name for cast in casts)),
            casts=tuple(cast.index for cast in casts),
            bytes_moved=bytes_moved(casts),
            seconds=sum(cast.seconds or 0.0 for cast in casts) if trace.timed else None,
            to_dtype=to_dtype,
        )
        for (kind, subject, to_dtype, _), casts in groups.items()
    ]
    return sorted(possible, key=lambda saving: (-(saving.seconds or 0.0), -saving.bytes_moved, saving.casts))


def _kind(cast: Cast, known: set[tuple[int, str]], by_index: Mapping[int, Cast], inference: bool) -> str | None:
    if cast.what == INPUT and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    if (cast.tensor, cast.to_dtype) in known and not cast.cached:
        return KEEP if cast.what == WEIGHT else ONCE
    kept = inference and cast.what in (WEIGHT, BUFFER)
    if kept and cast.origin == AUTOCAST and not cast.read_as_is and _lowers(cast):
        return STORE
    maker = by_index.get(cast.made_by) if cast.made_by is not None else None
    if maker is not None and maker.from_dtype == cast.to_dtype and cast.phase == maker.phase:
        return STAY
    return None


def _lowers(cast: Cast) -> bool:
    return cast.bytes_written < cast.bytes_read


def cast_users(trace: CastTrace) -> list[Operation | None]:
    """Return for each cast of `trace` the op that uses the copy; None for a stored copy without a user.

    A gradient's cast belongs to the op whose operand's cast it undoes, or else to the op that made the gradient: the
    next reader may be GradScaler, which reads all gradients.
    """
    ops, casts = trace.ops, {cast.index: cast for cast in trace.casts}
    users: list[Operation | None] = []
    for cast in trace.casts:
        user = cast.operation
        if cast.phase == "backward":
            forward = ops[cast.index].forward
            undone = casts.get(forward) if forward is not None else None
            user = undone.operation if undone is not None else cast.producer
        users.append(ops[user] if user is not None else None)
    return users


def casts_inside(trace: CastTrace) -> Counter[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return counts of ops with an output in another floating dtype than all inputs, without a traced cast.

    Ops that make a new tensor ("zeros_like") or view the same bytes as another dtype cast nothing.
    """
    casts = {cast.index for cast in trace.casts}
    counts: Counter[tuple[str, tuple[str, ...], tuple[str, ...]]] = Counter()
    for operation in trace.ops:
        before, after = floating(operation.inputs), floating(operation.outputs)
        if operation.index in casts or not before or not after or set(before) & set(after):
            continue
        name = operation.name.partition(".")[2] or operation.name
        if not (is_view(operation.name) or name.endswith("_like") or name.startswith(("new_", "_efficientzerotensor"))):
            counts[name, before, after] += 1
    return counts


def floating(dtypes: Iterable[str]) -> tuple[str, ...]:
    """Return the dtypes of autocast and mixed precision, each once."""
    return tuple(dict.fromkeys(dtype for dtype in dtypes if dtype in FLOATING))


def op_rows(trace: CastTrace) -> list[dict[str, Any]]:
    """Return a row of `OP_COLUMNS` per op; columns of `Cast` are None for an op that is no cast."""
    casts = {cast.index: structs.asdict(cast) for cast in trace.casts}
    return [
        {name: getattr(op, name) for name in _OF_OP}
        | {"inputs": ", ".join(op.inputs), "outputs": ", ".join(op.outputs)}
        | {column: casts.get(op.index, {}).get(name) for name, column in _OF_ITS_CAST.items()}
        for op in trace.ops
    ]


CAST_COLUMNS = Cast.__struct_fields__
_OF_OP = (
    "index", "name", "function", "module", "phase", "recomputed", "inputs", "outputs", "source", "seconds",
)  # fmt: skip
_OF_ITS_CAST = {
    name: "tensor_name" if name == "name" else name
    for name in CAST_COLUMNS
    if name not in ("index", "module", "phase", "seconds")
}
OP_COLUMNS = (*_OF_OP, *_OF_ITS_CAST.values())
