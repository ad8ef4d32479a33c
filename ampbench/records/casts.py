"""What a traced program did, op by op, and which of it were casts: raw, without totals or advice.

Dtypes are short names ("fp32", "bf16"; others as torch spells them, "int64"). A module path is the name
`named_modules` gives below the traced model, so "" is the model itself, or no module. Phases are "forward", "backward"
and "optimizer".
"""

from dataclasses import dataclass, field

INPUT, WEIGHT, BUFFER, ACTIVATION, GRADIENT = "input", "weight", "buffer", "activation", "gradient"
"""What can be cast: what came from outside or from no tensor; parameters; buffers; what ops or autograd make."""

AUTOCAST, EXPLICIT, INTERNAL = "autocast", "explicit", "internal"
"""Who asked for a cast: autocast, the user's own `.half()`, or an op's implementation: attention that computes in fp32,
an op that promotes a mixed pair and, in the backward pass, returns each gradient in its own dtype. A gradient's cast
that undoes a forward cast has that one's origin."""

CAST, REUSED, NOT_NEEDED = "cast", "reused", "not needed"
"""How a weight reached an op: cast for it, taken from autocast's cache, or used as it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One op that ran; `index` counts from 0 in the order of running.

    `name` is the op's ("aten.addmm"), `function` the Python function that asked for it
    ("torch.nn.functional.linear"; None: nothing in Python did, as in most of a backward pass). A backward op has the
    module and the function of the forward op it differentiates. `recomputed`: a forward op run again inside the
    backward pass (activation checkpointing). `inputs` and `outputs` are the dtypes of its tensors, in order. `source`
    is "file:line" where asked for, `seconds` the op's own time where measured.
    """

    index: int
    name: str
    function: str | None = None
    module: str = ""
    phase: str = "forward"
    recomputed: bool = False
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    source: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """One copy of a tensor into another dtype.

    `index` is the cast's own op, `operation` the op that then used the copy (None: none did, as with a gradient that
    is only stored). `what` is one of the kinds above, `name` the parameter's, buffer's or input's name or, for an
    activation, the path of the module that made it; a gradient has the name of what was cast in the forward pass.
    `origin` is who asked. `cached`: autocast keeps the copy until its outermost region ends. `tensor`
    numbers the values that are cast: two casts with one number cast the same, unchanged value. `made_by` is the cast
    (its op) whose copy is cast here, `read_as_is` says that some other forward op reads the value without a cast.
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
    read_as_is: bool = False


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
    """All that one trace saw; `timed` says whether ops have seconds."""

    ops: list[Operation] = field(default_factory=list)
    casts: list[Cast] = field(default_factory=list)
    weights: list[WeightUse] = field(default_factory=list)
    modules: list[ModuleCalls] = field(default_factory=list)
    timed: bool = False
