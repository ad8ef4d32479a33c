"""What every verb of `ampbench study` does once its options are read: begin a study, or go on with one."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbench.cli import explaining
from ampbench.cli.explaining import Doing, Left
from ampbench.cli.options import OutputFormat
from ampbench.records.runs import Asked, Selection, Settings

if TYPE_CHECKING:
    from ampbench.running.session import Prepared
    from ampbench.store import StoredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A kind of study, by its name in a run: how it is planned, made, gone on with and shown.

    `said` is how progress calls the work ("training"). `prepare` plans what was asked for, or what a run that was begun
    lacks; `work` does it; `pieces` are what progress counts of it, where that is not each case once. `left` is what a
    run leaves undone, `needed` the fields of `Asked` without which nobody can go on with it. `show` prints it.
    """

    kind: str
    said: str
    prepare: "Callable[[Selection, Settings, Asked, StoredRun | None], AbstractContextManager[Prepared]]"
    work: Callable[..., object]
    left: Left
    needed: Sequence[str]
    show: Callable[..., None]
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
    from ampbench.cli.pass_printing import telling

    preparing = study.prepare(selection, settings, asked, None)
    tell = telling(study.show, format, everything=everything)
    return explaining.explain_and_store(preparing, study.kind, results, label, study.doing(asked), tell)


def go_on(study: Study, resume: str, results: Path, format: OutputFormat, *, everything: bool = False) -> int:
    """Make what the study that `resume` names lacks, and return the exit code; one that lacks nothing is shown."""
    from ampbench.cli.pass_printing import telling
    from ampbench.studied.unfinished import asked_of

    def further(begun: "StoredRun") -> "tuple[AbstractContextManager[Prepared], Doing]":
        asked, header = asked_of(begun, *study.needed), begun.header
        return study.prepare(header.selection, header.settings, asked, begun), study.doing(asked, begun)

    tell = telling(study.show, format, everything=everything)
    return explaining.go_on(resume, results, study.kind, study.left, further, tell)
