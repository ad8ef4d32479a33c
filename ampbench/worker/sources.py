"""From a workload's source to a built workload: imports, seeds, calls, and checks of the result."""

import copy
import dataclasses
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ampbench.core.precisions import BUILT_IN, PRECISIONS, Precision, meet
from ampbench.core.recipes import find_recipe
from ampbench.errors import AmpbenchError, WorkloadError, did_you_mean, first_line, in_one_line, nearest, own_place
from ampbench.records.case import OwnPrecision, ParameterValue, WorkloadSource
from ampbench.records.wire import Description
from ampbench.trace.dtypes import HALVES, short_dtype
from ampbench.worker.data import (
    Generator,
    InputsOnly,
    batches_of,
    in_batches,
    is_loaded_low,
    is_wrapper,
    named_tensors,
    tensors_of,
)
from ampbench.worker.machine import users_switches
from ampbench.worker.network import check_class
from ampbench.worker.step import seed_all
from ampbench.workload import Workload
from ampbench.workloads import index

FURTHER_BYTES = 64 * 1024 * 1024
"""The most bytes of inputs and targets of further batches."""


def build_workload(source: WorkloadSource, parameters: Mapping[str, ParameterValue], seed: int) -> Workload:
    """Return the workload of `source`, built with `parameters` (including the batch size) and `seed`.

    torch, numpy and random are seeded before a user's function is called. Raises `WorkloadError` for a workload that
    cannot be imported or built, or breaks the contract.
    """
    if source.family in index.LIBRARIES:
        return _checked(source.name, _library(source).build(source.function, parameters, seed))
    function = _function(source)
    if source.builtin:
        version = index.WORKLOADS[source.name].version
        workload = function(Generator(source.name, version, parameters, seed), **parameters)
        assert isinstance(workload, Workload)
        return dataclasses.replace(workload, version=version)
    seed_all(seed)
    try:
        returned = function(**parameters)
    except Exception as error:
        raise WorkloadError(
            f"workload {source.name} cannot be built: {in_one_line(error)}{own_place(error)}"
        ) from error
    return _checked(source.name, returned)


def further_inputs(
    source: WorkloadSource, parameters: Mapping[str, ParameterValue], seed: int, count: int
) -> list[tuple[Any, Any]]:
    """Return up to `count` further batches, inputs and targets, of a workload that is not a user's.

    They are the rest of one larger batch; weights are not built. [] for a user's workload, for one without a batch
    size, and for one that already has several batches; fewer where they would exceed `FURTHER_BYTES`.
    """
    size = parameters.get("batch_size")
    if index.is_users(source) or not isinstance(size, int):
        return []

    def drawn(settings: Mapping[str, ParameterValue]) -> tuple[Any, Any]:
        if source.family in index.LIBRARIES:
            batch: tuple[Any, Any] = _library(source).batch(source.function, settings, seed)
            return batch
        version, function = index.WORKLOADS[source.name].version, _function(source)
        workload = function(InputsOnly(source.name, version, settings, seed), **settings)
        return workload.inputs, workload.targets

    alone = drawn(parameters)
    if isinstance(alone[0], list):
        return []
    held = sum(tensor.nbytes for tensor in tensors_of(alone))
    whole = dict(parameters) | {"batch_size": size * (1 + min(count, FURTHER_BYTES // max(held, 1)))}
    return in_batches(drawn(whole), size)[1:]


def describe_workload(
    source: WorkloadSource, parameters: Mapping[str, ParameterValue], seed: int, preset: str = ""
) -> Description:
    """Return the description of a user's workload, after building it once; raises as `build_workload` does.

    A library's network is not built: its library describes it by a `preset`, or lists the networks that match a
    pattern.
    """
    if library := index.LIBRARIES.get(source.family):
        try:
            known = _library(source)
        except Exception as error:  # noqa: BLE001 - a broken package raises anything
            return Description(has_loss=True, unavailable=f"{library.name} cannot be imported ({first_line(error)})")
        described: Description = known.describe(source.function, parameters, preset)
        return described
    before = users_switches()
    if source.family == index.OPTIMIZER_FAMILY:
        check_class(find_recipe(source.name))
        return Description()
    precisions = meet_precisions(source)
    defaults = _defaults(source)
    for name, value in parameters.items():
        if name not in defaults:
            known = ", ".join(defaults) or "it has none"
            raise WorkloadError(f"workload {source.name} has no parameter {name!r}; its parameters: {known}")
        if wanted := _wanted(value, defaults[name]):
            expected = f"{name}={value}: {name} is {wanted} (its default is {defaults[name]})"
            raise WorkloadError(f"workload {source.name}: {expected}")
    settled = {**defaults, **parameters}
    workload = build_workload(source, settled, seed)
    optimizer_settings: tuple[str, ...] = ()
    if workload.optimizer is not None:
        try:
            groups = workload.optimizer(workload.module.parameters()).param_groups
        except Exception as error:
            raise _wrong(source.name, f"its optimizer cannot be made: {first_line(error)}") from error
        optimizer_settings = tuple(key for key in groups[0] if key != "params")
    return Description(
        parameters=settled,
        has_loss=workload.loss is not None or workload.step is not None,
        own_step=workload.step is not None,
        items_per_step=items_per_step(workload),
        version=workload.version,
        optimizer_settings=optimizer_settings,
        channels_last=any(leaf.ndim == 4 and leaf.is_floating_point() for leaf in tensors_of(workload.inputs)),
        elsewhere=imported_elsewhere(Path.cwd()),
        precisions=precisions,
        loaded=loaded_dtypes(workload.module),
        switches=tuple(switch for switch in users_switches() if switch not in before),
    )


def meet_precisions(source: WorkloadSource) -> tuple[OwnPrecision, ...]:
    """Register the user's own precisions at the top of the file of `source`, and return them.

    Raises `UsageError` for a name of one of ampbench's precisions.
    """
    if not index.is_users(source):
        return ()
    try:
        module = import_module(source.module, builtin=source.builtin)
    except AmpbenchError:
        raise
    except Exception as error:
        raise _not_imported(source, error) from error
    precisions = [value for value in vars(module).values() if isinstance(value, Precision)]
    users = [row for row in dict.fromkeys(precisions) if not (row.name in BUILT_IN and row is PRECISIONS[row.name])]
    for precision in users:
        meet(precision)
    return tuple(map(OwnPrecision.of, users))


def imported_elsewhere(folder: Path) -> tuple[str, ...]:
    """Return the packages of the git repository around `folder` that this process imported from another place.

    Each as "package (path)", out of the packages and modules at the repository's root and in its src/. An installed
    copy of a project is measured as it was at the installation, whatever is checked out now.
    """
    root = next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
    if root is None:
        return ()
    elsewhere = []
    for name, module in sorted(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if "." in name or not origin or name in sys.stdlib_module_names:
            continue
        local = [path for top in (root, root / "src") for path in (top / name / "__init__.py", top / f"{name}.py")]
        held = [path.resolve() for path in local if path.is_file()]
        if held and Path(origin).resolve() not in held:
            elsewhere.append(f"{name} ({Path(origin).parent if Path(origin).stem == '__init__' else origin})")
    return tuple(elsewhere)


def items_per_step(workload: Workload) -> float:
    """Return the items that throughput counts: the workload's own number, else the length of its first input, else
    1."""
    if workload.items_per_step is not None:
        return float(workload.items_per_step)
    first = next((leaf for leaf in tensors_of(workload.inputs) if leaf.ndim), None)
    return float(len(first) if first is not None else 1)


def _library(source: WorkloadSource) -> Any:
    """Return a network's `ampbench.workloads.named.Library`; raises any error of its import."""
    importlib.import_module(source.family)
    return getattr(importlib.import_module(source.module), source.family.upper())


def _not_imported(source: WorkloadSource, error: Exception) -> WorkloadError:
    """Return the error for a user's module that cannot be imported, with a suggestion."""
    hint = _as_module(source) if "attempted relative import" in str(error) else ""
    if isinstance(error, ModuleNotFoundError) and error.name == source.module:
        near = [f"{library}:{source.function}" for library in nearest(source.module, [*index.LIBRARIES])]
        hint = f"; {did_you_mean(near)}" if near else ""
    return WorkloadError(f"workload {source.name} cannot be imported: {in_one_line(error)}{own_place(error)}{hint}")


def _function(source: WorkloadSource) -> Callable[..., Any]:
    try:
        module = import_module(source.module, builtin=source.builtin)
    except Exception as error:
        raise _not_imported(source, error) from error
    function = getattr(module, source.function, None)
    if function is None:
        known = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        near = nearest(source.function, known)
        hint = did_you_mean(near) if near else f"its functions: {', '.join(known) or 'it has none'}"
        raise WorkloadError(f"{source.module} has no function {source.function!r}; {hint}")
    if not callable(function):
        raise WorkloadError(
            f"{source.name} is {type(function).__name__}, not a function that returns a network and its inputs"
        )
    return function  # type: ignore[no-any-return]


def import_module(module: str, *, builtin: bool = False) -> ModuleType:
    """Return the module of this name, or of an absolute path that ends in .py; raises any error of its import."""
    if not module.endswith(".py"):
        if not builtin and "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(module)
    path = Path(module)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"ampbench_user_{path.stem}"
    if name in sys.modules and sys.modules[name].__file__ == str(path):
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    sys.modules[name] = imported
    try:
        spec.loader.exec_module(imported)
    except BaseException:
        del sys.modules[name]
        raise
    return imported


def _as_module(source: WorkloadSource) -> str:
    """Return a hint for a file with relative imports: its name as a module of its package."""
    path = Path(source.module)
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if root == path.parent and path.is_relative_to(Path.cwd()):
        root = Path.cwd()
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    folder = "" if root == Path.cwd() else f", in {root}"
    return f"; it is a module of a package: name it {name}:{source.function}{folder}" if "." in name else ""


def _defaults(source: WorkloadSource) -> dict[str, ParameterValue]:
    defaults: dict[str, ParameterValue] = {}
    for name, parameter in inspect.signature(_function(source)).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is parameter.empty:
            raise WorkloadError(f"workload {source.name}: its parameter {name!r} needs a default value")
        if isinstance(parameter.default, ParameterValue):
            defaults[name] = parameter.default
    return defaults


def _wanted(value: ParameterValue, default: ParameterValue) -> str:
    """Return the expected type, in words, of a `value` that does not match its `default`; "" for a match."""
    match default, value:
        case (str(), _) | (bool(), bool()) | (float(), float()):
            return ""
        case (bool(), _):
            return "true or false"
        case (int() | float(), int()) if not isinstance(value, bool):
            return ""
    return "a whole number" if isinstance(default, int) else "a number"


def _checked(name: str, returned: object) -> Workload:
    """Return the result of a user's function as a `Workload`; `WorkloadError` where it breaks the contract."""
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        returned = Workload(module=returned[0], inputs=returned[1], loss=returned[2] if len(returned) == 3 else None)
    if not isinstance(returned, Workload):
        raise WorkloadError(
            f"workload {name} returned {_kind(returned)}; "
            "expected (module, inputs), (module, inputs, loss) or ampbench.Workload"
            + ("; is a return missing?" if returned is None else "")
        )
    if not isinstance(returned.module, torch.nn.Module):
        raise _wrong(name, f"the module is {_kind(returned.module)}; expected a torch.nn.Module")
    if isinstance(returned.loss, type):
        raise _wrong(name, f"the loss is the class {returned.loss.__name__}; expected {returned.loss.__name__}()")
    for part in ("loss", "optimizer"):
        if (value := getattr(returned, part)) is not None and not callable(value):
            raise _wrong(name, f"the {part} is {_kind(value)}; expected a function or None")
    if (step := returned.step) is not None and (not callable(step) or _needed(step) not in (None, 4)):
        raise _wrong(
            name,
            f"the step is {_kind(step)} of {_needed(step) if callable(step) else 'no'} arguments; "
            "expected a function (network, batch, optimizer, scaler), or None",
        )
    _check_state(name, returned)
    if not _is_whole(returned.version):
        raise _wrong(name, f"the version is {returned.version!r}; expected a whole number")
    items = returned.items_per_step
    if items is not None and not (isinstance(items, int | float) and 0 < items < math.inf):
        raise _wrong(name, f"items_per_step is {items!r}; expected a number above 0")
    wanted = returned.outputs
    listed = wanted if isinstance(wanted, list | tuple) else [wanted]
    if not (wanted is None or callable(wanted) or all(isinstance(part, str) for part in listed)):
        raise _wrong(name, f"outputs is {_kind(wanted)}; expected a function of the network's output, or names in it")
    dimensions = returned.classes_dim
    by_name = dimensions if isinstance(dimensions, Mapping) else {"": dimensions}
    if dimensions is not None and not all(isinstance(key, str) and _is_whole(by_name[key]) for key in by_name):
        raise _wrong(name, f"classes_dim is {dimensions!r}; expected a whole number, or one by output's name")
    returned = _with_pairs_split(name, returned)
    if _needed(returned.loss) == 2 and returned.targets is None:
        raise _wrong(name, "the loss takes (output, targets); give targets, or a loss of the output alone")
    batches = batches_of(returned.inputs)
    if not batches:
        raise _wrong(name, "the list of batches is empty")
    for batch in batches:
        if not isinstance(batch, torch.Tensor | tuple | dict):
            hint = ": give its batches, list(loader)" if isinstance(batch, torch.utils.data.DataLoader) else ""
            raise _wrong(name, f"an input is {_kind(batch)}{hint}; expected a tensor, tuple, dict or a list of such")
        _check_arguments(name, returned.module, batch)
        _check_cached(name, returned.cached, batch)
    if isinstance(returned.inputs, list) and returned.targets is not None:
        if not isinstance(returned.targets, list):
            raise _wrong(name, "inputs are a list of batches, so targets must be a list too")
        if len(returned.targets) != len(batches):
            raise _wrong(name, f"{len(batches)} batches of inputs but {len(returned.targets)} of targets")
    for label, part in returned.module.named_modules():
        if hasattr(part, "_hf_hook"):
            raise _wrong(name, f"accelerate's hooks move {label or 'the network'}; load it without device_map")
    for label, tensor in named_tensors(returned.module):
        if tensor.device.type != "cpu":
            cure = (
                "load all weights on the CPU" if tensor.is_meta else "return the module on the CPU, ampbench moves it"
            )
            raise _wrong(name, f"{label} is on {tensor.device}{', without values' * tensor.is_meta}; {cure}")
        if tensor.dtype is torch.float64 and isinstance(tensor, torch.nn.Parameter):
            raise _wrong(name, f"{label} is {tensor.dtype}; return the module in fp32, bf16 or fp16")
    return returned


def loaded_dtypes(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the dtypes below fp32 in which a network was loaded, and the tensor subclasses among its weights."""
    tensors = [tensor for _, tensor in named_tensors(module)]
    low = [short_dtype(tensor.dtype) for tensor in tensors if tensor.dtype in HALVES] if is_loaded_low(module) else []
    return tuple(dict.fromkeys(low + [type(tensor).__name__ for tensor in tensors if is_wrapper(tensor)]))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_state(name: str, workload: Workload) -> None:
    state = workload.optimizer_state
    if state is None:
        return
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise _wrong(name, f"optimizer_state is {_kind(state)}; expected what the optimizer's state_dict() returns")
    if workload.optimizer is None:
        raise _wrong(name, "it has an optimizer_state without its optimizer")
    optimizer = workload.optimizer(workload.module.parameters())
    try:
        optimizer.load_state_dict(copy.deepcopy(dict(state)))
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(name, f"its optimizer does not take the optimizer_state: {first_line(error)}") from None


def _with_pairs_split(name: str, workload: Workload) -> Workload:
    """Return `workload` with the (inputs, targets) pairs of a loader split into the two.

    Batches count as such pairs if the loss needs targets and the workload has none.
    """
    batches = batches_of(workload.inputs)
    pairs = batches and all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in batches)
    if not pairs or workload.targets is not None:
        return workload
    if _needed(workload.loss) == 2:
        inputs, targets = ([batch[place] for batch in batches] for place in (0, 1))
        several = isinstance(workload.inputs, list)
        split = (inputs, targets) if several else (inputs[0], targets[0])
        return dataclasses.replace(workload, inputs=split[0], targets=split[1])
    if any(isinstance(batch, list) for batch in batches):
        raise _wrong(
            name,
            "its batches are lists of 2, as a loader of inputs and targets gives them; let the loss "
            "take (output, targets), or give inputs and targets as a list each",
        )
    return workload


def _needed(function: Callable[..., Any] | None) -> int | None:
    """Return the number of positional arguments that a function requires; None where it is unknown."""
    called: Any = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    return sum(entry.default is entry.empty and entry.kind is not entry.VAR_KEYWORD for entry in parameters)


def _check_arguments(name: str, module: torch.nn.Module, batch: object) -> None:
    """Refuse a batch in fp64, and one of more inputs than the network's `forward` takes."""
    if any(leaf.dtype is torch.float64 for leaf in tensors_of(batch)):
        raise _wrong(name, "an input is torch.float64; give the inputs in fp32")
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return
    if not isinstance(batch, tuple) or any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return
    taken = sum(entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD) for entry in parameters)
    if len(batch) > taken:
        raise _wrong(
            name,
            f"a batch has {len(batch)} inputs, and {type(module).__name__}.forward takes {taken}; "
            "where the last are targets, let the loss take (output, targets)",
        )


def _check_cached(name: str, cached: object, batch: object) -> None:
    """Refuse a `cached` name that is no argument of a batch."""
    known = list(batch) if isinstance(batch, dict) else list(range(len(batch) if isinstance(batch, tuple) else 1))
    wanted = list(cached) if isinstance(cached, list | tuple) else [cached]
    if any(isinstance(key, bool) or key not in known for key in wanted):
        raise _wrong(name, f"cached is {cached!r}; expected some of its inputs {known}, in a tuple")


def _wrong(name: str, why: str) -> WorkloadError:
    return WorkloadError(f"workload {name}: {why}")


def _kind(value: object) -> str:
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{length}"
