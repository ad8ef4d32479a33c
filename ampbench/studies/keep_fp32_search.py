"""The search for modules to keep in fp32: halving an order of all, then leaving out what is not needed.

A worker tries sets, each stored before the next. The search is deterministic given its trials, so that one that broke
off is gone through again with what is stored.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import structs

from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import format_error
from ampbench.drive.pieces import Piece, Seen, ask_case
from ampbench.drive.servers import Channel
from ampbench.drive.session import check_same_network
from ampbench.errors import UsageError
from ampbench.records.measured import OUT_OF_MEMORY, Failure, Skip
from ampbench.records.wire import Task
from ampbench.studies.keep_fp32 import (
    SPACE_TASK,
    TIMING_TASK,
    TRIAL_TASK,
    WHOLE,
    KeepAsked,
    KeepSearch,
    Limits,
    SearchSpace,
    TimingAsked,
    Trial,
    TrialAsked,
    Units,
    islands,
    kept_names,
    share_of,
    worst_trials,
)
from ampbench.studies.study import Session

OTHER_BATCHES = 3
"""The number of batches, unseen by the search, on which its result is confirmed."""

A = TypeVar("A")
R = TypeVar("R")


class TrialsSpentError(Exception):
    """No trial is left."""


class Smallest:
    """A search among units, in an `order` of which the first are suspected most.

    `try_set` is given the units to keep and returns how many times the budget the errors then are, None where there is
    no room for that set; it raises `TrialsSpentError` where no trial is left. `kept` is the smallest set that was seen
    to meet the budget, None without any; `minimal`: no single unit can be left out of it.
    """

    def __init__(self, order: Sequence[int], try_set: Callable[[Units], float | None]):
        self._order, self._try_set = list(order), try_set
        self._shares: dict[Units, float | None] = {}
        self.kept: Units | None = None
        self.minimal = False

    def run(self) -> "Smallest":
        """Search, as far as trials go, and return itself."""
        with suppress(TrialsSpentError):
            self._search()
        return self

    def _search(self) -> None:
        if self._meets(frozenset()):
            self.minimal = True
            return
        self._halve()
        if self.kept is None:
            return
        *others, _ = (unit for unit in self._order if unit in self.kept)  # without the last it fails
        self._leave_out(others)
        before = None
        while self.kept != before:
            before = self.kept
            for unit in reversed(self._order):
                if unit in self.kept:
                    self._meets(self.kept - {unit})
        self.minimal = True

    def _halve(self) -> None:
        """Find the shortest beginning of the order that meets the budget, if keeping more never errs more.

        What there is no room for counts as long enough.
        """
        failing, enough = 0, len(self._order)
        if not self._meets(frozenset(self._order)) and self._shares[frozenset(self._order)] is not None:
            return
        while enough - failing > 1:
            middle = (failing + enough) // 2
            beginning = frozenset(self._order[:middle])
            if self._meets(beginning) or self._shares[beginning] is None:
                enough = middle
            else:
                failing = middle

    def _leave_out(self, units: Sequence[int]) -> None:
        """Leave out of the set what the budget allows, all together or else by halves, the last first."""
        assert self.kept is not None
        if not units or self._meets(self.kept.difference(units)) or len(units) == 1:
            return
        half = len(units) // 2
        self._leave_out(units[half:])
        self._leave_out(units[:half])

    def _meets(self, kept: Units) -> bool:
        """Return whether a set meets the budget, trying it once; the smallest that does is `kept`."""
        if kept not in self._shares:
            self._shares[kept] = self._try_set(kept)
        share = self._shares[kept]
        meets = share is not None and share <= 1.0
        if meets and (self.kept is None or len(kept) < len(self.kept)):
            self.kept = kept
        return meets


def suspected_first(space: SearchSpace) -> list[int]:
    """Return the units in the order of what they do by themselves: those that overflow, then by their own error."""
    units = space.units
    return sorted(range(len(units)), key=lambda index: (-units[index].overflows, -(units[index].own_rel_l2 or 0.0)))


def search_piece(session: Session[KeepAsked], channel: Channel, piece: Piece) -> KeepSearch | Failure | Skip:
    """Search a case, storing its space and every trial at once; a worker that dies in a trial ends it.

    Raises `UsageError` where the network of a search that goes on is not the one that it began with.
    """
    try:
        return _Search(session, channel, piece).ended()
    except _EndedError as error:
        return error.how


class _EndedError(Exception):
    """A reply that has not what was asked for."""

    def __init__(self, how: Failure | Skip):
        super().__init__(how.reason if isinstance(how, Skip) else how.said)
        self.how = how


class _Search:
    """The search of one case: what it asks a worker, and what it was told before."""

    def __init__(self, session: Session[KeepAsked], channel: Channel, piece: Piece):
        self._session, self._channel, self._piece = session, channel, piece
        self._has_worker = False
        self._limits = self._own_limits()
        case_id, begun = piece.planned.case.case_id, session.begun
        self._trials = list(begun.several_of(Trial).get(case_id, [])) if begun else []
        self._space = self._looked_into()
        self._unconfirmed = ""

    def ended(self) -> KeepSearch:
        """Return how the search ends: a set that misses the budget on another batch counts as one that failed."""
        while True:
            found = Smallest(suspected_first(self._space), self._share).run()
            if found.kept is None or self._holds(islands(self._space, found.kept)):
                break
        kept = None if found.kept is None else islands(self._space, found.kept)
        ended = KeepSearch(case_id=self._space.case_id, kept=kept, minimal=found.minimal, unconfirmed=self._unconfirmed)
        return self._timed(ended, kept) if kept else ended

    def _own_limits(self) -> Limits:
        """Return what bounds the case: gradients where it trains, updates where what it trains is stored in half."""
        case, asked = self._piece.planned.case, self._session.asked
        row, trains = PRECISIONS[case.precision], case.phase == "training"
        stored_low = row.storage != "float32" and row.autocast is None and not row.master
        gradient = asked.max_gradient_error if trains else None
        update = asked.min_update_kept or None if trains and stored_low else None
        return Limits(max_error=asked.max_error, max_gradient_error=gradient, min_update_kept=update)

    def _looked_into(self) -> SearchSpace:
        """Return the space; raises `UsageError` where it is not what the run knows of the network."""
        space = self._asked(SPACE_TASK, self._limits)
        begun, case = self._session.begun, self._piece.planned.case
        if begun is not None:
            spaces = begun.of(SearchSpace)
            for case_id, before in spaces.items():
                if begun.cases[case_id].group == case.group:
                    check_same_network(begun.header.run, case.workload, before, space)
            if case.case_id in spaces:
                return _same_modules(begun.header.run, spaces[case.case_id], space)
        self._session.keep(self._piece, space)
        return space

    def _share(self, units: Units) -> float | None:
        """Return how many times the budget a set errs on the batch on which that is most, trying it on the first."""
        kept = islands(self._space, units)
        known = worst_trials(self._limits, self._trials).get(tuple(kept))
        if known is None:
            if sum(not trial.batch for trial in self._trials) >= self._session.asked.max_trials:
                raise TrialsSpentError
            known = self._tried(kept, 0)
        return None if known.error == OUT_OF_MEMORY else share_of(self._limits, known)

    def _holds(self, kept: list[str]) -> bool:
        """Return whether a set meets the budget on other batches, too, as far as there are any."""
        self._unconfirmed = ""
        for batch in range(1, OTHER_BATCHES + 1):
            known = next((each for each in self._trials if each.batch == batch and each.kept == kept), None)
            try:
                trial = known or self._tried(kept, batch)
            except _EndedError as error:
                self._unconfirmed = str(error)
                return True
            if share_of(self._limits, trial) > 1.0:
                return False
        return True

    def _tried(self, kept: list[str], batch: int) -> Trial:
        asked = TrialAsked(kept=kept, batch=batch, updates=self._limits.min_update_kept is not None)
        trial = structs.replace(self._asked(TRIAL_TASK, asked), number=len(self._trials), batch=batch)
        self._session.keep(self._piece, trial)
        self._trials.append(trial)
        return trial

    def _timed(self, ended: KeepSearch, kept: list[str]) -> KeepSearch:
        """Return a search with what its set costs: that nobody could measure it is no reason to lose what was found."""
        self._has_worker = False  # the reference that trials keep must not weigh on what is measured
        runs = [trial.kept for trial in self._trials if not trial.batch and not trial.error]
        sets = [each for each in ([], kept, *([] if kept == WHOLE else [WHOLE])) if each in runs]
        try:
            return structs.replace(ended, timing=self._asked(TIMING_TASK, TimingAsked(kept=sets)))
        except _EndedError as error:
            return structs.replace(ended, untimed=str(error))

    def _asked(self, task: Task[A, R], asked: A) -> R:
        """Return what the case's own worker found, which keeps the reference from one trial to the next."""
        fresh, self._has_worker = not self._has_worker, True
        settings = self._session.prepared.settings
        found = ask_case(self._channel, self._piece.planned, settings, task, asked, fresh=fresh)
        if isinstance(found, Failure | Skip):
            raise _EndedError(found)
        return found


def _same_modules(run: str, before: SearchSpace, now: SearchSpace) -> SearchSpace:
    """Return the space that a run began with; raises `UsageError` where its modules are others now."""
    modules, others = ([unit.modules for unit in space.units] for space in (before, now))
    if (modules, before.containers) != (others, now.containers):
        raise UsageError(f"run {run} cannot be resumed: the modules are others than it began with; start a new run")
    return before


def trial_said(seen: Seen | None) -> str:
    """Return "trial 12: layer.2, layer.5 kept, error 3.1e-03"; "" for what is no trial."""
    if not isinstance(seen, Trial):
        return ""
    erred = f"error {format_error(seen.output_rel_l2)}" if seen.output_rel_l2 is not None else seen.error
    return f"trial {seen.number + 1}: {kept_names(seen.kept)} kept, {erred or f'{seen.nonfinite:,} values not finite'}"
