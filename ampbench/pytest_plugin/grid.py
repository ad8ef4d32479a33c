"""Which cells a test is parametrized over: its marker and the command line to devices, phases and precisions.

PYTEST_DONT_REWRITE
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ampbench.core.precisions import PRECISIONS, find_precision
from ampbench.drive.planning import default_device, find_workloads
from ampbench.errors import AmpbenchError, UnknownNameError, UsageError
from ampbench.records.case import DEVICES, PHASES, DeviceDescription, WorkloadSource
from ampbench.workloads.index import PRESETS, WORKLOADS

ARGUMENTS = ("workloads", "precisions", "phases", "devices", "preset", "max_error")
SUITE = "suite"
"""In a marker's `workloads`: the default suite of `ampbench run`, each workload in its phases there."""

Given = str | Callable[..., Any]
"""A workload as a test names it: by a name, or the function itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a test measures: its marker, narrowed by the command line.

    `workloads` are those of the marker, each with the phases it is measured in; None where the test brings its own.
    `precisions`, `phases` and `devices` are None where none is named.
    """

    workloads: list[tuple[Given, tuple[str, ...]]] | None
    precisions: list[str] | None
    phases: list[str] | None
    devices: list[str] | None
    preset: str
    max_error: float | None


def check_options(config: pytest.Config) -> None:
    """Raise `pytest.UsageError`, with the nearest known names, for an option that cannot be meant or read."""
    try:
        _wanted({}, config)
        selected_sources(config)
        if (file := config.getoption("amp_compare")) is not None:
            from ampbench.pytest_plugin.measuring import read_baseline

            read_baseline(file)
    except AmpbenchError as error:
        raise pytest.UsageError(str(error)) from None


def wanted(node: pytest.Item, config: pytest.Config) -> Wanted:
    """Return what the test `node` measures; markers nearer to the function win over those of its class and module.

    Raises `UsageError` for a marker that cannot be meant.
    """
    marked: dict[str, Any] = {}
    for marker in node.iter_markers("amp"):
        if marker.args:
            raise UsageError(f"pytest.mark.amp takes keyword arguments: {', '.join(ARGUMENTS)}")
        for name, value in marker.kwargs.items():
            if name not in ARGUMENTS:
                raise UnknownNameError("argument of pytest.mark.amp", name, ARGUMENTS)
            marked.setdefault(name, value)
    return _wanted(marked, config)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over its cells, precisions innermost: `mlp-cpu-training-bf16_autocast`.

    Where the options leave nothing of what its marker names, pytest skips the test.
    """
    try:
        found = wanted(metafunc.definition, metafunc.config)
        cells = list(_cells(found))
    except AmpbenchError as error:
        raise pytest.fail.Exception(f"{metafunc.definition.nodeid}: {error}", pytrace=False) from None
    labels = _labels(workload for workload, _ in found.workloads or ())
    first = 1 if found.workloads is None else 0
    metafunc.parametrize(
        ["amp_workload", "amp_device", "amp_phase", "amp_precision"][first:],
        [pytest.param(*cell[first:], id="-".join((labels.get(cell[0], ""), *cell[1:])[first:])) for cell in cells],
        indirect=True,
    )


def selected_sources(config: pytest.Config) -> list[WorkloadSource]:
    """Return the workloads of --amp-workload; raises `UsageError` for an unknown name."""
    return [source for name in config.getoption("amp_workloads") for source in find_workloads(name)]


def default_precisions(device: str, phase: str) -> list[str]:
    """Return the precisions measured on `device` where none is named: tf32 only where the device has it."""
    found = None if device == "cpu" else present(device)
    return [
        row.name
        for row in PRECISIONS.values()
        if device in row.default_on
        and not (row.same_ops and phase == "inference")
        and (not row.tf32 or (found is not None and found.tf32))
    ]


def _wanted(marked: dict[str, Any], config: pytest.Config) -> Wanted:
    def narrowed(name: str, known: Callable[[str], str]) -> list[str] | None:
        """Return the marker's names that the option allows; those of the one given, where only one is."""
        own = list(dict.fromkeys(map(known, _listed(marked.get(name)))))
        option = list(dict.fromkeys(map(known, config.getoption(f"amp_{name}"))))
        return [value for value in own if value in option] if own and option else own or option or None

    given = marked.get("workloads")
    option = config.getoption("amp_max_error")
    preset = config.getoption("amp_preset") or marked.get("preset") or ""
    return Wanted(
        workloads=None if given is None else _workloads(_listed(given), selected_sources(config)),
        precisions=narrowed("precisions", lambda name: find_precision(str(name)).name),
        phases=narrowed("phases", lambda name: _known("phase", name, PHASES)),
        devices=narrowed("devices", lambda name: _known("device", name, DEVICES)),
        preset=_known("preset", preset, PRESETS) if preset else "",
        max_error=_limit(marked.get("max_error") if option is None else option),
    )


def _workloads(given: Sequence[Given], selected: Sequence[WorkloadSource]) -> list[tuple[Given, tuple[str, ...]]]:
    """Return the marker's workloads that are selected, all where `selected` is empty; the suite is replaced by them."""
    found: dict[Given, tuple[str, ...]] = {}
    for one in given:
        if one == SUITE:
            named: dict[Given, tuple[str, ...]] = {_name(source): PHASES for source in selected}
            found |= named or {spec.name: spec.suite for spec in WORKLOADS.values() if spec.suite}
        elif isinstance(one, str):
            sources = find_workloads(one)
            found |= {
                source.name if source.builtin else one: PHASES
                for source in sources
                if not selected or source in selected
            }
        elif callable(one):
            found[one] = PHASES  # the test itself finds out whether it is selected
        else:
            raise UsageError(f"workloads of pytest.mark.amp are names or functions, not {one!r}")
    return list(found.items())


def _cells(found: Wanted) -> Iterator[tuple[Any, str, str, str]]:
    """Yield (workload or None, device, phase, precision) in the order of the tests."""
    own: list[tuple[Given | None, tuple[str, ...]]] = [(None, PHASES)]
    for workload, offered in own if found.workloads is None else found.workloads:
        for device in [_default_device()] if found.devices is None else found.devices:
            for phase in PHASES if found.phases is None else found.phases:
                if phase in offered:
                    precisions = default_precisions(device, phase) if found.precisions is None else found.precisions
                    yield from ((workload, device, phase, precision) for precision in precisions)


def _default_device() -> str:
    """Return the accelerator of this machine, else the CPU; without importing torch where there is no driver's node."""
    from ampbench.drive.servers import may_have_accelerator

    if find_spec("torch") is None or not may_have_accelerator():
        return "cpu"
    from ampbench.worker.environment import read_environment

    return default_device(read_environment())


def present(device: str) -> DeviceDescription | None:
    """Return what this machine has of a device type, for which torch is imported; None where it has none."""
    from ampbench.worker.environment import read_environment

    found = read_environment().device(device)
    return found if found is not None and found.available else None


def _name(source: WorkloadSource) -> str:
    """Return a name by which `find_workloads` finds `source` again."""
    if source.builtin or not source.module.endswith(".py"):
        return source.name
    return f"{source.module}:{source.function}"


def _labels(workloads: Iterable[Given]) -> dict[Given, str]:
    """Return how ids tell the workloads of a test apart: `build`, and `build#2` for another of that name."""
    times: Counter[str] = Counter()
    found: dict[Given, str] = {}
    for workload in workloads:
        name = _label(workload)
        times[name] += 1
        found[workload] = name if times[name] == 1 else f"{name}#{times[name]}"
    return found


def _label(workload: Given) -> str:
    """Return how ids name a workload: files without their folders, functions by their names."""
    if isinstance(workload, str):
        return Path(workload).name
    return str(getattr(workload, "__name__", type(workload).__name__)).strip("<>")


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _known(kind: str, name: Any, known: Sequence[str]) -> str:
    if name not in known:
        raise UnknownNameError(kind, str(name), known)
    return str(name)


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UsageError(f"the largest error (--amp-max-error) is a number of 0 or more, not {value!r}")
    return float(value)
