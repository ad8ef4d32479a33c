"""Any study at work, as its verb has it work, without a command line."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ampbench.drive.session import Prepared, planned_skips
from ampbench.records.case import Case
from ampbench.records.run import Selection, Settings
from ampbench.store import RunWriter, StoredRun, read_run
from ampbench.studies.study import Session, Study
from ampbench.studies.work import asked_of, pieces_of, prepared, worked
from ampbench.worker.machine import Cpu, Device
from ampbench.workload import Workload
from tests.scripted_channel import Scripted
from tests.stored_runs import make_header


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


def studied(
    study: Study[Any, Any],
    results: Path,
    channel: Scripted,
    asked: Any,
    settings: Settings | None = None,
    watch: Callable[..., None] = lambda *_: None,
    **selected: Any,
) -> StoredRun:
    """Return the run that a study of what is selected leaves, by default of a small perceptron."""
    selection = Selection(**({"workloads": ["mlp"], "preset": "tiny"} | selected))
    with prepared(study, selection, settings or Settings(), asked, open_channel=lambda: channel) as session:
        header = make_header(
            explains=study.kind, environment=session.environment, selection=session.selection,
            settings=session.settings, asked=asked,
            sources=list({planned.source.name: planned.source for planned in session.plan}.values()),
        )  # fmt: skip
        with RunWriter.create(results, header, [planned.case for planned in session.plan]) as writer:
            writer.append(*planned_skips(session.plan))
            work(study, session, asked, writer, watch)
    return read_run(writer.path)


def resumed(study: Study[Any, Any], run: StoredRun, channel: Scripted) -> StoredRun:
    """Return what a run becomes when it is gone on with."""
    writer, begun = RunWriter.reopen(run.path)
    asked, selection, settings = asked_of(begun), begun.header.selection, begun.header.settings
    with writer, prepared(study, selection, settings, asked, begun, open_channel=lambda: channel) as session:
        work(study, session, asked, writer, begun=begun)
    return read_run(run.path)
