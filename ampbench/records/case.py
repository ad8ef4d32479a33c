"""A case, its network and precision, the machine with its devices and installation, and the -k of verbs.

A case is one workload with its resolved parameters, in one precision, on one device, in one phase and path.
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec.structs import fields, replace

from ampbench.core.precisions import Precision
from ampbench.errors import UsageError
from ampbench.records import Count, Magnitude, one_of

DEVICES = ("cpu", "cuda", "xpu")
"""The measurable device types. A new one comes last: results of asv identify a device by its place."""
AUTOCAST_DEVICES = (*DEVICES, "mps")
"""Those on which a program may switch autocast on, which is seen, and undone, on Apple's as well."""


class DeviceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The state of an accelerator before the measurements.

    `source` is its source, `unavailable` why parts of it are missing, in sentences without a full stop. The device may
    take `power_limit_watts`, by default `default_limit_watts`. `processes` are others with memory on it, in words. With
    `mig` it is an instance of a GPU, without sensors of its own.
    """

    source: str = ""
    unavailable: list[str] = []
    power_limit_watts: Magnitude | None = None
    default_limit_watts: Magnitude | None = None
    processes: list[str] = []
    mig: bool = False


class DeviceDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One device type of this machine, with its capabilities.

    `arithmetic` has the support of matrix products by dtype: "native", "emulated", "unknown" or "unavailable";
    `refusals` are the errors of dtypes that failed. `slowdown` has by half dtype the time of a product and a
    convolution relative to fp32, which a worker measures on a CPU. `tf32` and `float64`: the device has them.
    `autocast_dtype` is torch's default for this device type ("bf16"). `reason` is why a device is not available: it is
    absent, or present but `unusable` (in torch's words). `details` holds the card's "uuid" if
    torch knows it. `state` is the accelerator's own report (None: not asked).
    """

    type: str
    available: bool
    unusable: bool = False
    name: str = ""
    reason: str = ""
    count: Count = 0
    memory_bytes: Count | None = None
    arithmetic: dict[str, str] = {}
    slowdown: dict[str, Magnitude] = {}
    refusals: dict[str, str] = {}
    tf32: bool = False
    float64: bool = True
    autocast_dtype: str = ""
    driver: str | None = None
    details: dict[str, str] = {}
    state: DeviceState | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The fingerprint of a machine and of the installation a worker runs in.

    `unavailable` has the packages that failed to import, with reasons (such as torchvision built for another torch).
    `variables` are the environment variables that change how torch computes, `packages` the versions of libraries of
    networks, except torchvision. In an imported run, unknown fields are None or "".
    """

    host: str
    system: str
    cpu: str
    cpu_count: Count | None
    cpu_flags: list[str] = []
    memory_bytes: Count | None = None
    python_version: str
    ampbench_version: str = ""
    torch_version: str
    torch_commit: str = ""
    torchvision_version: str | None = None
    numpy_version: str
    cuda_version: str | None = None
    cudnn_version: str | None = None
    xpu_version: str | None = None
    threads: Count | None
    compiler: str | None = None
    devices: list[DeviceDescription] = []
    unavailable: dict[str, str] = {}
    variables: dict[str, str] = {}
    packages: dict[str, str] = {}

    def device(self, type: str) -> DeviceDescription | None:
        """Return the description of the device `type`, None where this torch does not know it."""
        return next((device for device in self.devices if device.type == type), None)


VISIBLE_DEVICES = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Variables that assign a node's accelerators to a process."""


def of_kind(environment: Environment) -> Environment:
    """Return the part of the environment that machines of one kind share: all but the name and the memory's size.

    Visible accelerators, other processes on them, and a CPU's measured slowdown are left out, too.
    """
    devices = [
        replace(device, memory_bytes=None, arithmetic={}, slowdown={})
        if device.type == "cpu"
        else replace(device, state=None, details=device.details | {"uuid": ""})
        for device in environment.devices
    ]
    variables = {name: value for name, value in environment.variables.items() if name not in VISIBLE_DEVICES}
    return replace(environment, host="", memory_bytes=None, devices=devices, variables=variables)


def kind_of(environment: Environment) -> str:
    """Return the same as a text, for use as a key."""
    return repr(of_kind(environment))


PHASES = ("inference", "training")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""torch.compile's modes."""
WITH_GRAPHS = ("reduce-overhead", "max-autotune")
"""The modes that record launches in CUDA graphs, where the device has these."""
COMPILED = "compiled"
"""The path of a network that is compiled as torch.compile does by default."""
PATHS = ("eager", COMPILED, *(f"{COMPILED}-{mode}" for mode in COMPILE_MODES[1:]), "traced")
"""The ways to run a network; compiled ones name each mode except the default."""
SDPA = ("math", "flash", "efficient", "cudnn", "overrideable")
"""torch's backends of scaled_dot_product_attention, as `torch.nn.attention.SDPBackend` calls them."""
TORCHS_CHOICE = "auto"
"""The setting under which torch chooses by the inputs."""

ParameterValue = bool | int | float | str
"""The types of a workload's parameters: they can be typed on a command line and stored without loss."""
OF_CASES: Mapping[str, Sequence[ParameterValue]] = MappingProxyType(
    {"memory_format": ("contiguous", "channels_last"), "sdpa": (TORCHS_CHOICE, *SDPA), "scaler": (True, False)}
)
"""The values of what --set and --sweep decide of a case, not of its network; the default first."""


def compiled_path(mode: str) -> str:
    """Return the path of a network that is compiled in one of `COMPILE_MODES`."""
    return COMPILED if mode == COMPILE_MODES[0] else f"{COMPILED}-{mode}"


def compile_mode(path: str) -> str:
    """Return the mode of `COMPILE_MODES` of a path; "" if the path does not compile."""
    return {compiled_path(mode): mode for mode in COMPILE_MODES}.get(path, "")


class WorkloadSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Where a worker finds a workload: its `name` in tables and ids, and where its function lives.

    `module` is a dotted module name or an absolute path ending in .py, `function` the name in it; `builtin` workloads
    get their weights and inputs from ampbench's own generator. `elsewhere` are packages that the current folder's
    repository holds and that were imported from other places, as "package (path)": their code is not the commit's.
    `switches` are torch's switches that the user's code sets when imported and called, as in its source. `loaded` are
    the dtypes below fp32 of its weights as loaded ("bf16"), or the names of tensor subclasses.
    """

    name: str
    family: str
    module: str
    function: str
    builtin: bool
    elsewhere: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()


class OwnPrecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A user's own precision: `ampbench.Precision` without code."""

    name: str
    summary: str = ""
    storage: str = "float32"
    autocast: str | None = None
    rounding: str = "float32"
    fp32_products: str = "ieee"
    compute: str = ""
    scaler: bool = False
    master: bool = False
    updates: str = "nearest"
    keep: tuple[str, ...] = ()
    default_on: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Precision) -> "OwnPrecision":
        """Return the precision of a row without its code."""
        return cls(**{field.name: getattr(row, field.name) for field in fields(cls)})


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The smallest measured unit; its `case_id` is the join key of every comparison.

    `parameters` are the workload's resolved parameters without the batch size, which is None if a user's workload has
    no such parameter. `input_dtype` ("fp32") is the dtype of floating inputs. `sdpa` is the only backend of `SDPA`
    allowed for scaled_dot_product_attention ("": torch chooses). `scaler` is False if `--set scaler=false` removed
    GradScaler from training. `recipe` is the training recipe, a `TrainingRecipe.spelling` such as "adamw-lm,lr=1e-05"
    ("": the workload's own, or inference). `version` is the workload's; it is not part of the id, so that comparisons
    pair the records of two versions and report it. A case has no slots, so its id is computed once.
    """

    workload: str
    family: str
    parameters: Mapping[str, ParameterValue] = {}
    precision: str
    device: str
    phase: Annotated[str, one_of(*PHASES)]
    path: Annotated[str, one_of(*PATHS)]
    batch_size: Count | None
    input_dtype: str
    memory_format: str
    sdpa: Annotated[str, one_of("", *SDPA)] = ""
    scaler: bool = True
    recipe: str = ""
    version: int = 0

    @property
    def network(self) -> str:
        """The network, in words of its id: the workload with its parameters, batch size, memory format and `sdpa`."""
        settings = dict(sorted(self.parameters.items()))
        listed = ",".join(f"{name}={value}" for name, value in settings.items())
        parts = [f"{self.workload}[{listed}]" if listed else self.workload]
        if self.batch_size is not None:
            parts.append(f"b{self.batch_size}")
        if self.memory_format != "contiguous":
            parts.append(self.memory_format)
        if self.sdpa:
            parts.append(f"sdpa-{self.sdpa}")
        return "/".join(parts)

    @property
    def group(self) -> str:
        """The network and its recipe, which the precisions of one table share."""
        return "/".join([self.network, *([f"recipe-{self.recipe}"] if self.recipe else [])])

    @cached_property
    def case_id(self) -> str:
        """A stable, readable id: `resnet18[classes=1000,image=224]/b8/bf16_autocast/cpu/inference/eager/in-fp32`."""
        parts = [self.network, self.precision, self.device, self.phase, self.path, f"in-{self.input_dtype}"]
        if self.recipe:
            parts.append(f"recipe-{self.recipe}")
        if not self.scaler:
            parts.append("no-scaler")
        return "/".join(parts)


Table = tuple[str, str, str, str]
"""The common properties of cases whose speeds are compared: device, group, phase, path."""


def table_of(case: Case) -> Table:
    """Return the table that `case` is in."""
    return case.device, case.group, case.phase, case.path


_SHOWN = 100
"""The most characters of an invalid expression in a message."""

_Test = Callable[[str], bool]


def matches(expression: str, case_id: str) -> bool:
    """Return whether `case_id` satisfies `expression`: parts of ids joined by and, or, not and parentheses.

    An empty expression matches everything; matching ignores case. Raises `UsageError` for a malformed expression.
    """
    try:
        return _test(expression)(case_id.lower())
    except (SyntaxError, RecursionError, MemoryError):  # the last two: nested without end
        quoted = repr(expression if len(expression) <= _SHOWN else f"{expression[:_SHOWN]}…")
        raise UsageError(f"-k {quoted} is not an expression of names joined by and, or, not, ( and )") from None


@functools.lru_cache(maxsize=1 << 16)
def _test(expression: str) -> _Test:
    """Return the test of an id in lower case; an expression is parsed once, however many ids."""
    if not expression.strip():
        return lambda _: True
    words: list[str] = []
    parts: list[str] = []
    for part in re.findall(r"[()]|[^\s()]+", expression):
        if part in ("and", "or", "not", "(", ")"):
            parts.append(part)
        else:
            parts.append(f"w[{len(words)}]")  # the word in Python's syntax
            words.append(part.lower())
    tree = ast.parse(" ".join(parts), mode="eval")
    if any(isinstance(node, ast.Call | ast.Tuple) for node in ast.walk(tree)):  # as in "a (b)" and "()"
        raise SyntaxError
    code = compile(tree, "-k", "eval")
    return lambda case_id: bool(eval(code, {"w": [word in case_id for word in words]}))
