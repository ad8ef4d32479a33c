"""The search for what to keep in fp32: a worker tries sets of modules, each stored before the next is tried.

That makes a search resumable: it is deterministic for its seed, and what it tried before is not tried again.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TypeVar

from msgspec import structs

from ampbench.core.precisions import PRECISIONS
from ampbench.core.units import counted, format_duration, format_error
from ampbench.drive.pieces import Piece, Seen, ask_case
from ampbench.drive.planning import PlannedCase
from ampbench.drive.servers import Channel
from ampbench.drive.session import check_same_network
from ampbench.errors import UsageError
from ampbench.instruments.keep_fp32.findings import meets
from ampbench.instruments.keep_fp32.instrument import SPACE_TASK, TRIAL_TASK, WEIGHING_TASK
from ampbench.instruments.keep_fp32.records import (
    KeepSearch,
    SearchSpace,
    Trial,
    TrialAsked,
    Wanted,
    Weighing,
    WeighingAsked,
)
from ampbench.instruments.keep_fp32.search import Found, search, sets_between
from ampbench.instruments.keep_fp32.trials import Budget, TrialsSpentError, units_of
from ampbench.records.labels import few
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import Settings
from ampbench.records.wire import Nothing, Task
from ampbench.store import StoredRun
from ampbench.studies.study import Session

FOR_WEIGHING = 2
"""So many trials, of enough, are left for sets that are tried only to be weighed."""
FRESH = 3
"""On so many batches that the search has not seen, what it found is tried before it is told."""

A = TypeVar("A")
R = TypeVar("R")
Store = Callable[[SearchSpace | Trial], None]
"""Stores what a search saw before it goes on."""


def check_same_networks(resumed: StoredRun, left: Sequence[PlannedCase], channel: Channel, settings: Settings) -> None:
    """Raise `UsageError` where a network of what is left of a run is not the one that was searched before.

    Each network is built and looked into once more.
    """
    before: dict[str, SearchSpace] = {}
    for case_id, space in resumed.of(SearchSpace).items():
        before[resumed.cases[case_id].group] = space
    for planned in sorted(left, key=lambda planned: planned.case.case_id not in resumed.of(SearchSpace)):
        case = planned.case
        was = before.pop(case.group, None)
        if was is None:
            continue
        was = resumed.of(SearchSpace).get(case.case_id, was)
        refused = f"run {resumed.header.run} cannot be resumed: "
        found = ask_case(channel, planned, settings, SPACE_TASK, Nothing())
        if not isinstance(found, SearchSpace):
            raise UsageError(f"{refused}{_reason(found)}")
        check_same_network(resumed.header.run, case.workload, was, found)
        if was.case_id == found.case_id and _modules(was) != _modules(found):
            raise UsageError(f"{refused}the modules of {case.workload} are others than it began with; start a new run")


def _modules(space: SearchSpace) -> tuple[list[list[str]], list[str]]:
    return [unit.modules for unit in space.units], space.containers


def _reason(how: Failure | Skip) -> str:
    return how.reason if isinstance(how, Skip) else how.said


def search_piece(session: Session[Wanted], channel: Channel, piece: Piece) -> KeepSearch | Failure | Skip:
    """Search a case; its space and every trial are stored as soon as they are known."""
    case_id, begun = piece.planned.case.case_id, session.begun
    space = begun.of(SearchSpace).get(case_id) if begun else None
    trials = begun.several_of(Trial).get(case_id, []) if begun else []
    store = partial(session.keep, piece)
    return search_case(channel, piece.planned, session.prepared.settings, session.asked, store, space, trials)


def search_case(
    channel: Channel,
    planned: PlannedCase,
    settings: Settings,
    wanted: Wanted,
    store: Store,
    space: SearchSpace | None = None,
    trials: Sequence[Trial] = (),
) -> KeepSearch | Failure | Skip:
    """Return how the search of a case for what is `wanted` ended: a worker that dies in a trial of it ends it.

    What was found is returned without what it costs where that cannot be measured, whatever the worker dies of.

    The space and each trial go to `store` at once. `space` and `trials` are those that are stored already.
    """
    try:
        return _Search(channel, planned, settings, wanted, store, trials).ended(space)
    except _Ended as ended:
        return ended.how


class _Ended(Exception):  # noqa: N818 - not an error by itself
    """A reply that has not what was asked for ends a search."""

    def __init__(self, how: Failure | Skip):
        super().__init__()
        self.how = how


class _Search:
    """The search of one case: what it asks a worker, and what it was told before."""

    def __init__(
        self,
        channel: Channel,
        planned: PlannedCase,
        settings: Settings,
        wanted: Wanted,
        store: Store,
        trials: Sequence[Trial],
    ):
        self._channel, self._planned, self._settings = channel, planned, settings
        self._wanted, self._store = wanted, store
        self._trials = list(trials)
        self._known = {tuple(trial.kept): trial for trial in trials}
        self._fresh: dict[tuple[str, ...], list[Trial]] = {}
        self._refuted: dict[tuple[str, ...], Trial] = {}
        self._no_fresh = ""
        self._has_worker = False

    def ended(self, space: SearchSpace | None) -> KeepSearch:
        case, wanted = self._planned.case, self._wanted
        min_update_kept = wanted.min_update_kept if self._bounds_updates() else None
        space = space or self._asked_space()
        max_gradient_error = wanted.max_gradient_error if case.phase == "training" else None
        budget = Budget(
            max_error=wanted.max_error, max_gradient_error=max_gradient_error, min_update_kept=min_update_kept
        )
        found, asked = self._confirmed_search(space, budget)
        ended = KeepSearch(
            case_id=case.case_id,
            max_error=wanted.max_error,
            max_gradient_error=max_gradient_error,
            min_update_kept=min_update_kept,
            objective=wanted.objective,
            seed=wanted.seed,
            found=found.kept,
            units=len(found.units or ()),
            smallest=found.smallest,
        )
        ended = self._bettered(ended, space, budget)
        weighing, notes = self._weighed(space, ended, asked)
        ended = self._bettered(ended, space, budget)
        if ended.found is not None and self._no_fresh:
            notes.append(
                f"not confirmed on {'more batches' if self._fresh_of(ended) else 'another batch'}: {self._no_fresh}"
            )
        return structs.replace(
            ended,
            trials=len(self._trials),
            confirmed=self._fresh_of(ended),
            refuted=list(self._refuted.values()),
            weighing=weighing,
            notes=notes,
        )

    def _bounds_updates(self) -> bool:
        """Return whether the search bounds what arrives of an update: where weights are trained as stored in half."""
        row = PRECISIONS[self._planned.case.precision]
        stored_low = row.storage != "float32" and row.autocast is None and not row.master
        return stored_low and self._planned.case.phase == "training" and self._wanted.min_update_kept is not None

    def _confirmed_search(self, space: SearchSpace, budget: Budget) -> tuple[Found, set[tuple[str, ...]]]:
        """Return the smallest set that meets the budget on fresh batches, too, and which sets its search asked about.

        A set that misses it there counts as one that failed, and the search is gone through again with what is known.
        """
        wanted = self._wanted
        spared = min(FOR_WEIGHING, wanted.max_trials // 4)
        while True:
            asked: set[tuple[str, ...]] = set()
            found = search(
                space,
                partial(self._answered, asked=asked, most=wanted.max_trials - spared),
                max_error=budget.max_error,
                max_gradient_error=budget.max_gradient_error,
                min_update_kept=budget.min_update_kept,
                objective=wanted.objective,
                seed=wanted.seed,
                max_trials=wanted.max_trials - spared,
            )
            if found.kept is None or self._holds(found.kept, budget):
                return found, asked

    def _answered(self, kept: Sequence[str], asked: set[tuple[str, ...]], most: int) -> Trial:
        """Return the trial of a set, or that on the batch that refuted it. Raises TrialsSpentError after `most`."""
        key = tuple(kept)
        if key not in self._known and len(self._trials) >= most:
            raise TrialsSpentError
        asked.add(key)
        return self._refuted.get(key) or self._tried(kept)

    def _holds(self, kept: Sequence[str], budget: Budget) -> bool:
        """Return whether a set meets the budget on fresh batches; those that do not are `_refuted` from then on."""
        key = tuple(kept)
        if key not in self._fresh:
            self._fresh[key] = list(self._on_fresh_batches(kept))
            worst = max(self._fresh[key], key=lambda trial: max(budget.shares(trial)), default=None)
            if worst is not None and max(budget.shares(worst)) > 1.0:
                self._refuted[key] = worst
        return key not in self._refuted

    def _on_fresh_batches(self, kept: Sequence[str]) -> Iterator[Trial]:
        """Yield the trials of a set on batches that the search does not see, as far as there are any."""
        for batch in range(1, FRESH + 1):
            trial = self._ask(TRIAL_TASK, self._trial_of(kept, batch))
            if not isinstance(trial, Trial):
                self._no_fresh = _reason(trial)
                return
            yield trial

    def _fresh_of(self, ended: KeepSearch) -> list[Trial]:
        return [] if ended.found is None else self._fresh.get(tuple(ended.found), [])

    def _bettered(self, ended: KeepSearch, space: SearchSpace, budget: Budget) -> KeepSearch:
        """Return a search with the smallest set that met the budget, which may have been tried to be weighed only."""
        least = ended.units if ended.found is not None else len(space.units) + 1
        meeting = [trial for trial in self._trials if meets(ended, trial)]
        for trial in sorted(meeting, key=lambda trial: len(units_of(space, trial.kept))):
            units = len(units_of(space, trial.kept))
            if units < least and self._holds(trial.kept, budget):
                return structs.replace(ended, found=list(trial.kept), units=units, smallest=False)
        return ended

    def _asked_space(self) -> SearchSpace:
        found = self._ask(SPACE_TASK, Nothing())
        if not isinstance(found, SearchSpace):
            raise _Ended(found)
        space = structs.replace(found, wanted=self._wanted)
        self._store(space)
        return space

    def _tried(self, kept: Sequence[str]) -> Trial:
        """Return the trial of a set, made unless it is known."""
        key = tuple(kept)
        if key not in self._known:
            found = self._ask(TRIAL_TASK, self._trial_of(kept))
            if not isinstance(found, Trial):
                raise _Ended(found)
            trial = structs.replace(found, number=len(self._trials))
            self._store(trial)
            self._trials.append(trial)
            self._known[key] = trial
        return self._known[key]

    def _weighed(
        self, space: SearchSpace, ended: KeepSearch, asked: Set[tuple[str, ...]]
    ) -> tuple[Weighing | None, list[str]]:
        """Return what sets cost, and notes: that nobody could measure it is no reason to lose what was found."""
        searched = [trial for trial in self._trials if tuple(trial.kept) in asked]  # not what was tried to be weighed
        units = None if ended.found is None else units_of(space, ended.found)
        try:
            able = [kept for kept in sets_between(space, units, searched) if self._can_be_weighed(kept)]
            self._has_worker = False  # the reference that trials keep must not weigh on what is measured
            weighed = WeighingAsked(kept=[list(kept) for kept in able], seconds=self._wanted.seconds)
            found = self._ask(WEIGHING_TASK, weighed)
            if not isinstance(found, Weighing):
                raise _Ended(found)
        except _Ended as failed:
            return None, [f"what sets cost was not measured: {_reason(failed.how)}"]
        return found, []

    def _can_be_weighed(self, kept: Sequence[str]) -> bool:
        """Return whether a step runs with a set, tried if a trial is left: a price needs an error beside it."""
        if tuple(kept) not in self._known and len(self._trials) >= self._wanted.max_trials:
            return False
        return not self._tried(kept).error

    def _trial_of(self, kept: Sequence[str], batch: int = 0) -> TrialAsked:
        return TrialAsked(kept=list(kept), batch=batch, updates=self._bounds_updates())

    def _ask(self, task: Task[A, R], asked: A) -> R | Failure | Skip:
        """Return what the case's own worker found, which keeps the reference from one trial to the next."""
        fresh, self._has_worker = not self._has_worker, True
        return ask_case(self._channel, self._planned, self._settings, task, asked, fresh=fresh)


class TrialsSeen:
    """The trials of one search as they are made, for a line that tells of the last one and the time left."""

    def __init__(self) -> None:
        self._space: SearchSpace | None = None
        self._began = time.monotonic()
        self._made = 0

    def said(self, found: Seen | None) -> str:
        """Return "trial 12: 3 of 54 modules kept, error 3.1e-03, at most 2.00 min left, then weighing".

        That is "" for what is no trial; without more to try, weighing is all that is left. How many trials a resumed
        search has left is not known here.
        """
        if isinstance(found, SearchSpace):
            self._space, self._began = found, time.monotonic()
        if not isinstance(found, Trial):
            return ""
        self._made += 1
        parts = [f"trial {found.number + 1}: {self._kept(found)} kept", _erred(found)]
        if self._space is not None and self._space.wanted is not None:
            trials = self._space.wanted.max_trials - found.number - 1
            left = (time.monotonic() - self._began) / self._made * trials
            parts += [f"at most {format_duration(left)} left, then weighing" if left >= 1 else "then weighing"]
        return ", ".join(parts)

    def _kept(self, trial: Trial) -> str:
        if self._space is None:  # a resumed search had it before
            return few(trial.kept) or "nothing"
        return f"{len(units_of(self._space, trial.kept))} of {counted(len(self._space.units), 'module')}"


def _erred(trial: Trial) -> str:
    errors = [("error", trial.output_rel_l2), ("gradient error", trial.grad_rel_l2)]
    known = [f"{name} {format_error(error)}" for name, error in errors if error is not None]
    return ", ".join(known) or (f"{trial.nonfinite:,} values not finite" if trial.nonfinite else "it failed")
