"""Steps on batches of one size, run as a user's loop runs them: how much memory they take, and how fast they go.

What measuring otherwise keeps beside a step is let go of: the workload that the network and its batch were copied
from, and the state that is put back before every sample. So weights move as in any training.
"""

import random

from ampbench.base.precisions import PRECISIONS
from ampbench.instruments.batch.records import BatchPoint, PointAsked
from ampbench.measure.machine import Cpu, precision_flags
from ampbench.measure.memory import memory_source, one_batch, peaks_of, rss_bytes
from ampbench.measure.sources import items_per_step
from ampbench.measure.step import Step, TrainingStep, build_step
from ampbench.measure.timing import FitnessWatch, Placement, time_build
from ampbench.measure.worker import Work
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND


def do_point(work: Work, asked: PointAsked) -> BatchPoint:
    """Do the task "batch": build the case's step on batches of the size asked for, and time it.

    Where memory runs out, that is raised; whether what was taken is within a limit is for others to say. On a CPU that
    is the peak of torch's allocation record, which a second process has to the byte: the resident set depends on what
    the heap keeps of freed blocks, and may be smaller for a larger batch (docs/batch.md).
    """
    case, device = work.case, work.device
    began = rss_bytes() if isinstance(device, Cpu) else None
    watch = FitnessWatch(device)
    placement = Placement(random.Random(asked.round))
    placement.move()
    held = [one_batch(work.with_batch_size(asked.batch), case)]
    items = items_per_step(held[0], case.recipe)

    def build() -> Step:
        step = build_step(held.pop(), case, device)
        work.let_go()
        step.data.let_go()
        step.prepare_path(case.path)
        if isinstance(step, TrainingStep):
            step.settle_scaler()
        return step

    with precision_flags(PRECISIONS[case.precision]):
        ((step, recorded),) = peaks_of([build], device)
        with step.mode():
            timing = time_build(step.run, device, budget_seconds=asked.seconds, max_samples=MAX_SAMPLES_PER_ROUND // 4)
    highest = rss_bytes("VmHWM")
    del step
    device.release()
    return BatchPoint(
        case_id=case.case_id,
        batch=asked.batch,
        round=asked.round,
        source=memory_source(device),
        peak_bytes=recorded.peak if recorded.reserved is None else recorded.reserved,
        resident_bytes=None if began is None or highest is None else max(highest - began, 0),
        items_per_step=items,
        samples=timing.samples,
        cpu_samples=timing.cpu_samples,
        fitness=watch.seen(),
    )
