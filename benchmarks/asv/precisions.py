"""What each precision costs and buys, for asv: the default suite's workloads in every phase and precision.

The device is that of the environment variable AMPBENCH_DEVICE (asv.conf.json, `env_nobuild`), the size the preset for
that device. Lower is better in every benchmark. `version` is bumped when the meaning of the numbers changes, never for
the code around them; a workload whose own version is bumped gets another label, and so a new series.
"""

import math
import os
import re
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from ampbench.planning import PHASES, default_device
from ampbench.precisions import PRECISIONS
from ampbench.records.divergences import Divergence
from ampbench.records.environments import DEVICES
from ampbench.records.runs import Selection, Settings
from ampbench.stats import round_value
from ampbench.worker import cells
from ampbench.worker.environment import read_environment
from ampbench.workloads.index import WORKLOADS

SUITE = {
    spec.name if spec.version == 1 else f"{spec.name} v{spec.version}": spec.name
    for spec in WORKLOADS.values()
    if spec.suite
}
"""The workloads by their labels. For your own, name them as `ampbench run` does: {"model": "model.py:make"}."""
if wrong := [label for label, name in SUITE.items() if label in WORKLOADS and label != name]:
    raise ValueError(f"{wrong[0]} is the name of a built-in workload: give yours another label")

DEVICE = os.environ.get("AMPBENCH_DEVICE", "")

cells.preload(list(SUITE.values()))


class Case:
    """One case: a workload in a phase and a precision. What cannot run here is skipped."""

    version = "1"
    timeout = 600
    param_names = ("workload", "phase", "precision")
    params = (list(SUITE), list(PHASES), list(PRECISIONS))

    def setup(self, workload: str, phase: str, precision: str) -> None:
        selection = Selection(
            workloads=[SUITE[workload]], phases=[phase], precisions=[precision], devices=[DEVICE] if DEVICE else []
        )
        [self.planned] = cells.plan_cells(selection)
        if self.planned.skip:
            raise NotImplementedError(self.planned.skip)


class Speed(Case):
    """How long a step takes: asv's own samples, and ampbench's round (device events on an accelerator)."""

    rounds = 4
    repeat = (3, 200, 0.08)
    warmup_time = 0.04
    min_run_count = 3

    def setup(self, workload: str, phase: str, precision: str) -> None:
        """Open the case once in a process; asv calls this again before every step that it times."""
        if not hasattr(self, "cell"):
            super().setup(workload, phase, precision)
            self.opened = ExitStack()
            self.cell = self.opened.enter_context(cells.opened(self.planned))
        self.cell.restore()

    def time_step(self, *_: str) -> None:
        self.cell.step()

    def track_seconds_per_item(self, *_: str) -> float:
        self.opened.close()  # a round has builds of its own, and torch's switches are the process'
        found = cells.measure_round(self.planned, Settings())
        return round_value(found.samples, found.cpu_samples) / found.items_per_step

    track_seconds_per_item.unit = "seconds"


class Memory(Case):
    """What a step needs at its peak: the allocator's count on an accelerator, torch's record on a CPU."""

    def track_peak_memory(self, *_: str) -> int:
        return cells.measure_memory(self.planned).peak_bytes

    track_peak_memory.unit = "bytes"


class Accuracy(Case):
    """How far a step lies from the same step in fp64; the divergence pass of a case serves both benchmarks."""

    def setup_cache(self) -> None:
        """Make asv run this class in one folder, where passes are kept until it has run."""

    def setup(self, workload: str, phase: str, precision: str) -> None:
        super().setup(workload, phase, precision)
        kept = Path(f"{workload} {phase} {precision}.json")
        if kept.exists():
            self.divergence = msgspec.json.decode(kept.read_bytes(), type=Divergence)
        else:
            self.divergence = cells.measure_divergence(self.planned)
            kept.write_bytes(msgspec.json.encode(self.divergence))

    def check_finite(self, count: int, what: str) -> None:
        """Fail where a number became infinite or NaN: for asv, NaN is a case that was skipped."""
        if count:
            raise ArithmeticError(f"{count} {what} elements are not finite where the reference's are")

    def track_output_error(self, *_: str) -> float:
        self.check_finite(self.divergence.output_nonfinite, "output")
        error, floor = self.divergence.output_rel_l2, self.divergence.output_floor_rel_l2
        return error / floor if error is not None and floor else math.nan

    track_output_error.unit = "x floor"

    def track_gradient_error(self, *_: str) -> float:
        self.check_finite(self.divergence.grad_nonfinite or 0, "gradient")
        error = self.divergence.grad_rel_l2
        return math.nan if error is None else error

    track_gradient_error.unit = "relative"


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
