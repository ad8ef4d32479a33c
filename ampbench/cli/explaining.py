"""What verbs of `explain` and `study` have in common.

What every verb of `explain` and `study` that is about cases does: plan, ask, store, tell, and end cleanly.

What every verb of `ampbench study` does once its options are read: begin a study, or go on with one.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbench.base.units import counted
from ampbench.cli.options import run_words
from ampbench.cli.printing import OutputFormat, print_document, print_note
from ampbench.cli.selecting import make_selection, make_settings, resumed_imports
from ampbench.errors import CASE_FAILED, INTERRUPTED, AmpbenchError, NothingToRunError, StoreError, UsageError
from ampbench.records.kinds import LINES, deed_of, verb_of
from ampbench.records.run import LATEST, Asked, Selection, Settings

if TYPE_CHECKING:
    from ampbench.drive.pieces import Seen
    from ampbench.drive.planning import PlannedCase
    from ampbench.drive.session import Prepared
    from ampbench.instruments.ceilings.instrument import Piece
    from ampbench.records.run import Entry, Header
    from ampbench.store import RunWriter, StoredRun


def print_failures(stored: "StoredRun", format: OutputFormat) -> None:
    """Print on stderr which cases failed where the data on stdout, a CSV, has no place for them."""
    if format is OutputFormat.CSV:
        for failure in stored.failures.values():
            print_note(f"failed: {failure.case_id}: {failure.said}")


def telling(format: OutputFormat, *, everything: bool, **options: Any) -> "Callable[[StoredRun], None]":
    """Return what prints all of a run, as its instrument tells of it with `options`, and then its failures."""
    from ampbench.instruments import registry

    def tell(stored: "StoredRun") -> None:
        print_document(registry.document(stored, list(stored.cases), everything=everything, **options), format)
        print_failures(stored, format)

    return tell


Left = Callable[["StoredRun"], Collection[object]]
"""What a run leaves undone and can be gone on with, piece by piece."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a verb does with what it planned: `explain` it, and how progress calls that ("tracing").

    `pieces` are the pieces of work in the order in which progress counts them, a case as often as it is worked on;
    None: each planned case once. `asked` is what a study keeps in its run to go on with it, `left` what a run of the
    kind leaves undone; None: it cannot be gone on with.
    """

    said: str
    explain: "Callable[[Prepared, RunWriter, Callable[[Any, Seen | None], None]], object]"
    pieces: "Callable[[Prepared], Sequence[PlannedCase | Piece]] | None" = None
    asked: Asked | None = None
    left: Left | None = None


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
    return selection, make_settings(1, 1, "", "", timeout, "", threads, seed)


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
    from ampbench.drive import session
    from ampbench.drive.planning import meant

    nothing = "interrupted: nothing was seen"
    problem = None
    store.require_writable(results)
    try:
        with preparing as prepared:
            if prepared.plan:  # ceilings have no cases
                session.require_work(prepared)
            for said in meant(prepared.selection, prepared.plan):
                print_note(said)
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
    interrupted = not isinstance(problem, StoreError) and stored.ending == "interrupted"
    if interrupted and not (
        stored.failures or any(held for line, held in stored.found.items() if not LINES[line].asked)
    ):
        writer.path.unlink()  # a run of nothing would stand in every list
        if problem:
            raise problem
        print_note(nothing)
        return INTERRUPTED
    return _told(stored, problem, tell, results, doing.left)


def go_on(
    resume: str,
    results: Path,
    explains: str,
    left: Left,
    further: "Callable[[StoredRun], tuple[AbstractContextManager[Prepared], Doing]]",
    tell: "Callable[[StoredRun], None]",
) -> int:
    """Go on with the run that `resume` names, of the kind `explains`, and return the exit code.

    `left` says what it lacks; one that lacks nothing is told as it is. `further` plans what it lacks. Raises
    `UsageError` for a run of another kind.
    """
    from ampbench import store
    from ampbench.cli.printing import print_note

    if resume == LATEST:
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
        return _exit_code(begun)
    if imports := resumed_imports(header):
        print_note(imports)
    writer, begun = store.RunWriter.reopen(file)
    with writer:
        if begun.cut:
            print_note(f"{file} {store.CUT}")
        preparing, doing = further(begun)
        try:
            with preparing as prepared:
                stored, problem = _explained(prepared, begun.header, writer, doing, begun)
        except KeyboardInterrupt:
            print_note("interrupted: nothing was added to what was seen before")
            _tell_left(begun, results, doing.left)
            return INTERRUPTED
    return _told(stored, problem, tell, results, doing.left)


def _told(
    stored: "StoredRun",
    problem: AmpbenchError | None,
    tell: "Callable[[StoredRun], None]",
    results: Path,
    left: Left | None,
) -> int:
    """Tell what is in a run, where it is and how to go on with what is left, and return the exit code.

    Raises the `problem` that ended it, at once where it is one with storing what was seen.
    """
    from ampbench.cli.printing import print_note

    tell(stored)
    if isinstance(problem, StoreError):
        raise problem
    print_note(f"run {stored.header.run}: {stored.path}")
    interrupted = stored.ending == "interrupted"
    if interrupted:
        print_note("interrupted: what was seen until then is kept")
    _tell_left(stored, results, left)
    if problem:
        raise problem
    return INTERRUPTED if interrupted else _exit_code(stored)


def _tell_left(stored: "StoredRun", results: Path, left: Left | None) -> None:
    """Say how much of a run is left and how to go on with it, where that can be done."""
    from ampbench.cli.printing import print_note

    undone = len(left(stored)) if left is not None else 0
    if undone:
        verb = verb_of(stored.header.explains)
        print_note(
            f"{counted(undone, 'piece')} left; ampbench {verb} --resume {run_words(stored.path, results)} goes on"
        )


def _exit_code(stored: "StoredRun") -> int:
    from ampbench.instruments.ceilings.instrument import failed

    return CASE_FAILED if stored.failures or failed(stored) else 0


def _explained(
    prepared: "Prepared",
    header: "Header",
    writer: "RunWriter",
    doing: Doing,
    begun: "StoredRun | None" = None,
) -> "tuple[StoredRun, AmpbenchError | None]":
    """Return what was seen, and why that is not all, if so: what was seen is told in any case.

    It could not be stored, or a server could not start any more.
    """
    from ampbench import store
    from ampbench.cli.progress import piece_progress
    from ampbench.drive import session

    seen: list[Entry] = list(session.planned_skips(prepared.plan))
    try:
        writer.append(*seen)
        pieces = doing.pieces or (lambda prepared: [planned for planned in prepared.plan if not planned.skip])
        with piece_progress(doing.said, pieces(prepared)) as show:
            doing.explain(prepared, writer, _keeping(seen, show))
    except StoreError as error:
        cases = [planned.case for planned in prepared.plan]
        return store.gathered(writer.path, header, [*cases, *seen], begun), error
    except NothingToRunError as error:
        return store.read_run(writer.path), error
    return store.read_run(writer.path), None


def _keeping(
    seen: "list[Entry]", show: "Callable[[PlannedCase | Piece, Seen | None], None]"
) -> "Callable[[Any, Seen | None], None]":
    """Return a watcher that adds to `seen` what becomes of each piece before it is stored, and passes it on."""

    def watch(piece: "PlannedCase | Piece", found: "Seen | None") -> None:
        if found is not None:
            seen.append(found)
        show(piece, found)

    return watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A kind of study, by its name in a run: how it is planned, made, gone on with and shown.

    `said` is how progress calls the work ("training"). `prepare` plans what was asked for, or what a run that was begun
    lacks; `work` does it; `pieces` are what progress counts of it, where that is not each case once. `left` is what a
    run leaves undone, `needed` the fields of `Asked` without which nobody can go on with it.
    """

    kind: str
    said: str
    prepare: "Callable[[Selection, Settings, Asked, StoredRun | None], AbstractContextManager[Prepared]]"
    work: Callable[..., object]
    left: Left
    needed: Sequence[str]
    pieces: "Callable[[Prepared, Asked, StoredRun | None], Sequence[Any]] | None" = None

    def doing(self, asked: Asked, begun: "StoredRun | None" = None) -> Doing:
        """Return the work on what was asked for, or on what a run that was `begun` lacks."""
        pieces = self.pieces
        return Doing(
            self.said,
            lambda prepared, writer, watch: self.work(prepared, asked, writer, watch, begun),
            None if pieces is None else lambda prepared: pieces(prepared, asked, begun),
            asked,
            self.left,
        )


def begin(
    study: Study,
    selection: Selection,
    settings: Settings,
    asked: Asked,
    results: Path,
    label: str,
    format: OutputFormat,
    *,
    everything: bool = False,
) -> int:
    """Make a new study, store and show it, and return the exit code."""

    preparing = study.prepare(selection, settings, asked, None)
    tell = telling(format, everything=everything)
    return explain_and_store(preparing, study.kind, results, label, study.doing(asked), tell)


def studying_go_on(study: Study, resume: str, results: Path, format: OutputFormat, *, everything: bool = False) -> int:
    """Make what the study that `resume` names lacks, and return the exit code; one that lacks nothing is shown."""
    from ampbench.drive.pieces import asked_of

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        asked, header = asked_of(begun, *study.needed), begun.header
        return study.prepare(header.selection, header.settings, asked, begun), study.doing(asked, begun)

    tell = telling(format, everything=everything)
    return go_on(resume, results, study.kind, study.left, further, tell)
