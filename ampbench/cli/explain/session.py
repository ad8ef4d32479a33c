"""What every verb of `ampbench explain` that explains cases does: plan, explain, store, tell, and end cleanly."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampbench.cli.selecting import make_selection, make_settings
from ampbench.errors import StoreError, UsageError
from ampbench.records.runs import Asked, Selection, Settings, deed_of, verb_of

if TYPE_CHECKING:
    from ampbench.planning import PlannedCase
    from ampbench.records.runs import Entry, Header
    from ampbench.running.passes import Seen, Watch
    from ampbench.running.session import Prepared
    from ampbench.store import RunWriter, StoredRun

FAILED, INTERRUPTED = 3, 130


@dataclass(frozen=True, slots=True)
class Doing:
    """What a verb does with the cases it planned: `explain` them, and how progress calls that ("tracing").

    `pieces` are the cases in the order of the work that progress counts, each as often as it is worked on; None: each
    planned case once. `asked` is what a study keeps in its run to go on with it.
    """

    said: str
    explain: "Callable[[Prepared, RunWriter, Watch], object]"
    pieces: "Callable[[Prepared], Sequence[PlannedCase]] | None" = None
    asked: Asked | None = None


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
    doing: Doing,
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Have what was planned explained into a new run file, `tell` of what is in it, and return the exit code.

    `explains` is the kind of run. What was seen is told even where it could not be stored, which is then raised; a run
    of nothing is not left behind.
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
            header = replace(header, explains=explains, asked=doing.asked)
            with store.RunWriter.create(results, header, [planned.case for planned in prepared.plan]) as writer:
                stored, problem = _explained(prepared, header, writer, doing)
    except KeyboardInterrupt:
        print_note(nothing)
        return INTERRUPTED
    interrupted = not problem and stored.ending == "interrupted"
    if interrupted and not stored.explained and not stored.trials and not stored.failures:
        writer.path.unlink()  # a run of nothing would stand in every list
        print_note(nothing)
        return INTERRUPTED
    return told(stored, problem, tell)


def explain_further(
    preparing: "AbstractContextManager[Prepared]",
    begun: "StoredRun",
    writer: "RunWriter",
    doing: Doing,
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Do as `explain_and_store` does, for what a run that was `begun` lacks; `writer` goes on with its file."""
    from ampbench.cli.printing import print_note

    try:
        with preparing as prepared:
            stored, problem = _explained(prepared, begun.header, writer, doing, begun)
    except KeyboardInterrupt:
        print_note("interrupted: nothing was added to what was seen before")
        return INTERRUPTED
    return told(stored, problem, tell)


def go_on(
    resume: str,
    results: Path,
    explains: str,
    left: "Callable[[StoredRun], bool]",
    further: "Callable[[StoredRun], tuple[AbstractContextManager[Prepared], Doing]]",
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Go on with the run that `resume` names, of the kind `explains`, and return the exit code.

    `left` says whether it lacks anything; one that does not is told as it is. `further` plans what it lacks. Raises
    `UsageError` for a run of another kind.
    """

    def proceed(begun: "StoredRun", writer: "RunWriter") -> int:
        preparing, doing = further(begun)
        return explain_further(preparing, begun, writer, doing, tell)

    return go_on_by(resume, results, explains, left, proceed, tell)


def go_on_by(
    resume: str,
    results: Path,
    explains: str,
    left: "Callable[[StoredRun], bool]",
    proceed: "Callable[[StoredRun, RunWriter], int]",
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Do as `go_on` does, with `proceed` adding to a run what it lacks and returning the exit code."""
    from ampbench import store
    from ampbench.cli.printing import print_note

    if resume == store.LATEST:
        raise UsageError(f"--resume needs the id of a run of ampbench {verb_of(explains)}: latest is one that measured")
    file = store.find_run(resume, results)
    header = store.read_header(file)
    if header.explains != explains:
        raise UsageError(
            f"run {header.run} {deed_of(header.explains)}: --resume goes on with a run of ampbench {verb_of(explains)}"
        )
    begun = store.read_run(file)
    if not left(begun):
        print_note(f"run {header.run} is complete: nothing is left to do")
        tell(begun)
        return FAILED if begun.failures else 0
    writer, begun = store.RunWriter.reopen(file)
    with writer:
        if begun.cut:
            print_note(f"{file}: its last line was cut off and is left out")
        return proceed(begun, writer)


def told(stored: "StoredRun", problem: "StoreError | None", tell: "Callable[[StoredRun], None]") -> int:
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
    doing: Doing,
    begun: "StoredRun | None" = None,
) -> "tuple[StoredRun, StoreError | None]":
    """Return what was seen, and why it could not all be stored, if so: what was seen is told in any case."""
    from ampbench import store
    from ampbench.cli.progress import case_progress
    from ampbench.running import session

    seen: list[Entry] = list(session.planned_skips(prepared.plan))
    try:
        writer.append(*seen)
        pieces = doing.pieces or (lambda prepared: [planned for planned in prepared.plan if not planned.skip])
        with case_progress(doing.said, pieces(prepared)) as show:
            doing.explain(prepared, writer, _keeping(seen, show))
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
