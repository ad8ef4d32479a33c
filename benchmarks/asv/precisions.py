"""What each precision costs and buys, for asv: the default suite's workloads in every phase and precision.

The device is that of the environment variable AMPBENCH_DEVICE (asv.conf.json, `env_nobuild`), the size the preset for
that device. Lower is better in every benchmark. `version` is bumped when the meaning of the numbers changes, never for
the code around them; a workload whose own version is bumped gets another label, and so a new series.
"""

import math
import os
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from ampbench.planning import PHASES
from ampbench.precisions import PRECISIONS
from ampbench.records.divergences import Divergence
from ampbench.records.runs import Selection, Settings
from ampbench.worker import cells
from ampbench.workloads.index import WORKLOADS

SUITE = {
    spec.name if spec.version == 1 else f"{spec.name} v{spec.version}": spec.name
    for spec in WORKLOADS.values()
    if spec.suite
}
"""The workloads by their labels. For your own, name them as `ampbench run` does: {"model": "model.py:make"}."""

DEVICE = os.environ.get("AMPBENCH_DEVICE", "")

cells.preload(list(SUITE.values()), DEVICE)


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
            self.cell = ExitStack().enter_context(cells.opened(self.planned))
        self.cell.restore()

    def time_step(self, *_: str) -> None:
        self.cell.step()

    def track_seconds_per_item(self, *_: str) -> float:
        found = cells.measure_round(self.planned, Settings())
        return min(min(samples) for samples in found.samples) / found.items_per_step

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

    def track_output_error(self, *_: str) -> float:
        error, floor = self.divergence.output_rel_l2, self.divergence.output_floor_rel_l2
        return error / floor if error is not None and floor else math.nan

    track_output_error.unit = "x floor"

    def track_gradient_error(self, *_: str) -> float:
        error = self.divergence.grad_rel_l2
        return math.nan if error is None else error

    track_gradient_error.unit = "relative"


class Environment:
    """What was measured, for results that name no requirements (`-E existing:PYTHON`)."""

    version = "1"

    def track_torch_version(self) -> int:
        """Return 2015001 for torch 2.15.1."""
        major, minor, patch = torch.__version__.split("+")[0].split(".")[:3]
        return int(major) * 1_000_000 + int(minor) * 1_000 + int(patch)

    track_torch_version.unit = "version"
