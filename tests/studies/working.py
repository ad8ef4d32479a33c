"""Any study at work, as its verb has it work, without a command line."""

from collections.abc import Callable
from typing import Any

from ampbench.drive.session import Prepared
from ampbench.store import RunWriter, StoredRun
from ampbench.studies.study import Session, Study
from ampbench.studies.work import pieces_of, worked


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
