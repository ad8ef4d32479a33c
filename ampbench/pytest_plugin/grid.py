"""The grid of cases of a test: its marker and the command line to workloads, devices, phases and precisions.

PYTEST_DONT_REWRITE
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ampbench.core.precisions import PRECISIONS, find_precision
from ampbench.drive.planning import default_device, find_workloads
from ampbench.drive.servers import may_have_accelerator
from ampbench.errors import AmpbenchError, UnknownNameError, UsageError
from ampbench.records.case import DEVICES, PHASES, DeviceDescription
from ampbench.workloads.index import PRESETS, WORKLOADS

ARGUMENTS = ("workloads", "precisions", "phases", "devices", "preset", "max_error")
SUITE = "suite"
"""In a marker's `workloads`: the default suite of `ampbench run`, each workload in its phases there."""

Given = str | Callable[..., Any] | None
"""A workload as a test gives it: a name, a function, or None where the test calls the fixture with its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The cases of a test: its marker, narrowed by the command line; None stands for the default.

    `workloads` maps each of the marker's workloads to its phases.
    """

    workloads: dict[Given, tuple[str, ...]]
    precisions: list[str] | None
    phases: list[str] | None
    devices: list[str] | None
    preset: str | None
    max_error: float | None


def meant(kind: str, value: Any) -> Any:
    """Return the name or limit that a marker or an option means; `UsageError`, with the nearest names, for none."""
    if kind == "precision":
        return find_precision(str(value)).name
    if kind == "compare":
        from ampbench.pytest_plugin.measuring import read_baseline

        return read_baseline(value) and value
    if kind == "max_error":
        with contextlib.suppress(ValueError):
            if not isinstance(value, bool) and 0 <= float(value) < math.inf:
                return float(value)
        raise UsageError(f"the largest error (--amp-max-error) is a number of 0 or more, not {value}")
    known = {"device": DEVICES, "phase": PHASES, "preset": PRESETS}[kind]
    if value not in known:
        raise UnknownNameError(kind, str(value), known)
    return value


def wanted(node: pytest.Item, config: pytest.Config) -> Wanted:
    """Return the cases of the test `node`; markers nearer to the function win over those of its class and module.

    Raises `UsageError` for an invalid marker.
    """
    marked: dict[str, Any] = {}
    for marker in node.iter_markers("amp"):
        if marker.args:
            raise UsageError(f"pytest.mark.amp takes keyword arguments: {', '.join(ARGUMENTS)}")
        for name in marker.kwargs:
            if name not in ARGUMENTS:
                raise UnknownNameError("argument of pytest.mark.amp", name, ARGUMENTS)
        marked = {**marker.kwargs, **marked}

    def names(kind: str) -> list[str] | None:
        """Return the marker's names that the option allows; where only one of the two is given, all of its names."""
        marks = [meant(kind, value) for value in _listed(marked.get(f"{kind}s"))]
        option = config.getoption(f"amp_{kind}")
        both = [value for value in marks if value in option] if marks and option else marks or option or None
        return both and list(dict.fromkeys(both))

    def value(kind: str) -> Any:
        chosen = config.getoption(f"amp_{kind}")
        chosen = marked.get(kind) if chosen is None else chosen
        return None if chosen is None else meant(kind, chosen)

    return Wanted(
        workloads=_workloads(_listed(marked.get("workloads")) or [None]),
        precisions=names("precision"),
        phases=names("phase"),
        devices=names("device"),
        preset=value("preset"),
        max_error=value("max_error"),
    )


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test over its cells, precisions innermost: `mlp-cpu-training-bf16_autocast`.

    Where the options leave nothing of a marker, pytest skips the test.
    """
    try:
        asked = wanted(metafunc.definition, metafunc.config)
        cells = list(_cells(asked))
    except AmpbenchError as error:
        raise pytest.fail.Exception(f"{metafunc.definition.nodeid}: {error}", pytrace=False) from None
    labels = _labels(list(asked.workloads))
    first = 1 if None in asked.workloads else 0
    metafunc.parametrize(
        ["amp_workload", "amp_device", "amp_phase", "amp_precision"][first:],
        [pytest.param(*cell[first:], id="-".join((labels[cell[0]], *cell[1:])[first:])) for cell in cells],
        indirect=True,
    )


def present(device: str) -> DeviceDescription | None:
    """Return the description of a device type of this machine, by torch; None where the machine has none."""
    from ampbench.worker.environment import read_environment

    description = read_environment().device(device)
    return description if description is not None and description.available else None


def _workloads(values: Iterable[Any]) -> dict[Given, tuple[str, ...]]:
    workloads: dict[Given, tuple[str, ...]] = {}
    for workload in values:
        if workload == SUITE:
            workloads |= {spec.name: spec.suite for spec in WORKLOADS.values() if spec.suite}
        elif isinstance(workload, str):
            sources = find_workloads(workload)
            workloads |= {source.name if source.builtin else workload: PHASES for source in sources}
        elif workload is None or callable(workload):
            workloads[workload] = PHASES
        else:
            raise UsageError(f"workloads of pytest.mark.amp are names or functions, not {workload!r}")
    return workloads


def _cells(asked: Wanted) -> Iterator[tuple[Given, str, str, str]]:
    """Yield (workload or None, device, phase, precision) in the order of the tests."""
    for workload, offered in asked.workloads.items():
        for device in [_default_device()] if asked.devices is None else asked.devices:
            for phase in offered if asked.phases is None else asked.phases:
                if phase in offered:
                    precisions = _default_precisions(device, phase) if asked.precisions is None else asked.precisions
                    yield from ((workload, device, phase, precision) for precision in precisions)


def _default_precisions(device: str, phase: str) -> list[str]:
    """Return the precisions measured on `device` where none is named: tf32 only where the device has it."""
    description = None if device == "cpu" else present(device)
    return [
        row.name
        for row in PRECISIONS.values()
        if device in row.default_on
        and not (row.same_ops and phase == "inference")
        and (not row.tf32 or (description is not None and description.tf32))
    ]


def _default_device() -> str:
    """Return the accelerator of this machine, else the CPU; without importing torch where there is no driver's node."""
    if find_spec("torch") is None or not may_have_accelerator():
        return "cpu"
    from ampbench.worker.environment import read_environment

    return default_device(read_environment())


def _labels(workloads: Sequence[Given]) -> dict[Given, str]:
    """Return the part of tests' ids for each workload: files without folders, functions by name, `#2` after equals."""
    names = [
        Path(workload).name if isinstance(workload, str) else getattr(workload, "__name__", "").strip("<>")
        for workload in workloads
    ]
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    ids = [f"{name}#{count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]
    return dict(zip(workloads, ids, strict=True))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
