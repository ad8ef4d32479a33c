"""What each precision costs and buys, for asv: a class for each workload of the default suite, made from `SUITE`.

Its parameters are phase and precision, its methods the metrics, so that `asv run --bench Mlp` is one workload and a
table has a row per phase and precision. The device is that of the environment variable AMPBENCH_DEVICE (asv.conf.json,
`env_nobuild`), the size the preset for that device. Lower is better in every benchmark. `version` is bumped when the
meaning of the numbers changes, never for the code around them; a workload whose own version is bumped gets another
class, and so a new series.
"""

import math
import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from ampbench.core.precisions import PRECISIONS
from ampbench.core.sketch import fingerprint
from ampbench.drive.planning import PHASES, default_device
from ampbench.drive.servers import may_have_accelerator
from ampbench.records.case import DEVICES
from ampbench.records.measured import Divergence
from ampbench.records.run import Selection, Settings
from ampbench.worker import cells
from ampbench.worker.environment import read_environment
from ampbench.workloads.index import WORKLOADS, class_name

SUITE = {class_name(spec): spec.name for spec in WORKLOADS.values() if spec.suite}
"""The workloads by their classes. For your own, name them as `ampbench run` does: {"MyModel": "model.py:make"}."""
if wrong := [name for name, workload in SUITE.items() for spec in WORKLOADS.values()
             if name == class_name(spec) and workload != spec.name]:  # fmt: skip
    raise ValueError(f"{wrong[0]} is the class of a built-in workload: give yours another name")

DEVICE = os.environ.get("AMPBENCH_DEVICE", "")
NAMES = [
    row.name for row in PRECISIONS.values() if may_have_accelerator() or ("cpu" in row.default_on and not row.tf32)
]
"""The precisions: some are measured on accelerators alone where none is named."""
DIGITS = 4
"""So many significant digits of an error are kept: no more of them say anything."""

cells.preload(list(SUITE.values()))

_opened: dict[str, cells.Cell] = {}
"""The cell of which this process times steps."""
_held = ExitStack()


def plan(workload: str, phase: str, precision: str) -> cells.PlannedCase:
    """Return the case; raise what asv takes for skipped where it cannot run here."""
    selection = Selection(
        workloads=[workload], phases=[phase], precisions=[precision], devices=[DEVICE] if DEVICE else []
    )
    [planned] = cells.plan_cells(selection)
    if planned.skip:
        raise NotImplementedError(planned.skip)
    return planned


def keep_passes() -> None:
    """Make asv run the benchmarks that have this as their setup_cache in one folder, where passes are kept."""


def opener(workload: str) -> Callable[[str, str], None]:
    """Return what opens the case once in a process; asv calls it again before every sample."""

    def setup(phase: str, precision: str) -> None:
        if "cell" not in _opened:
            _opened["cell"] = _held.enter_context(cells.opened(plan(workload, phase, precision)))
        _opened["cell"].restore()

    return setup


def measured(name: str, workload: str) -> type:
    """Return the class of a workload: a method for each metric."""

    class Suite:
        version = "1"
        timeout = 600
        param_names = ("phase", "precision")
        params = (list(PHASES), NAMES)
        rounds = 4
        repeat = (3, 200, 0.08)
        warmup_time = 0.04
        min_run_count = 3

        def time_step(self, *_: str) -> None:
            """Run one step."""
            _opened["cell"].step()

        time_step.setup = opener(workload)

        def track_peak_memory(self, phase: str, precision: str) -> int:
            """What a step needs at its peak: the allocator's count on an accelerator, torch's record on a CPU."""
            return cells.measure_memory(plan(workload, phase, precision)).peak_bytes

        track_peak_memory.unit = "bytes"

        def track_output_error(self, phase: str, precision: str) -> float:
            """How far the output lies from fp64's, beside what rounding it to the dtype costs."""
            found = divergence(workload, phase, precision)
            check_finite(found.output.nonfinite + (found.output.reference_nan or 0), "output", found.output.undefined)
            error, floor = found.output.rel_l2, found.output.floor_rel_l2
            return rounded(error / floor) if error is not None and floor else math.nan

        track_output_error.unit = "x floor"
        track_output_error.setup_cache = keep_passes

        def track_gradient_error(self, phase: str, precision: str) -> float:
            """How far all gradients lie from fp64's, relative to their norm."""
            found = divergence(workload, phase, precision)
            broken = (found.gradient.nonfinite or 0) + (found.gradient.reference_nan or 0)
            check_finite(broken, "gradient", found.gradient.undefined)
            return math.nan if found.gradient.rel_l2 is None else rounded(found.gradient.rel_l2)

        track_gradient_error.unit = "relative"
        track_gradient_error.setup_cache = keep_passes

        def track_fp64_result(self, phase: str, precision: str) -> float:
            """The fp64 output as one number, which no precision has part in: it moves with the function."""
            found = divergence(workload, phase, precision)
            value = fingerprint(found.reference.output_norm, found.reference.output_sketch)
            return math.nan if value is None else float(f"{value:.6g}")

        track_fp64_result.unit = "fingerprint"
        track_fp64_result.setup_cache = keep_passes

        def track_other_share(self, phase: str, precision: str) -> float:
            """The share of the CPU that other processes used during a round of ampbench's."""
            share = cells.measure_round(plan(workload, phase, precision), Settings()).fitness.other_share
            return math.nan if share is None else rounded(share)

        track_other_share.unit = "share of the CPU"

    Suite.__name__ = Suite.__qualname__ = name
    return Suite


def divergence(workload: str, phase: str, precision: str) -> Divergence:
    """Return the divergence pass of a case, measured once for the benchmarks that share a folder."""
    planned = plan(workload, phase, precision)
    kept = Path(f"{re.sub('[^A-Za-z0-9_.-]', '_', workload)} {phase} {precision}.json")
    if kept.exists():
        return msgspec.json.decode(kept.read_bytes(), type=Divergence)
    found = cells.measure_divergence(planned)
    kept.write_bytes(msgspec.json.encode(found))
    return found


def check_finite(count: int, what: str, said: str = "") -> None:
    """Fail, as is `said`, where a number became infinite or NaN: for asv, NaN is a case that was skipped."""
    if count:
        raise ArithmeticError(said or f"{count} {what} elements are not finite where the reference's are")


def rounded(value: float) -> float:
    """Return a number with the digits that say something."""
    return float(f"{value:.{DIGITS}g}")


for _name, _workload in SUITE.items():
    globals()[_name] = measured(_name, _workload)


class Environment:
    """What was measured, for results that name no requirements (`-E existing:PYTHON`)."""

    version = "1"

    def track_torch_version(self) -> int:
        """Return 2015001 for torch 2.15.1 and what came before it (2.15.1rc1, 2.15.1a0+git)."""
        major, minor, patch = map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", torch.__version__).groups())
        return major * 1_000_000 + minor * 1_000 + patch

    track_torch_version.unit = "version"

    def track_device(self) -> int:
        """Return 0 for cpu, 1 for cuda, 2 for xpu: the device of all cases, also where no variable names it."""
        return DEVICES.index(DEVICE or default_device(read_environment()))

    track_device.unit = "device"
