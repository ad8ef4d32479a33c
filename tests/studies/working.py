"""Any study at work, as its verb has it work, without a command line."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ampbench.drive.session import Prepared
from ampbench.records.case import Case
from ampbench.store import RunWriter, StoredRun
from ampbench.studies.study import Session, Study
from ampbench.studies.work import pieces_of, worked
from ampbench.worker.machine import Cpu, Device
from ampbench.workload import Workload


def at_work(workload: Workload, case: Case, device: Device | None = None) -> Any:
    """Return what a task has of a worker: a workload, a case and its device, by default the CPU."""
    return SimpleNamespace(workload=workload, case=case, device=device or Cpu())


def work(
    study: Study[Any, Any],
    prepared: Prepared,
    asked: Any,
    writer: RunWriter,
    watch: Callable[..., None] = lambda *_: None,
    begun: StoredRun | None = None,
) -> str:
    """Have what is planned, and asked for, worked on, and return how that ended."""
    session = Session(prepared=prepared, asked=asked, begun=begun)
    return worked(study, session, pieces_of(study, session), writer, watch)
