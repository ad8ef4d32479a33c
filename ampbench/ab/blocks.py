"""Interleaved measuring: blocks of one round per case and lane, every lane from its own newly started server.

A lane is an arm, or the control: the baseline once more. The servers of a block start together and live side by side.
Case by case, the lanes take turns build by build, in random order: what disturbs the machine for longer than a build
disturbs all lanes alike, and without a change the lanes of a block are exchangeable, which is what makes the test on
their differences exact (docs/statistics.md).

On an accelerator each lane has a context of its own, beside which a large case may find no room. Such a case is
measured one lane at a time: a lane has all its builds, then gives way to the next, the lanes in random order; that is
as exact, and what disturbs the device for seconds disturbs one lane alone.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from msgspec.structs import replace

from ampbench.core.units import counted, format_bytes
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import Turn, kept, passes, request_of, with_processes
from ampbench.drive.servers import OpenChannel, Pool
from ampbench.judge.deciding import CONFIRMATION_BLOCKS, LOOKS
from ampbench.records.measured import (
    BUSY,
    OUT_OF_MEMORY,
    TOO_LITTLE_FREE,
    Failure,
    Fitness,
    MemoryPass,
    Round,
    Skip,
    Telemetry,
)
from ampbench.records.run import Entry, Settings
from ampbench.records.wire import MAX_SAMPLES_PER_ROUND, REST, ROUND, Nothing, Request, ask

UNAVAILABLE = "busy or unavailable"
"""In what CUDA's driver says of a device that is set to serve one process at a time, and serves another."""
FEWEST_CONFIRMING = 5
"""With fewer blocks no sign test reaches the 5% of a confirmation: 2**-5 = 3%."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one column of the blocks comes from: its planned cases by pair, how to open its servers, who stores it.

    `control` marks the baseline's second measurement.
    """

    name: str
    cases: Mapping[str, PlannedCase]
    settings: Settings
    open_channel: OpenChannel
    write: Callable[[Entry], None]
    control: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a session of blocks stands: what is being done, for which pair, for how many seconds already.

    `blocks` of `planned` blocks are done; `left` pairs are still open; `failure` has just happened.
    """

    doing: str
    pair: str
    blocks: int
    planned: int
    left: int
    seconds: float
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at the blocks so far says: the pairs that are decided and those whose change is to be confirmed."""

    decided: Collection[str] = ()
    fired: Collection[str] = ()


class BlockSession:
    """Measures pairs of cases in blocks until all are decided, or blocks or time are used up.

    The first of `lanes` is the baseline, the last the candidate. `look` is called after each of
    `LOOKS`, after the last block, and when time runs out. A pair that fails in a lane is not measured again. On an
    accelerator a pair is measured one lane at a time where its lanes have no room beside each other: where less is free
    beside their contexts than an arm's step took at its peak, as the memory passes told, or where one ran out of memory
    (or found the device busy) and did not when all lanes were tried alone. `tell` gets a line on the first such pair.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        look: Callable[[], Look],
        *,
        blocks: int = LOOKS[-1],
        max_seconds: float | None = None,
        watch: Callable[[Stage], None],
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._lanes, self._look, self._blocks, self._max_seconds = lanes, look, blocks, max_seconds
        self._watch, self._tell_user, self._clock, self._began = watch, tell, clock, clock()
        self._open = list(lanes[0].cases)
        self._failed: dict[str, set[str]] = {}  # the lanes in which a pair failed
        self._timed: set[str] = set()
        self._peaks: dict[str, int] = {}  # bytes of an accelerator that a step of a pair takes
        self._alone: dict[str, str] = {}  # the pairs that are measured one lane at a time, and why
        self._holding: set[str] = set()  # the lanes whose workers may hold something of the accelerator
        self._free: int | None = None  # of the accelerator's bytes, beside the idle contexts of all lanes
        self._done = self._numbered = 0
        self._block_seconds: list[float] = []
        self._start_seconds: list[float] = []

    def measure_passes(self) -> None:
        """Measure memory and divergence of every case of the two arms, once."""
        for lane in self._lanes:
            if not lane.control:
                self._measure_passes(lane)

    def measure_rounds(self) -> str:
        """Measure blocks and return how that ended: "complete" or "out of time"."""
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
            self._tell_user(f"no time of {of_all}: --budget was over before a first block; give more, or fewer cases")
        self._measure_survivors()
        return ended

    def _looked(self) -> str:
        """Look; confirm what fired; close what is decided. Return whether time has run out meanwhile."""
        found = self._look()
        fired = [pair for pair in self._open if pair in found.fired]
        self._open = [pair for pair in self._open if pair not in found.decided]
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
        """Measure a round of what failed in one arm before the other had one, so that the other is seen to run."""
        for arm, other in ((self._lanes[0], self._lanes[-1]), (self._lanes[-1], self._lanes[0])):
            pairs = [
                pair for pair, names in self._failed.items()
                if other.name in names and arm.name not in names and pair not in self._timed
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
                entry = _had(pool, lane, turn, request_of(turn, lane.settings, 0))
                if isinstance(entry, MemoryPass) and turn.planned.case.device != "cpu":
                    took = max(entry.peak_bytes, entry.reserved_bytes or 0)
                    self._peaks[pair] = max(took, self._peaks.get(pair, 0))
                self._store(lane, pair, entry)

    def _measure_block(self, pairs: Sequence[str], lanes: Sequence[Lane], confirmation: bool = False) -> None:
        """Measure one round of every pair in every lane."""
        number, self._numbered = self._numbered, self._numbered + 1
        draw = random.Random(f"{lanes[0].settings.schedule_seed}/{number}")
        began = self._clock()
        self._holding.clear()
        self._tell("starting servers", "")
        starting = draw.sample(list(lanes), len(lanes))
        with Pool({lane.name: lane.open_channel for lane in starting}).open() as pool:
            self._start_seconds.append(self._clock() - began)
            # first the pairs whose lanes share a device, then those that have it alone
            for pair in sorted(draw.sample(list(pairs), len(pairs)), key=self._alone.__contains__):
                self._tell("confirming" if confirmation else "timing", pair)
                self._measure_pair(pair, lanes, pool, number, draw, confirmation)

    def _measure_pair(
        self, pair: str, lanes: Sequence[Lane], pool: Pool, number: int, draw: random.Random, again: bool
    ) -> None:
        """Measure one round in every lane, in turns; store them all, or the one failure."""
        several = len(lanes) > 1 and lanes[0].cases[pair].case.device != "cpu"
        why = self._alone.get(pair, "")
        if several and not why and self._free is not None and self._peaks.get(pair, 0) > self._free:
            why = self._go_alone(pair, TOO_LITTLE_FREE)
        found = self._rounds(pair, lanes, pool, number, draw, alone=bool(why))
        if several and not why and (why := no_room(found.entry)):
            crowded, found = found, self._rounds(pair, lanes, pool, number, draw, alone=True)
            if not found.entry:  # else it has no room of its own
                self._go_alone(pair, why, crowded.lane)
        if found.entry:
            self._store(found.lane, pair, found.entry)
            return
        for lane in lanes:
            whole = joined(found.parts[lane.name])
            self._store(lane, pair, replace(whole, confirmation=again, alone=why if several else ""))
        self._timed.add(pair)

    def _rounds(
        self, pair: str, lanes: Sequence[Lane], pool: Pool, number: int, draw: random.Random, alone: bool
    ) -> "_Found":
        """Measure a round in every lane: build by build in turn or, each `alone` on the device, one after the other."""
        found = _Found(lanes[0], {lane.name: [] for lane in lanes})
        for lane in _turns(lanes, draw, alone):
            planned, parts, builds = lane.cases[pair], found.parts[lane.name], lane.settings.builds
            if alone:
                for other in self._holding - {lane.name}:
                    pool.serve(ask(REST, Nothing()), other)
                self._holding.clear()
            self._holding.add(lane.name)
            turn = Turn(ROUND, planned, number, lane.control, fresh=not parts and planned.case.device == "cpu")
            request = request_of(
                turn,
                replace(lane.settings, builds=1, min_run_seconds=lane.settings.min_run_seconds / builds),
                number * len(self._lanes) + self._lanes.index(lane),
                placement_seed=draw.getrandbits(48),
                max_samples=MAX_SAMPLES_PER_ROUND // builds,  # of the whole round, whose builds come one by one
            )
            entry = _had(pool, lane, turn, request)
            if not isinstance(entry, Round):
                found.lane, found.entry = lane, entry
                return found
            parts.append(entry)
        if not alone and len(lanes) == len(self._lanes):  # all contexts are there
            free = [found.parts[lane.name][-1].free_bytes for lane in lanes]
            self._free = min((each for each in free if each is not None), default=self._free)
        return found

    def _go_alone(self, pair: str, cause: str, lane: Lane | None = None) -> str:
        """Have a pair measured one lane at a time from now on; tell of the first, in which `lane` it showed."""
        if not self._alone:
            device = self._lanes[0].cases[pair].case.device
            because = f"the {lane.name} ran out of memory beside the others, and alone has room" if lane else ""
            if cause == BUSY:
                because = "the device serves one process at a time"
            elif cause == TOO_LITTLE_FREE:
                peak, free = format_bytes(self._peaks[pair]), format_bytes(self._free)
                because = f"its step takes {peak}, and beside the contexts of all {free} are free"
            self._tell_user(
                f"where lanes find no room on {device} beside each other, they are measured one at a time: "
                f"{pair}: {because}"
            )
        self._alone[pair] = cause
        return cause

    def _store(self, lane: Lane, pair: str, entry: Entry) -> None:
        """Store `entry`; a pair that failed, or that the worker cannot run, is not measured again.

        The control's failure is told and not stored: it is the baseline once more, whose own rounds stay what they are.
        """
        if not (lane.control and isinstance(entry, Failure)):
            entry = kept(lane.write, entry)
        if isinstance(entry, Failure | Skip):
            self._open = [each for each in self._open if each != pair]
            self._failed.setdefault(pair, set()).add(lane.name)
            self._tell(lane.name, pair, entry if isinstance(entry, Failure) else None)

    def _time_for_another(self) -> bool:
        """Return whether there is time for another block and, after it, for confirming a change of one pair."""
        if not self._block_seconds:
            return self._left() > 0
        block, start = statistics.median(self._block_seconds), statistics.median(self._start_seconds)
        return self._left() > block + FEWEST_CONFIRMING * (start + (block - start) / len(self._open))

    def _left(self) -> float:
        return math.inf if self._max_seconds is None else self._max_seconds - (self._clock() - self._began)

    def _tell(self, doing: str, pair: str, failure: Failure | None = None) -> None:
        seconds = self._clock() - self._began
        self._watch(Stage(doing, pair, self._done, self._blocks, len(self._open), seconds, failure))


@dataclass(slots=True)
class _Found:
    """The builds of each lane, in rounds of one, and what the last `lane` gave in place of one."""

    lane: Lane
    parts: dict[str, list[Round]]
    entry: Entry | None = None


def _turns(lanes: Sequence[Lane], draw: random.Random, alone: bool) -> Iterator[Lane]:
    """Yield the lane of every build of a case: in turns, or all of a lane's one after the other; in random order."""
    builds = lanes[0].settings.builds
    if alone:
        for lane in draw.sample(list(lanes), len(lanes)):
            yield from repeat(lane, builds)
        return
    for _ in range(builds):
        yield from draw.sample(list(lanes), len(lanes))


def no_room(entry: Entry | None) -> str:
    """Return why an accelerator had no room for a worker, one of `ALONE`; "" where it had, or that is not why."""
    if not isinstance(entry, Failure):
        return ""
    if entry.cause == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    return BUSY if UNAVAILABLE in entry.message else ""


def _had(pool: Pool, lane: Lane, turn: Turn, request: Request) -> Entry:
    """Return what the lane's server makes of a case's turn."""
    found: Entry = turn.task.outcome(pool.serve(request, lane.name), turn.planned.case)
    return found


def joined(parts: Sequence[Round]) -> Round:
    """Return the rounds of one build each that one process gave as the one round that they are."""
    first, last = parts[0], parts[-1]
    skipped = [part.skipped_steps for part in parts if part.skipped_steps is not None]
    cpu = [build for part in parts for build in part.cpu_samples or []]
    windows = [build for part in parts for build in part.windows or []]
    steady = [part.steady for part in parts if part.steady is not None]
    return replace(
        last,
        samples=[build for part in parts for build in part.samples],
        steps_per_sample=[steps for part in parts for steps in part.steps_per_sample],
        warmup_steps=[steps for part in parts for steps in part.warmup_steps],
        compile_seconds=first.compile_seconds,
        skipped_steps=sum(skipped) if skipped else None,
        cpu_samples=cpu if all(part.cpu_samples is not None for part in parts) else None,
        fitness=_joined_fitness(parts),
        windows=windows if all(part.windows for part in parts) else None,
        warm_seconds=None if first.warm_seconds is None else sum(part.warm_seconds or 0.0 for part in parts),
        steady=all(steady) if steady else None,
        burst_seconds=min((one.burst_seconds for one in parts if one.burst_seconds is not None), default=None),
        telemetry=_joined_telemetry(parts),
        state_on_host=any(part.state_on_host for part in parts),
        seconds=sum(part.seconds for part in parts),
    )


def _joined_telemetry(parts: Sequence[Round]) -> Telemetry | None:
    """Return what an accelerator told in all parts: means weighted by time, extremes of all, clocks from end to end."""
    told = [part.telemetry for part in parts if part.telemetry is not None]
    if len(told) < len(parts):
        return None
    weights = [one.window_seconds or 0.0 for one in told]

    def mean(name: str) -> float | None:
        known = [(getattr(one, name), weight) for one, weight in zip(told, weights, strict=True) if weight]
        if not known or any(value is None for value, _ in known):
            return None
        return float(sum(value * weight for value, weight in known) / sum(weight for _, weight in known))

    def of(name: str, choose: Callable[[Iterable[float]], float]) -> float | None:
        known = [value for one in told if (value := getattr(one, name)) is not None]
        return choose(known) if known else None

    readings = sum(one.readings for one in told)
    words = dict.fromkeys(word for one in told for word in one.limited)
    return replace(
        told[-1],
        unavailable="; ".join(dict.fromkeys(one.unavailable for one in told if one.unavailable)),
        readings=readings,
        window_seconds=sum(weights),
        clock_hz=of("clock_hz", statistics.median),
        first_clock_hz=told[0].first_clock_hz,
        limited={word: sum(one.limited.get(word, 0.0) * one.readings for one in told) / readings for word in words}
        if readings
        else {},
        power_watts=mean("power_watts"),
        power_low_watts=of("power_low_watts", min),
        power_high_watts=of("power_high_watts", max),
        temperature_celsius=of("temperature_celsius", max),
        processes=list(dict.fromkeys(process for one in told for process in one.processes)),
        other_share=mean("other_share"),
    )


def _joined_fitness(parts: Sequence[Round]) -> Fitness:
    """Return the fitness over all parts: shares weighted by time, the rest as it was last."""
    total = sum(part.seconds for part in parts)

    def share(name: str) -> float | None:
        known = [(getattr(part.fitness, name), part.seconds) for part in parts]
        return None if any(value is None for value, _ in known) else sum(value * s for value, s in known) / total

    shares = {name: share(name) for name in ("steal_share", "other_share", "waited_share")}
    return replace(parts[-1].fitness, **shares)
