"""What every verb of `ampbench explain` that explains cases does: plan, explain, store, tell, and end cleanly."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampbench.cli.selecting import make_selection, make_settings
from ampbench.errors import StoreError
from ampbench.records.runs import Selection, Settings

if TYPE_CHECKING:
    from ampbench.planning import PlannedCase
    from ampbench.records.runs import Entry, Header
    from ampbench.running.passes import Seen, Watch
    from ampbench.running.session import Prepared
    from ampbench.store import RunWriter, StoredRun

FAILED, INTERRUPTED = 3, 130


def asked_for(
    names: list[str] | None,
    workload: list[str] | None,
    precision: list[str] | None,
    device: list[str] | None,
    phase: list[str] | None,
    path: list[str] | None,
    memory_format: list[str] | None,
    keyword: str,
    preset: str,
    set_: list[str] | None,
    scaler: bool,
    timeout: str,
    threads: int,
    seed: int,
) -> tuple[Selection, Settings]:
    """Return what the options of these names select, and the settings; raises `UsageError` for a malformed one."""
    selection = make_selection(
        [*(names or []), *(workload or [])], precision, device, phase, path, memory_format, keyword, preset, set_,
        None, scaler,
    )  # fmt: skip
    return selection, make_settings(1, 1, Settings().min_run_seconds, "", timeout, "", threads, seed)


def explain_and_store(
    preparing: "AbstractContextManager[Prepared]",
    explains: str,
    results: Path,
    label: str,
    doing: str,
    explain: "Callable[[Prepared, RunWriter, Watch], object]",
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Have `explain` explain what was planned into a new run file, `tell` of what is in it, and return the exit code.

    `explains` is the kind of run, `doing` what progress says is done ("tracing"). What was seen is told even where it
    could not be stored, which is then raised; a run of nothing is not left behind.
    """
    from ampbench import store
    from ampbench.cli.printing import print_note
    from ampbench.running import session

    nothing = "interrupted: nothing was seen"
    problem = None
    try:
        with preparing as prepared:
            session.require_work(prepared)
            header = session.new_header(
                prepared.selection, prepared.settings, prepared.environment, prepared.plan, label,
                ["ampbench", *sys.argv[1:]],
            )  # fmt: skip
            header = replace(header, explains=explains)
            with store.RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
                stored, problem = _explained(prepared, header, writer, doing, explain)
    except KeyboardInterrupt:
        print_note(nothing)
        return INTERRUPTED
    interrupted = not problem and stored.ending == "interrupted"
    if interrupted and not stored.explained and not stored.trials and not stored.failures:
        writer.path.unlink()  # a run of nothing would stand in every list
        print_note(nothing)
        return INTERRUPTED
    return _told(stored, problem, tell)


def explain_further(
    preparing: "AbstractContextManager[Prepared]",
    begun: "StoredRun",
    writer: "RunWriter",
    doing: str,
    explain: "Callable[[Prepared, RunWriter, Watch], object]",
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Do as `explain_and_store` does, for what a run that was `begun` lacks; `writer` goes on with its file."""
    from ampbench.cli.printing import print_note

    try:
        with preparing as prepared:
            stored, problem = _explained(prepared, begun.header, writer, doing, explain, begun)
    except KeyboardInterrupt:
        print_note("interrupted: nothing was added to what was seen before")
        return INTERRUPTED
    return _told(stored, problem, tell)


def _told(stored: "StoredRun", problem: "StoreError | None", tell: "Callable[[StoredRun], None]") -> int:
    """Tell what is in a run, say where it is, and return the exit code; raises the `problem` with storing it."""
    from ampbench.cli.printing import print_note

    tell(stored)
    if problem:
        raise problem
    print_note(f"run {stored.header.run}: {stored.path}")
    if stored.ending == "interrupted":
        print_note("interrupted: what was seen until then is kept")
        return INTERRUPTED
    return FAILED if stored.failures else 0


def _explained(
    prepared: "Prepared",
    header: "Header",
    writer: "RunWriter",
    doing: str,
    explain: "Callable[[Prepared, RunWriter, Watch], object]",
    begun: "StoredRun | None" = None,
) -> "tuple[StoredRun, StoreError | None]":
    """Return what was seen, and why it could not all be stored, if so: what was seen is told in any case."""
    from ampbench import store
    from ampbench.cli.progress import case_progress
    from ampbench.running import session

    seen: list[Entry] = list(session.planned_skips(prepared.plan))
    try:
        writer.append(*seen)
        with case_progress(doing, sum(not planned.skip for planned in prepared.plan)) as show:
            explain(prepared, writer, _keeping(seen, show))
    except StoreError as error:
        cases = [planned.case for planned in prepared.plan]
        return store.gathered(writer.path, header, [*cases, *seen], begun), error
    return store.read_run(writer.path), None


def _keeping(seen: "list[Entry]", show: "Watch") -> "Watch":
    """Return a watcher that adds to `seen` what becomes of each case before it is stored, and passes it on."""

    def watch(planned: "PlannedCase", found: "Seen | None") -> None:
        if found is not None:
            seen.append(found)
        show(planned, found)

    return watch
