"""A worker's first steps of a case, each timed by itself."""

from ampbench.core.precisions import PRECISIONS
from ampbench.instruments.warmup.records import WarmUp, WarmUpAsked
from ampbench.worker.machine import precision_flags
from ampbench.worker.step import build_step
from ampbench.worker.worker import Work


def do_warmup(work: Work, asked: WarmUpAsked) -> WarmUp:
    """Do the task "warmup"."""
    workload, case, device = work.workload, work.case, work.device
    with precision_flags(PRECISIONS[case.precision]):
        step = build_step(workload, case, device)
        with step.mode():
            samples = [device.seconds(step.run, 1) for _ in range(asked.steps)]
    slow = [number for number, seconds in enumerate(samples) if seconds > min(samples) * (1 + asked.tolerance)]
    settled = max(slow, default=-1) + 1
    return WarmUp(
        case_id=case.case_id,
        samples=samples,
        tolerance=asked.tolerance,
        settled=settled if settled < len(samples) else None,
    )
