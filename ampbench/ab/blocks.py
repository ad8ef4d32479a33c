"""Interleaved measuring: blocks of one round per case and lane, every lane with its own new server.

A lane is an arm, or the control: the baseline once more. The servers of a block start together and live at the same
time. Case by case, the lanes take turns build by build, in random order. A disturbance longer than a build then affects
all lanes alike, and without a change the lanes of a block are exchangeable, which makes the test on their differences
exact (docs/statistics.md).

On an accelerator the lanes of a case have their rounds one after the other, in random order, each alone on the device:
a large case may find no room with the contexts of other lanes.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ampbench.core.units import counted, format_duration
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import Turn, kept, passes, request_of, with_processes
from ampbench.drive.servers import OpenChannel, Pool
from ampbench.judge.deciding import CONFIRMATION_BLOCKS, LOOKS
from ampbench.records.measured import Failure, Round, Skip
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, REST, ROUND, Nothing, Request, ask

FEWEST_CONFIRMING = 5
"""The least blocks with which a sign test reaches the 5% of a confirmation: 2**-5 = 3%."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One column of the blocks: its planned cases by pair, the function that opens its servers, its writer.

    `control` marks the baseline's second measurement.
    """

    name: str
    cases: Mapping[str, PlannedCase]
    settings: Settings
    open_channel: OpenChannel
    write: Callable[[Entry], None]
    control: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of a look at the blocks so far: decided pairs, and `fired` pairs, whose change needs confirmation."""

    decided: Collection[str] = ()
    fired: Collection[str] = ()


class BlockSession:
    """Measures pairs of cases in blocks until all are decided, or blocks or time are used up.

    The first of `lanes` is the baseline, the last the candidate. `look` is called after each of `LOOKS`, after the last
    block, and when time runs out. A pair that fails in a lane is not measured again. `watch` gets a line about the
    progress, and each failure; `tell` a line about cases without time.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        look: Callable[[], Look],
        *,
        blocks: int = LOOKS[-1],
        max_seconds: float | None = None,
        watch: Callable[[str, Entry | None], None],
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._lanes, self._look, self._blocks, self._max_seconds = lanes, look, blocks, max_seconds
        self._watch, self._tell_user, self._clock, self._began = watch, tell, clock, clock()
        self._open = list(lanes[0].cases)
        self._failed: dict[str, set[str]] = {}  # the lanes in which a pair failed
        self._timed: set[str] = set()
        self._done = self._numbered = 0
        self._block_seconds: list[float] = []
        self._start_seconds: list[float] = []

    def measure_passes(self) -> None:
        """Measure memory and divergence of every case of the two arms, once."""
        for lane in self._lanes:
            if not lane.control:
                self._measure_passes(lane)

    def measure_rounds(self) -> str:
        """Measure blocks; return the end of the session: "complete" or "out of time"."""
        ended = "complete"
        while self._open and self._done < self._blocks:
            if not self._time_for_another():
                ended = "out of time"
                break
            began = self._clock()
            self._measure_block(self._open, self._lanes)
            self._block_seconds.append(self._clock() - began)
            self._done += 1
            if self._done in LOOKS or self._done == self._blocks:
                ended = self._looked()
        if ended == "out of time" and self._open and self._done not in (0, *LOOKS):
            self._looked()
        untimed = [pair for pair in self._open if pair not in self._timed]
        if ended == "out of time" and untimed:
            of_all = f"{len(untimed)} of {counted(len(self._lanes[0].cases), 'case')}"
            self._tell_user(
                f"without a time: {of_all}: --budget was over before a first block; give more, or fewer cases"
            )
        self._measure_survivors()
        return ended

    def _looked(self) -> str:
        """Look, confirm fired pairs, and close decided ones; return "out of time" if time has run out, else
        "complete"."""
        look = self._look()
        fired = [pair for pair in self._open if pair in look.fired]
        self._open = [pair for pair in self._open if pair not in look.decided]
        lanes = [lane for lane in self._lanes if not lane.control]
        for _ in range(CONFIRMATION_BLOCKS):
            fired = [pair for pair in fired if pair in self._open]
            if fired and self._left() <= 0:
                return "out of time"
            if fired:
                self._measure_block(fired, lanes, confirmation=True)
        self._open = [pair for pair in self._open if pair not in fired]
        return "complete"

    def _measure_survivors(self) -> None:
        """Measure a round of pairs that failed in one arm before the other arm had one, to show that it runs there."""
        for arm, failed_arm in ((self._lanes[0], self._lanes[-1]), (self._lanes[-1], self._lanes[0])):
            pairs = [
                pair for pair, names in self._failed.items()
                if failed_arm.name in names and arm.name not in names and pair not in self._timed
            ]  # fmt: skip
            if pairs:
                self._measure_block(pairs, [arm])

    def _measure_passes(self, lane: Lane) -> None:
        pair_of = {planned.case.case_id: pair for pair, planned in lane.cases.items()}
        wanted = [planned for pair, planned in lane.cases.items() if pair in self._open]
        with Pool({lane.name: lane.open_channel}).open() as pool:
            for turn in with_processes(passes(wanted)):
                pair = pair_of[turn.planned.case.case_id]
                if pair not in self._open or self._left() <= 0:
                    continue
                self._tell(f"{turn.task.name} of {lane.name}", pair)
                self._store(lane, pair, _entry_of(pool, lane, turn, request_of(turn, lane.settings, 0)))

    def _measure_block(self, pairs: Sequence[str], lanes: Sequence[Lane], confirmation: bool = False) -> None:
        """Measure one round of every pair in every lane."""
        number, self._numbered = self._numbered, self._numbered + 1
        draw = random.Random(f"{lanes[0].settings.schedule_seed}/{number}")
        began = self._clock()
        self._tell("starting servers", "")
        starting = draw.sample(list(lanes), len(lanes))
        with Pool({lane.name: lane.open_channel for lane in starting}).open() as pool:
            self._start_seconds.append(self._clock() - began)
            for pair in draw.sample(list(pairs), len(pairs)):
                self._tell("confirming" if confirmation else "timing", pair)
                self._measure_pair(pair, lanes, pool, number, draw, confirmation)

    def _measure_pair(
        self, pair: str, lanes: Sequence[Lane], pool: Pool, number: int, draw: random.Random, again: bool
    ) -> None:
        """Measure one round in every lane, on a CPU build by build in turns; store them all, or the first failure."""
        on_cpu = lanes[0].cases[pair].case.device == "cpu"
        builds = lanes[0].settings.builds if on_cpu else 1
        parts: dict[str, list[Round]] = {lane.name: [] for lane in lanes}
        for _ in range(builds):
            for lane in draw.sample(list(lanes), len(lanes)):
                turn = Turn(ROUND, lane.cases[pair], number, lane.control, fresh=not parts[lane.name])
                request = request_of(
                    turn,
                    replace(lane.settings, builds=1, min_run_seconds=lane.settings.min_run_seconds / builds),
                    number * len(self._lanes) + self._lanes.index(lane),
                    placement_seed=draw.getrandbits(48),
                    max_samples=MAX_SAMPLES_PER_ROUND // builds,  # the round's, divided by its builds
                )
                entry = _entry_of(pool, lane, turn, request)
                if not on_cpu and len(lanes) > 1:  # free the device for the next lane
                    pool.serve(ask(REST, Nothing()), lane.name)
                if not isinstance(entry, Round):
                    self._store(lane, pair, entry)
                    return
                parts[lane.name].append(entry)
        for lane in lanes:
            self._store(lane, pair, replace(joined(parts[lane.name]), confirmation=again))
        self._timed.add(pair)

    def _store(self, lane: Lane, pair: str, entry: Entry) -> None:
        """Store `entry`; a pair that failed, or that the worker cannot run, is not measured again.

        The control's failure is reported but not stored, because the control repeats the baseline, whose own rounds
        stay.
        """
        if not (lane.control and isinstance(entry, Failure)):
            entry = kept(lane.write, entry)
        if isinstance(entry, Failure | Skip):
            self._open = [open_pair for open_pair in self._open if open_pair != pair]
            self._failed.setdefault(pair, set()).add(lane.name)
            self._tell(lane.name, pair, entry if isinstance(entry, Failure) else None)

    def _time_for_another(self) -> bool:
        """Return whether time is left for another block and, after it, for confirming a change of one pair."""
        if not self._block_seconds:
            return self._left() > 0
        block, start = statistics.median(self._block_seconds), statistics.median(self._start_seconds)
        return self._left() > block + FEWEST_CONFIRMING * (start + (block - start) / len(self._open))

    def _left(self) -> float:
        return math.inf if self._max_seconds is None else self._max_seconds - (self._clock() - self._began)

    def _tell(self, doing: str, pair: str, failure: Failure | None = None) -> None:
        undecided = f"{counted(len(self._open), 'case')} undecided, {format_duration(self._clock() - self._began)}"
        doing = f"{undecided} · {doing} {pair}".rstrip()
        self._watch(f"{self._done} of {self._blocks} blocks at most: {doing}", failure)


def _entry_of(pool: Pool, lane: Lane, turn: Turn, request: Request) -> Entry:
    """Return the entry of the lane's server for a case's turn."""
    entry: Entry = turn.task.outcome(pool.serve(request, lane.name), turn.planned.case)
    return entry


def joined(parts: Sequence[Round]) -> Round:
    """Return one round of several builds, each measured as a round by one process on a CPU."""
    if len(parts) == 1:
        return parts[0]
    skipped = [part.skipped_steps for part in parts if part.skipped_steps is not None]
    cpu = [build for part in parts for build in part.cpu_samples or []]
    total = sum(part.seconds for part in parts)

    def share(name: str) -> float | None:
        known = [(getattr(part.fitness, name), part.seconds) for part in parts]
        return None if any(value is None for value, _ in known) else sum(value * s for value, s in known) / total

    shares = {name: share(name) for name in ("steal_share", "other_share", "waited_share")}
    return replace(
        parts[-1],
        samples=[build for part in parts for build in part.samples],
        steps_per_sample=[steps for part in parts for steps in part.steps_per_sample],
        warmup_steps=[steps for part in parts for steps in part.warmup_steps],
        compile_seconds=parts[0].compile_seconds,
        skipped_steps=sum(skipped) if skipped else None,
        cpu_samples=cpu if all(part.cpu_samples is not None for part in parts) else None,
        fitness=replace(parts[-1].fitness, **shares),
        seconds=total,
    )
