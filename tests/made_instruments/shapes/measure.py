"""A worker's step of a case, whose modules are watched."""

from ampbench.instruments.shapes.records import Given, ShapesPass
from ampbench.records.wire import Nothing
from ampbench.trace.dtypes import short_dtype
from ampbench.trace.modules import ModuleRun, tensors_in, watch_runs
from ampbench.worker.step import build_step
from ampbench.worker.worker import Work


def do_shapes(work: Work, asked: Nothing) -> ShapesPass:
    """Do the task "shapes"."""
    step = build_step(work.workload, work.case, work.device)
    seen: list[Given] = []

    def look(run: ModuleRun) -> None:
        for tensor in list(tensors_in(run.returned))[:1]:
            seen.append(
                Given(
                    path=run.path,
                    module=type(run.module).__name__,
                    shape=list(tensor.shape),
                    dtype=short_dtype(tensor.dtype),
                    stored_bytes=tensor.numel() * tensor.element_size(),
                )
            )

    with step.mode(), watch_runs(step.module, look):
        step.run()
    return ShapesPass(case_id=work.case.case_id, modules=seen)
