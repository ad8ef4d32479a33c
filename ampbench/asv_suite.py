"""The cost and gain of each precision, for asv: `MyModel = suite("model.py:make")` in a benchmark file (docs/asv.md).

The parameters of a suite are phase and precision, its methods the metrics, lower is better in each. The environment
variable AMPBENCH_DEVICE names the device, whose preset sizes built-in workloads. `version` changes only with the
meaning of the numbers.
"""

import atexit
import contextlib
import gc
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import torch

from ampbench import cells
from ampbench.core.precisions import PRECISIONS
from ampbench.core.stats import fingerprint
from ampbench.drive.planning import PlannedCase, check_selection, default_device
from ampbench.drive.servers import may_have_accelerator
from ampbench.drive.session import preload_modules
from ampbench.errors import AmpbenchError, UsageError
from ampbench.records.case import DEVICES, PHASES
from ampbench.records.measured import Divergence
from ampbench.records.run import Selection
from ampbench.records.wire import DIVERGENCE, MEMORY, ROUND
from ampbench.worker.environment import read_environment
from ampbench.workloads.index import WORKLOADS, class_name

DEVICE = os.environ.get("AMPBENCH_DEVICE", "")
NAMES = [
    row.name
    for row in PRECISIONS.values()
    if ("cpu" in row.default_on and not row.tf32) or (may_have_accelerator() and not row.emulated)
]
"""The default precisions; some are only measured on accelerators."""
DIGITS = 4
"""Significant digits of an error that results keep: further digits are noise."""

_opened: dict[str, cells.Cell] = {}
"""The cell whose steps this process times."""
_held = ExitStack()


def _with(**attributes: Any) -> Callable[[Any], Any]:
    """Set attributes of a function, asv's settings of a benchmark."""
    return lambda function: function.__dict__.update(attributes) or function


def keep_passes() -> None:
    """Make asv run the benchmarks with this setup_cache in one folder, which keeps the passes."""


class _Named(type):
    """The class of suites. asv names each suite after the variable that holds it."""

    workload: str
    variables: Mapping[str, Any]

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        name = next((name for name, value in cls.variables.items() if value is cls), cls.__qualname__)
        for spec in WORKLOADS.values():
            if name == class_name(spec) and cls.workload != spec.name:
                raise UsageError(f"{name} is the class of a built-in workload: give yours another name")
        return name


def suite(workload: str | Callable[..., Any]) -> type:
    """Return the class of a workload's benchmarks; asv names it after its variable.

    `workload` is a name as for `ampbench run`, or a function of a module. Its file is searched in the repository (under
    asv the checkout of the measured commit), then in the folder of the benchmark file.
    """
    variables = sys._getframe(1).f_globals
    name = (
        _located(workload, variables) if isinstance(workload, str) else f"{workload.__module__}:{workload.__qualname__}"
    )
    _preload(name)

    def plan(phase: str, precision: str) -> PlannedCase:
        """Return the case; raise `NotImplementedError`, which asv takes for skipped, where it cannot run here."""
        devices = [DEVICE] if DEVICE else []
        selection = Selection(workloads=[name], phases=[phase], precisions=[precision], devices=devices)
        [planned] = cells.plan_cells(selection)
        if planned.skip:
            raise NotImplementedError(planned.skip)
        return planned

    def setup(phase: str, precision: str) -> None:
        """Open the case once in a process; asv calls this before every sample."""
        if "cell" not in _opened:
            _opened["cell"] = _held.enter_context(cells.opened(plan(phase, precision)))
        _opened["cell"].restore()

    class Suite(metaclass=_Named):
        version = "1"
        timeout = 600
        param_names = ("phase", "precision")
        params = (list(PHASES), NAMES)
        rounds = 4
        repeat = (3, 200, 0.08)
        warmup_time = 0.04
        min_run_count = 3

        @_with(setup=setup)
        def time_step(self, *_: str) -> None:
            """Run one step."""
            _opened["cell"].step()

        @_with(unit="bytes")
        def track_peak_memory(self, phase: str, precision: str) -> int:
            """What a step needs at its peak: the allocator's count on an accelerator, torch's record on a CPU."""
            return cells.measured(plan(phase, precision), MEMORY).peak_bytes

        @_with(unit="x floor", setup_cache=keep_passes)
        def track_output_error(self, phase: str, precision: str) -> float:
            """Output error against fp64, divided by the error of rounding the fp64 output."""
            output = divergence(plan(phase, precision)).output
            _check_finite(output.nonfinite + (output.reference_nan or 0), "output", output.undefined)
            error, floor = output.rel_l2, output.floor_rel_l2
            return _rounded(error / floor if error is not None and floor else None)

        @_with(unit="relative", setup_cache=keep_passes)
        def track_gradient_error(self, phase: str, precision: str) -> float:
            """Relative L2 error of all gradients against fp64."""
            gradient = divergence(plan(phase, precision)).gradient
            _check_finite((gradient.nonfinite or 0) + (gradient.reference_nan or 0), "gradient", gradient.undefined)
            return _rounded(gradient.rel_l2)

        @_with(unit="fingerprint", setup_cache=keep_passes)
        def track_fp64_result(self, phase: str, precision: str) -> float:
            """The fp64 output as one number, which no precision has part in: it moves with the function."""
            reference = divergence(plan(phase, precision)).reference
            return _rounded(fingerprint(reference.output_norm, reference.output_sketch), digits=6)

        @_with(unit="share of the CPU")
        def track_other_share(self, phase: str, precision: str) -> float:
            """The share of the CPU that other processes used during a round of ampbench's."""
            return _rounded(cells.measured(plan(phase, precision), ROUND).fitness.other_share)

    Suite.workload, Suite.variables = name, variables
    return Suite


class Environment:
    """Records torch and device for results without requirements (`-E existing:PYTHON`): import it with `suite`."""

    version = "1"

    @_with(unit="version")
    def track_torch_version(self) -> int:
        """Return 2015001 for torch 2.15.1 and its pre-releases (2.15.1rc1, 2.15.1a0+git)."""
        major, minor, patch = map(int, re.findall(r"\d+", torch.__version__)[:3])
        return major * 1_000_000 + minor * 1_000 + patch

    @_with(unit="device")
    def track_device(self) -> int:
        """Return 0 for cpu, 1 for cuda, 2 for xpu: the device of all cases, also where no variable names it."""
        return DEVICES.index(DEVICE or default_device(read_environment()))


def divergence(planned: PlannedCase) -> Divergence:
    """Return the divergence pass of a case, measured once for the benchmarks that share a folder."""
    kept = Path(re.sub("[^A-Za-z0-9_.-]", "_", planned.case.case_id) + ".json")
    if not kept.exists():
        kept.write_bytes(msgspec.json.encode(cells.measured(planned, DIVERGENCE)))
    return msgspec.json.decode(kept.read_bytes(), type=Divergence)


def _located(workload: str, variables: Mapping[str, Any]) -> str:
    """Return a workload's name with the path of its file, unchanged where no file is found."""
    file, _, function = workload.rpartition(":")
    beside = Path(variables.get("__file__", "")).absolute().parent
    checkout = os.environ.get("ASV_ENV_DIR")  # asv's ASV_BUILD_DIR is not set where the commit was installed already
    above = (folder for folder in (beside, *beside.parents) if (folder / ".git").exists())
    folders = [Path(checkout, "project") if checkout else next(above, beside), beside]
    existing = [folder / file for folder in folders if file.endswith(".py") and (folder / file).is_file()]
    return f"{existing[0]}:{function}" if existing else workload


def _preload(workload: str) -> None:
    """Import a workload's modules and read the environment now, before asv forks.

    With an accelerator the environment is not read: a process that touched the accelerator must not fork. An unknown
    workload fails when it is measured.
    """
    selection = Selection(workloads=[workload])
    with contextlib.suppress(AmpbenchError):
        for module in preload_modules(selection, check_selection(selection)):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    if not may_have_accelerator():
        read_environment()
    gc.collect()
    gc.freeze()  # else each forked process walks, and so copies, all that torch left behind
    atexit.register(gc.unfreeze)


def _check_finite(count: int, noun: str, why: str) -> None:
    """Fail where numbers are infinite or NaN: asv would take NaN for a skipped case."""
    if count:
        raise ArithmeticError(why or f"{count} {noun} elements are not finite where the reference's are")


def _rounded(value: float | None, digits: int = DIGITS) -> float:
    """Return a number with its significant digits; NaN for None."""
    return math.nan if value is None else float(f"{value:.{digits}g}")
