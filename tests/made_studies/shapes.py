"""What the modules of a case give: shapes, dtypes and bytes."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from ampbench.core.statement import Severity, Statement, state
from ampbench.records import Count
from ampbench.records.case import Case
from ampbench.records.wire import Nothing, Task
from ampbench.show.document import Column
from ampbench.studies.study import Selects, Study, Table


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first tensor that a module at `path` ("": the network itself) gives; `stored_bytes` are those of it."""

    path: str
    module: str
    shape: list[Count]
    dtype: str
    stored_bytes: Count


class ShapesPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What each module of a case gives, in the order in which they return."""

    case_id: str
    modules: list[Given] = []


class Shapes(StrEnum):
    """How much modules give."""

    TOTAL = "shapes-total"


def conclusions(_: Case, record: ShapesPass) -> Iterator[Statement]:
    """Yield how much the modules of a case give, and which of them the most."""
    if record.modules:
        most = max(record.modules, key=lambda each: each.stored_bytes)
        facts = {"total": sum(each.stored_bytes for each in record.modules), "most": most.stored_bytes}
        yield state(Shapes.TOTAL, "", Severity.INFO, modules=len(record.modules), module=most.module, **facts)


def do_shapes(work: Any, asked: Nothing) -> ShapesPass:
    """Do the task "shapes": watch the modules of a step."""
    from ampbench.trace.dtypes import short_dtype
    from ampbench.trace.modules import ModuleRun, tensors_in, watch_runs
    from ampbench.worker.step import build_step

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


COLUMNS: Sequence[Column[Given]] = (
    Column("path", lambda row: row.path, "module", said=lambda row: row.path or "(network)"),
    Column("module", lambda row: row.module, "kind"),
    Column("shape", lambda row: "×".join(map(str, row.shape)), "shape"),
    Column("dtype", lambda row: row.dtype, "dtype"),
    Column("stored_bytes", lambda row: row.stored_bytes, "bytes", "B"),
)
STUDY: Study[Nothing, ShapesPass] = Study(
    kind="shapes",
    help="""\
Watch a step: the shape, the dtype and the bytes of what each module gives.

\b
Examples:
  ampbench explain shapes model.py:make
  ampbench explain shapes mlp --all
""",
    doing="watching",
    asked=Nothing,
    task=Task("shapes", Nothing, ShapesPass, "ampbench.studies.shapes:do_shapes", timed=False, flags=True),
    selects=Selects(phases=("inference",)),
    title="Shapes",
    tables=(Table("modules", COLUMNS, lambda record: record.modules, "What each module gives"),),
    conclusions=conclusions,
)
