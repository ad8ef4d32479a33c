"""What a traced program did, op by op, and which of it were casts: raw, without totals or advice.

The exception are the seconds of ops, which are medians over the steps that were traced: `CastPass` says of how many.
Dtypes are short names ("fp32", "bf16"; others as torch spells them, "int64"). A module path is the name
`named_modules` gives below the traced model, so "" is the model itself, or no module. Phases are "forward", "backward"
and "optimizer".
"""

from dataclasses import dataclass, field

from ampbench.records.measurements import Fitness

INPUT, WEIGHT, BUFFER, ACTIVATION, GRADIENT, STATE = "input", "weight", "buffer", "activation", "gradient", "state"
"""What can be cast: what came from outside or from no tensor; parameters; buffers; what ops or autograd make; what an
optimizer or GradScaler keeps for itself."""

AUTOCAST, EXPLICIT, INTERNAL = "autocast", "explicit", "internal"
"""Who asked for a cast: autocast, the user's own `.half()`, or an op's implementation: attention that computes in fp32,
an op that promotes a mixed pair and, in the backward pass, returns each gradient in its own dtype. A gradient's cast
that undoes a forward cast has that one's origin."""

CAST, REUSED, NOT_NEEDED = "cast", "reused", "not needed"
"""How a weight reached an op: cast for it, taken from autocast's cache, or used as it is stored."""

AUTOGRAD, TRACED, COMPILED = "autograd", "traced", "compiled"
"""The graphs beside the eager step: that of `grad_fn`, that of torch.jit.trace, those of torch.compile."""

KEPT, FUSED, FOLDED = "kept", "fused", "folded"
"""What a graph made of a cast: an op or a kernel of its own; a part of another op's kernel; done once, the result is
stored in the graph."""

PRE_CAST_INPUTS, PRE_CAST_WEIGHTS, NO_GRAD = "inputs stored in half", "weights stored in half", "no_grad"
"""Changes that save casts and that can be tried without touching the network's code; the last: `torch.no_grad` instead
of `torch.inference_mode`, under which autocast keeps no cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One op that ran; `index` counts from 0 in the order of running.

    `name` is the op's ("aten.addmm"), `function` the Python function that asked for it
    ("torch.nn.functional.linear"; None: nothing in Python did, as in most of a backward pass). A backward op has the
    module and the function of the forward op it differentiates, whose `index` is `forward`. `recomputed`: a forward op
    run again inside the backward pass (activation checkpointing). `inputs` and `outputs` are the dtypes of its tensors,
    in order. `source` is "file:line" where asked for, `seconds` the op's own time where measured.
    """

    index: int
    name: str
    function: str | None = None
    module: str = ""
    phase: str = "forward"
    recomputed: bool = False
    forward: int | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    source: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """One copy of a tensor into another dtype, a new one or one that is there (`copy_`).

    `index` is the cast's own op, `operation` the op that then used the copy (None: none did, as with a gradient that
    is only stored). `what` is one of the kinds above, `name` the parameter's, buffer's or input's name or, for an
    activation, the path of the module that made it; a gradient has the name of what was cast in the forward pass.
    `origin` is who asked. `cached`: autocast keeps the copy until its outermost region ends. `tensor`
    numbers the values that are cast: two casts with one number cast the same, unchanged value. `made_by` is the cast
    (its op) whose copy is cast here, `producer` the op that made the value (None: it came from outside), `read_as_is`
    says that some other forward op reads the value without a cast.
    """

    index: int
    operation: int | None = None
    what: str
    name: str = ""
    module: str = ""
    phase: str = "forward"
    from_dtype: str
    to_dtype: str
    elements: int
    bytes_read: int
    bytes_written: int
    seconds: float | None = None
    origin: str = AUTOCAST
    cached: bool = False
    tensor: int
    made_by: int | None = None
    producer: int | None = None
    read_as_is: bool = False

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """One forward use of a parameter by `operation` in `module`: `status` is cast, reused or not needed.

    `cast` is the op that made the copy (None: not needed). A Python function that reads a weight in several ops (an
    LSTM its time steps) uses it once.
    """

    name: str
    operation: int
    module: str = ""
    status: str
    cast: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCalls:
    """What went in and out of a module, by dtype, in `calls` calls; `parameters` are the dtypes of its own parameters.

    `kind` is the module's class.
    """

    module: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    calls: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CastTrace:
    """All that one trace saw.

    `timed` says whether ops have seconds, `inference` whether gradients were switched off all along. `model_ops` is how
    many ops had run when the model's own call returned, the last one outside a backward pass: what comes after is the
    loss (None: it was never called).
    """

    ops: list[Operation] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    weights: list[WeightUse] = field(default_factory=list)
    modules: list[ModuleCalls] = field(default_factory=list)
    timed: bool = False
    inference: bool = False
    model_ops: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCast:
    """One cast in a graph; fields as in `Cast`, `elements` None where the graph does not know. `fate` is as above."""

    what: str
    name: str = ""
    module: str = ""
    phase: str = "forward"
    from_dtype: str
    to_dtype: str
    elements: int | None = None
    fate: str = KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTrace:
    """The same step as one `graph` has it: its ops in order, and its casts.

    An op's `name` is the graph's own ("aten.addmm", "AddmmBackward0"). `notes` say what could not be read. `error` is
    the first line of what making the graph raised; then there are no ops.
    """

    graph: str
    ops: list[Operation] = field(default_factory=list)
    casts: list[GraphCast] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSaving:
    """A `change` that was made and measured in turns with the step as it was; `names` are the tensors concerned.

    `casts` is how many casts a step it saved, `bytes_moved` what those read and wrote. `before[p]` are the samples of
    the unchanged build of pair `p`, `after[p]` those of the changed one built beside it, in seconds per step.
    `identical` tells whether the outputs are the same to the last bit. Peaks are as in `MemoryPass`.
    """

    change: str
    names: list[str]
    casts: int
    bytes_moved: int
    before: list[list[float]]
    after: list[list[float]]
    identical: bool
    peak_bytes_before: int | None = None
    peak_bytes_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPass:
    """One step of a case, traced in eager mode, with what its casts cost and what other graphs make of them.

    `how` is "device", or "fake tensors" where the device is absent: then nothing is timed and nothing ran on hardware.
    Seconds of ops are medians over `traced_steps` traced steps. `step_samples[b]` are the seconds per step of build `b`
    of the untraced step. `fitness` is how quiet the machine was while all this was timed. `peak_bytes` and
    `memory_source` are as in `MemoryPass`. `notes` say what was left out and why.
    """

    case_id: str
    how: str
    trace: CastTrace
    traced_steps: int = 1
    step_samples: list[list[float]] = field(default_factory=list)
    fitness: Fitness = field(default_factory=Fitness)
    peak_bytes: int | None = None
    memory_source: str | None = None
    graphs: list[GraphTrace] = field(default_factory=list)
    checked: list[CheckedSaving] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """What a cast pass is to do beside tracing one eager step.

    `sources` adds the line of code to each op. `time` times ops and the step, for about `seconds`; a slow step takes
    longer, where an interval needs it. `check` measures the changes that save casts, for about as long each. `graphs`
    are the graphs to read.
    """

    sources: bool = False
    time: bool = True
    check: bool = False
    seconds: float = 4.0
    graphs: list[str] = field(default_factory=list)
