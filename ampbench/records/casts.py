"""The casts of a traced program, op by op: raw records, and how ops are grouped.

Seconds of ops are medians over the traced steps. Dtypes are short names ("fp32", "bf16"; others as torch spells them,
"int64"). A module path is a name of `named_modules` below the traced model; "" is the model itself, or no module.
Phases are "forward", "backward" and "optimizer". Names of ops are those of eager mode ("aten.addmm"), TorchScript
("aten::linear") and inductor ("prims.convert_element_type"); `plain_name` unifies them. Fake tensors have no fused
kernels: ops that hardware runs whole are decomposed, and cast in between (`casts_inside`).
"""

from collections.abc import Collection, Mapping
from typing import Annotated, NamedTuple

import msgspec

from ampbench.records.bounds import Change, Count, Positive, Seconds, StepSeconds, one_of
from ampbench.records.measured import Fitness

INPUT, WEIGHT, BUFFER, ACTIVATION, GRADIENT, STATE = "input", "weight", "buffer", "activation", "gradient", "state"
"""What can be cast: values from outside or from no tensor; parameters; buffers; results of ops or autograd; the state
of an optimizer or GradScaler."""

SUBJECTS = (INPUT, WEIGHT, BUFFER, ACTIVATION, GRADIENT, STATE)
"""What is cast, in the order of tables."""

AUTOCAST, EXPLICIT, INTERNAL = "autocast", "explicit", "internal"
"""Who asked for a cast: autocast; the user's own `.half()`; or an op's implementation: attention that computes in fp32,
an op that promotes a mixed pair and returns each gradient in its own dtype. A gradient's cast that undoes a forward
cast has its origin."""

CAST, REUSED, NOT_NEEDED = "cast", "reused", "not needed"
"""How a weight reached an op: cast for it, from autocast's cache, or as it is stored."""

AUTOGRAD, TRACED, COMPILED = "autograd", "traced", "compiled"
"""Graphs besides the eager step: that of `grad_fn`, of torch.jit.trace, of torch.compile."""

KEPT, FUSED, FOLDED = "kept", "fused", "folded"
"""What a graph made of a cast: an own op or kernel; a part of another op's kernel; a constant in the graph."""

PRE_CAST_INPUTS, PRE_CAST_WEIGHTS, NO_GRAD = "inputs stored in half", "weights stored in half", "no_grad"
"""Changes that save casts without touching the network's code; the last: `torch.no_grad` instead of
`torch.inference_mode`, under which autocast keeps no cache."""


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
    """An input that `operation`, which was given several dtypes, converts to the widest of them inside its kernel.

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
    """One cast in a graph, with fields as in `Cast`; `elements` is None if the graph does not know."""

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

    An op's `name` is the graph's own ("aten::addmm"); autograd's graph has casts alone. `notes` say what could not be
    read, `error` is the first line of what making the graph raised; then there are no ops.
    """

    graph: str
    ops: list[Operation] = []
    casts: list[GraphCast] = []
    notes: list[str] = []
    error: str = ""


class CheckedSaving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A `change` that was made to tensors of these `names`, measured in turns with the unchanged step.

    It saved `casts` a step, which moved `bytes_moved`. `before[p]` and `after[p]` are the samples of pair `p`, in
    seconds per step. `identical`: outputs are the same bits. Peaks are as in `MemoryPass`.
    """

    change: str
    names: list[str]
    casts: Change
    bytes_moved: Change
    before: list[list[StepSeconds]]
    after: list[list[StepSeconds]]
    identical: bool
    peak_bytes_before: Count | None = None
    peak_bytes_after: Count | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` for samples that are not those of pairs."""
        if not self.before or len(self.before) != len(self.after) or not all((*self.before, *self.after)):
            raise ValueError("a change that was not measured in pairs")


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
    step_samples: list[list[StepSeconds]] = []
    fitness: Fitness = Fitness()
    graphs: list[GraphTrace] = []
    checked: list[CheckedSaving] = []
    notes: list[str] = []

    def __post_init__(self) -> None:
        """Raise `ValueError` for a build without samples, or a reference to an op that did not run."""
        if not all(self.step_samples):
            raise ValueError("a build without samples")
        pointing = [op.forward for op in self.trace.ops]
        for cast in self.trace.casts:
            pointing += cast.index, cast.operation, cast.producer
        if any(at is not None and at >= len(self.trace.ops) for at in pointing):
            raise ValueError("an op that did not run")


class Tracing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """How a worker traces a step.

    `sources` adds the line of code to each op. `time` times ops and the step, for about `seconds`; a slow step takes
    longer. `check` measures changes that save casts, for about as long each. `graphs` are the graphs to read.
    """

    sources: bool = False
    time: bool = True
    check: bool = False
    seconds: Seconds = 4.0
    graphs: list[str] = []


FLOATING = ("fp16", "bf16", "fp32", "fp64")
"""The dtypes of autocast and mixed precision."""

VIEWS = frozenset({"t", "view", "permute", "transpose", "expand", "slice", "select", "squeeze", "unsqueeze", "detach"})
VIEWS |= {"alias", "reshape", "flatten", "unsafe_view", "reshape_alias", "split", "split_with_sizes", "chunk", "unbind"}
VIEWS |= {"as_strided", "view_as", "expand_as", "lift_fresh"}
"""Ops that only say where to read."""

CASTS = frozenset({"to", "to_copy", "convert_element_type", "type_as", "autocast_to_reduced_precision"})
CASTS |= {"autocast_to_full_precision"}
"""Ops that copy into another dtype or, where the dtype is right already, do nothing."""


def plain_name(name: str) -> str:
    """Return an op's name without namespace, underscores and "native": "unsafe_view"."""
    return name.rpartition("::")[2].rpartition(".")[2].strip("_").removeprefix("native_")


def is_view(name: str) -> bool:
    """Return whether an op of any graph only says where to read."""
    return plain_name(name) in VIEWS


class Whole(NamedTuple):
    """A kernel that runs a function whole, on which devices; `lowers`: autocast casts all its inputs."""

    devices: Collection[str]
    said: str
    lowers: bool = False


_RECURRENT = Whole(
    ("cuda",), "cuDNN's `_cudnn_rnn`, for which autocast casts input, states and weights once", lowers=True
)
WHOLE: Mapping[str, Whole] = {
    "scaled_dot_product_attention": Whole(
        ("cuda", "xpu"), "flash or memory-efficient attention, which casts nothing inside, where it takes these shapes"
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
}
"""Composite functions of torch by name, and the kernels that devices have for them."""
