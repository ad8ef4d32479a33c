"""From a user's selection to an ordered list of cases, each runnable or skipped with a reason."""

import ast
import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import fields, replace

from ampbench.core import precisions
from ampbench.core.precisions import BASELINE, DEFAULT, PRECISIONS, SHORT_DTYPES, Precision, find_precision
from ampbench.core.recipes import find_recipe, is_path, no_own_step
from ampbench.errors import UnknownNameError, UsageError, WorkloadError, did_you_mean, nearest
from ampbench.records.case import (
    DEVICES,
    OF_CASES,
    PATHS,
    PHASES,
    TORCHS_CHOICE,
    Case,
    DeviceDescription,
    Environment,
    OwnPrecision,
    ParameterValue,
    WorkloadSource,
    compile_mode,
)
from ampbench.records.labels import emulated_of, few, slower
from ampbench.records.run import Selection
from ampbench.records.wire import Description
from ampbench.workloads.index import (
    FAMILIES,
    LIBRARIES,
    LIMITS,
    OPTIMIZER_FAMILY,
    PRESETS,
    WORKLOADS,
    check_parameter,
    is_pattern,
    is_users,
    library_source,
    resolve_parameters,
)
from ampbench.workloads.index import source as builtin_source

GIVEN: dict[str, WorkloadSource] = {}
"""Workloads that only this process has, by name, from `ampbench.live.given`."""
NO_TIME = "{} is emulated: it has errors, and no time"
EVERY = "all"
"""The name for every precision that has times, including those that the device emulates."""
NO_TRACED_TRAINING = "path traced is measured in inference only: a frozen trace has no gradients to train with"
NO_GRAPHS = "--path compiled-reduce-overhead needs CUDA graphs; on a cpu it is the same as --path compiled"
NO_LOSS = "no loss given: a workload that trains returns (module, inputs, loss)"
FEATURES_ALONE = "it has no head: it returns features, not classes, so that there is no loss to train it by"
WITHOUT_LOSS = (NO_LOSS, FEATURES_ALONE)
"""The reasons why a user's workload, and a library's network, is not trained."""
NOT_TRAINED = "training by default takes a loss and an optimizer, which a function that returns ampbench.Workload gives"
NO_RECIPE = "--optimizer is for training: --phase inference has none"
_NOT_IMPORTED = "{} cannot be imported ({})"


Describe = Callable[..., Description]
"""Builds a user's workload once in another process, or asks a library about its network, and returns the description.

Arguments are the source, its parameters and, for a library, a preset. Raises `WorkloadError` where that fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case and the source of its workload; `skip` is the reason why it will not be measured, "" where it will.

    `optimizer`: the workload, or the selection, names one.
    """

    case: Case
    source: WorkloadSource
    skip: str = ""
    optimizer: bool = True


@dataclass(frozen=True, slots=True)
class _Variant:
    """A workload as `built`, with resolved parameters; `phases` are those of a selection without any."""

    source: WorkloadSource
    phases: tuple[str, ...]
    built: Description


def make_plan(
    selection: Selection,
    environment: Environment,
    describe: Describe,
    *,
    absent_devices: bool = False,
    emulated: bool = False,
) -> list[PlannedCase]:
    """Return the cases of `selection` on the machine of `environment`, in table order, without duplicates.

    With `absent_devices`, an absent device skips no case, for traces on fake tensors. Precisions that are emulated and
    not named are skipped, unless `emulated`, for measurements without times. Raises `UsageError` for an invalid name or
    value.
    """
    sources = _distinct(
        [named for source in check_selection(selection) for named in _named_by(source, environment, describe)]
    )
    of_cases, selection = _of_cases(selection), _of_networks(selection)
    _check_overrides(selection, sources)
    devices = selection.devices or [default_device(environment)]
    recipes = [find_recipe(text).spelling for text in selection.recipes] or [""]
    _meet_own(selection, sources, describe)
    for text in recipes:
        if is_path(find_recipe(text).optimizer):
            describe(WorkloadSource(name=text, family=OPTIMIZER_FAMILY, module="", function="", builtin=False), {})
    plan: dict[str, PlannedCase] = {}
    settable: set[str] = set()
    for device in devices:
        named = bool(selection.precisions)
        asked = _precisions(selection, device, environment.device(device))
        for variant in _variants(sources, selection, environment, device, describe):
            builtin = WORKLOADS[variant.source.name].sizes if variant.source.builtin else {}
            for text in recipes if variant.built.has_loss else ():
                _check_settings(text, variant)
            settable |= variant.built.parameters.keys() | builtin.keys()
            phases = [phase for phase in PHASES if phase in (selection.phases or variant.phases)]
            for phase, path, settings, recipe, precision in itertools.product(
                phases, selection.paths or ["eager"], of_cases, recipes, asked
            ):
                if precision.same_ops and phase == "inference" and not named:
                    continue
                parameters = dict(variant.built.parameters)
                batch_size = parameters.get("batch_size")
                if isinstance(batch_size, bool) or not isinstance(batch_size, int):
                    batch_size = None  # in a user's workload it may be anything
                else:
                    del parameters["batch_size"]
                case = Case(
                    workload=variant.source.name,
                    family=variant.source.family,
                    parameters=parameters,
                    precision=precision.name,
                    device=device,
                    phase=phase,
                    path=path,
                    batch_size=batch_size,
                    input_dtype=SHORT_DTYPES[precision.storage],
                    memory_format=settings["memory_format"],
                    sdpa="" if settings["sdpa"] == TORCHS_CHOICE else settings["sdpa"],
                    scaler=settings["scaler"] or not (precision.scaler and phase == "training"),
                    recipe=recipe if phase == "training" else "",
                    version=variant.built.version,
                )
                skip = _why_not(case, variant, precision, environment, absent_devices)
                described = environment.device(device)
                if not (skip or named or emulated or described is None):
                    for half in emulated_of(described, [precision.name]):
                        name = "CPU" if device == "cpu" else "device"
                        skip = f"this {name} emulates {half}, {slower(described, half)} (precision {EVERY} runs it)"
                plan.setdefault(
                    case.case_id,
                    PlannedCase(
                        case=case,
                        source=variant.source,
                        skip=skip,
                        optimizer=bool(recipe) or variant.source.builtin or variant.built.optimizer_settings != (),
                    ),
                )
    bare = [name for name in selection.overrides if "." not in name]
    for option, name in [*(("--set", name) for name in bare), *(("--sweep", name) for name in selection.sweeps)]:
        if name not in settable:
            raise UnknownNameError(f"{option} parameter", name, sorted(settable))
    return list(plan.values())


def in_one_phase(plan: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return a plan with each workload in training if it has a loss and an optimizer, else in inference.

    A workload selected only in training stays so.
    """
    chosen: dict[str, PlannedCase] = {}
    for planned in plan:
        alike = replace(planned.case, phase="", recipe="", scaler=True).case_id
        trains = planned.case.phase == "training" and planned.optimizer and not planned.skip
        if alike not in chosen or trains:
            chosen[alike] = planned
    return list(chosen.values())


def _precisions(selection: Selection, device: str, described: DeviceDescription | None) -> list[Precision]:
    """Return the precisions named or, without any, the default ones of `device`.

    On a device without tf32, `default` is the same as fp32, and fp32 is measured.
    """
    if not selection.precisions:
        asked = [row for row in PRECISIONS.values() if device in row.default_on]
    else:
        every = [name for name, row in PRECISIONS.items() if not row.emulated]
        names = every if EVERY in selection.precisions else selection.precisions
        asked = [find_precision(name, device) for name in names]
    if described is not None and described.available and not described.tf32:
        asked = [PRECISIONS[BASELINE] if row.name == DEFAULT else row for row in asked]
    return list(dict.fromkeys(asked))


def check_selection(selection: Selection) -> list[WorkloadSource]:
    """Return the selected workloads (default: the default suite's), after all checks without torch.

    Raises `UsageError`, with the nearest names, for anything invalid on every machine.
    """
    for kind, names, known in (
        ("device", selection.devices, DEVICES),
        ("phase", selection.phases, PHASES),
        ("path", selection.paths, PATHS),
        ("preset", [selection.preset] if selection.preset else [], PRESETS),
    ):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    for recipe in selection.recipes:
        find_recipe(recipe)
    if selection.recipes and selection.phases and "training" not in selection.phases:
        raise UsageError(NO_RECIPE)
    _of_cases(selection)
    selection = _of_networks(selection)
    sources = [source for name in selection.workloads for source in find_workloads(name)]
    if not any(map(is_users, sources)):  # a user's file may define precisions
        for name in selection.precisions:
            if name != EVERY:
                find_precision(name)
    if not sources:
        sources = [builtin_source(spec) for spec in WORKLOADS.values() if spec.suite]
    sources = _distinct(sources)
    _check_overrides(selection, sources)
    for parameter in selection.sweeps:
        _check_settable("--sweep", parameter, sources)
    for source in sources:
        if source.builtin:
            resolve_parameters(WORKLOADS[source.name], selection.preset or PRESETS[0], overrides_of(source, selection))
    return sources


def _check_settings(text: str, variant: _Variant) -> None:
    """Raise `UsageError` for a recipe without an optimizer whose settings the workload's own optimizer lacks."""
    recipe, known_settings, called = find_recipe(text), variant.built.optimizer_settings, variant.source.name
    if recipe.optimizer or variant.source.builtin or variant.built.unavailable:
        return
    if recipe.settings and not known_settings:
        raise UsageError(f"{called} has no optimizer to change: name one, as in --optimizer adamw:lr=3e-4")
    keys = {"beta1": ("betas",), "beta2": ("betas", "alpha")}
    for name in recipe.settings:
        if not {name, *keys.get(name, ())} & {*known_settings}:
            raise UnknownNameError(f"setting of the optimizer of {called}", name, known_settings)


def _check_overrides(selection: Selection, sources: list[WorkloadSource]) -> None:
    """Raise `UsageError` for an override of an unselected workload, or of an unknown parameter.

    The networks of a pattern are known only later.
    """
    names = [name for source in sources for name in _names_in_set(source)]
    for key in selection.overrides:
        workload, dot, parameter = key.rpartition(".")
        if dot and workload not in names and not any(map(is_pattern, sources)):
            raise UnknownNameError("--set workload", workload, names)
        if not dot:
            _check_settable("--set", parameter, sources)


def _named_by(source: WorkloadSource, environment: Environment, describe: Describe) -> list[WorkloadSource]:
    """Return the networks that a library's name or pattern selects; where the library is absent, the name itself.

    Raises `WorkloadError`, with the nearest names, where the library has no such network.
    """
    library = LIBRARIES.get(source.family)
    if library is None or library.name in environment.unavailable:
        return [source]
    reply = describe(source, {})
    return [source] if reply.unavailable else [library_source(library, row.name) for row in reply.networks]


def _meet_own(selection: Selection, sources: list[WorkloadSource], describe: Describe) -> None:
    """Register the precisions of users' files; `UsageError` where two have one name."""
    met: dict[str, OwnPrecision] = {}
    for source in filter(is_users, sources):
        for precision in describe(source, overrides_of(source, selection)).precisions:
            if met.setdefault(precision.name, precision) != precision:
                raise UsageError(f"two precisions are called {precision.name}: rename one")
            known = {column.name: getattr(precision, column.name) for column in fields(precision)}
            if (row := Precision(**known)) != PRECISIONS.get(row.name):  # else known in this process, with its code
                precisions.meet(row)


def _of_cases(selection: Selection) -> list[dict[str, Any]]:
    """Return a selection's settings of cases, by the names of `OF_CASES`, in every combination of sweeps."""
    chosen = {
        name: selection.sweeps.get(name) or [selection.overrides.get(name, known[0])]
        for name, known in OF_CASES.items()
    }
    for name, values in chosen.items():
        known = [str(value) for value in OF_CASES[name]]
        for value in map(str, values):
            if value not in known:
                raise UnknownNameError(name, value, known)
    return [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]


def _of_networks(selection: Selection) -> Selection:
    overrides, sweeps = (
        {name: value for name, value in options.items() if name not in OF_CASES}
        for options in (selection.overrides, selection.sweeps)
    )
    return replace(selection, overrides=overrides, sweeps=sweeps)


def default_device(environment: Environment) -> str:
    """Return the accelerator of this machine, else the CPU.

    Raises `UsageError`, with torch's reason, where the machine has an accelerator that torch cannot use.
    """
    accelerators = [device for device in environment.devices if device.type != "cpu"]
    usable = next((device.type for device in accelerators if device.available), None)
    unusable = next((device for device in accelerators if device.unusable), None)
    if usable is None and unusable is not None:
        raise UsageError(
            f"torch cannot use the {unusable.type} device of this machine: {unusable.reason}; to measure the CPU: "
            "--device cpu"
        )
    return usable or "cpu"


LARGE_BYTES = 40 << 30
"""Device memory for preset "large": a training saves up to 21 GiB of state, which its divergence pass copies."""


def default_preset(device: str, memory_bytes: int | None = None) -> str:
    """Return the preset for workloads on `device`: "large" from `LARGE_BYTES` of memory (or unknown), else "small"."""
    large = device != "cpu" and (memory_bytes is None or memory_bytes >= LARGE_BYTES)
    return "large" if large else "small"


def find_workloads(name: str) -> list[WorkloadSource]:
    """Return the workloads of `name`: a workload, a family, `all`, or `file.py:function`.

    `timm:NAME` is a network of that library, or a pattern that only a server can expand.
    """
    if name in GIVEN:
        return [GIVEN[name]]
    if name == "all":
        return [builtin_source(spec) for spec in WORKLOADS.values()]
    if name in FAMILIES:
        return [builtin_source(spec) for spec in WORKLOADS.values() if spec.family == name]
    if name in WORKLOADS:
        return [builtin_source(WORKLOADS[name])]
    library, colon, network = name.partition(":")
    if colon and library in LIBRARIES:
        if not network:
            raise WorkloadError(
                f"{name} names no network: {name}* is all of them, ampbench list workloads {name} lists them"
            )
        return [library_source(LIBRARIES[library], network)]
    module, colon, function = name.rpartition(":")
    if not colon:
        if name.endswith(".py") or "/" in name:
            functions: list[str] = []
            statements: list[ast.stmt] = []
            if name.endswith(".py"):
                with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
                    statements = ast.parse(Path(name).expanduser().read_bytes()).body
            for statement in statements:  # public functions that need no arguments
                if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
                    taken = [*statement.args.posonlyargs, *statement.args.args]
                    functions += [statement.name] if len(statement.args.defaults) == len(taken) else []
            named = f"; its functions: {few(functions, 8)}" if functions else ""
            example = f"{name}:{functions[0] if functions else 'build'}"
            raise WorkloadError(f"{name}: name the function that returns the network, as in {example}{named}")
        libraries = [f"{library}:*" for library in LIBRARIES]
        known = [*WORKLOADS, *FAMILIES, *libraries, "all"]
        raise UnknownNameError("workload", name, known, instead="ampbench list workloads lists them")
    if not module or not function.isidentifier():
        near = [f"{library}:{function}" for library in nearest(module, [*LIBRARIES])] if function else []
        expected = "expected path/to/file.py:function or package.module:function"
        raise WorkloadError(f"{name} is not a workload: {did_you_mean(near) if near else expected}")
    if module.endswith(".py"):
        path = Path(module).expanduser().resolve()
        if not path.is_file():
            files = sorted(file.name for file in path.parent.glob("*.py"))
            near = [str(Path(module).with_name(file)) for file in nearest(path.name, files)]
            raise WorkloadError(f"there is no file {module}{f': {did_you_mean(near)}' if near else ''}")
        name, module = f"{path.name}:{function}", str(path)
    return [WorkloadSource(name=name, family="user", module=module, function=function, builtin=False)]


def _distinct(sources: list[WorkloadSource]) -> list[WorkloadSource]:
    """Return `sources` without repetition; `UsageError` where two have one name, and so the same case ids."""
    by_name: dict[str, WorkloadSource] = {}
    for source in sources:
        known = by_name.setdefault(source.name, source)
        if known != source:
            raise UsageError(
                f"two workloads are called {source.name}, {known.module} and {source.module}: rename one, or measure "
                "them in runs of their own"
            )
    return list(by_name.values())


def _variants(
    sources: list[WorkloadSource], selection: Selection, environment: Environment, device: str, describe: Describe
) -> Iterator[_Variant]:
    described = environment.device(device)
    preset = selection.preset or default_preset(device, described.memory_bytes if described else None)
    for source in sources:
        spec = WORKLOADS[source.name] if source.builtin else None
        named = overrides_of(source, selection)
        library = LIBRARIES.get(source.family)
        if library is not None and (why := environment.unavailable.get(library.name)):
            parameters = overrides_of(source, selection, selection.overrides)  # cannot be checked without the library
            parameters |= {name: values[0] for name, values in selection.sweeps.items()}
            built = Description(
                parameters=parameters, has_loss=True, unavailable=_NOT_IMPORTED.format(library.name, why)
            )
            yield _Variant(source, PHASES, built)
            continue
        if spec is None:
            check_parameter(source.name, "batch_size", named.get("batch_size", 1), LIMITS["batch_size"])
        asked = () if library is None else (preset,)
        settable = spec.sizes if spec else (usual := describe(source, named, *asked)).parameters
        sweeps = {name: values for name, values in selection.sweeps.items() if name in settable}
        for values in itertools.product(*sweeps.values()):
            settings = {**overrides_of(source, selection, settable), **dict(zip(sweeps, values, strict=True))}
            if spec is not None:
                lacking = environment.unavailable.get(spec.needs, "")
                built = Description(
                    parameters=resolve_parameters(spec, preset, settings),
                    has_loss=True,
                    version=spec.version,
                    channels_last=spec.images,
                    unavailable=_NOT_IMPORTED.format(spec.needs, lacking) if lacking else "",
                )
                yield _Variant(source, PHASES if selection.workloads else spec.suite, built)
                continue
            check_parameter(source.name, "batch_size", settings.get("batch_size", 1), LIMITS["batch_size"])
            try:
                built = describe(source, settings, *asked)
            except WorkloadError:  # its worker fails again, and the row names the sweep's value
                if not sweeps:
                    raise
                built = replace(usual, parameters={**usual.parameters, **settings})
            known = replace(source, elsewhere=built.elsewhere, switches=built.switches, loaded=built.loaded)
            yield _Variant(known, PHASES, built)


def _check_settable(option: str, parameter: str, sources: list[WorkloadSource]) -> None:
    """Raise `UsageError` where no selected workload has `parameter`; users' workloads are checked once built."""
    known = {name for source in sources if source.builtin for name in WORKLOADS[source.name].sizes}
    if parameter not in known and all(source.builtin for source in sources):
        raise UnknownNameError(f"{option} parameter", parameter, sorted(known))


def overrides_of(
    source: WorkloadSource, selection: Selection, settable: Collection[str] | None = None
) -> dict[str, ParameterValue]:
    """Return the overrides for `source`: NAME.PARAM, or a bare PARAM that it has.

    `settable` are the workload's parameters, where they are known only once it is built.
    """
    if settable is None:
        settable = WORKLOADS[source.name].sizes if source.builtin else {}
    overrides: dict[str, ParameterValue] = {}
    for key, value in selection.overrides.items():
        workload, dot, parameter = key.rpartition(".")
        if (dot and workload in _names_in_set(source)) or (not dot and parameter in settable):
            overrides[parameter] = value
    return overrides


def _names_in_set(source: WorkloadSource) -> tuple[str, ...]:
    return (source.name,) if source.builtin else (source.name, source.function)


def _why_not(
    case: Case, variant: _Variant, precision: Precision, environment: Environment, absent_devices: bool
) -> str:
    """Return the reason why `case` cannot be measured on this machine, or ""."""
    device = environment.device(case.device)
    present = device is not None and device.available
    if not present and not absent_devices:
        return f"{case.device} is not available: {device.reason if device else 'unknown to this torch'}"
    if variant.built.unavailable:
        return variant.built.unavailable
    if device is not None and present and (lacking := lack(device, case, precision)):
        return "; ".join(filter(None, lacking))
    if case.phase == "inference" and precision.same_ops:
        return f"without an optimizer {precision.name} is {precision.same_ops}"
    if precision.emulated and case.path != "eager":
        return f"{precision.name} is emulated, in eager mode alone"
    if case.phase == "training" and precision.compute.startswith("int8"):
        return f"{precision.name} is for inference: its weights are integers"
    if case.phase == "training" and not variant.built.has_loss:
        if case.family in LIBRARIES:
            return FEATURES_ALONE
        return NO_LOSS
    if case.phase == "training" and case.path == "traced":
        return NO_TRACED_TRAINING
    if case.device == "cpu" and compile_mode(case.path) == "reduce-overhead":
        return NO_GRAPHS
    if case.phase == "training" and variant.built.own_step and (why := no_own_step(precision)):
        return why
    if case.memory_format == "channels_last" and not variant.built.channels_last:
        return "channels_last needs images (inputs of four dimensions)"
    return ""


def lack(device: DeviceDescription, case: Case, precision: Precision) -> tuple[str, str] | None:
    """Return the feature that `device` lacks for `case`, and the option of `run` that does without; None: nothing."""
    if precision.tf32 and not device.tf32:
        return f"{case.device} has no tf32", ""
    if precision.fp32_products == "bf16" and case.device == "cuda":
        return "torch rounds no fp32 product to bf16 on cuda", ""
    dtype = SHORT_DTYPES[precision.autocast or precision.storage]
    if device.arithmetic.get(dtype) == "unavailable":
        reason = device.refusals.get(dtype)
        return f"{case.device} does not support {dtype}{f': {reason}' if reason else ''}", ""
    if case.phase == "training" and precision.scaler and case.scaler and not device.float64:
        return f"GradScaler needs fp64, which {case.device} does not have", "--set scaler=false measures without it"
    return None
