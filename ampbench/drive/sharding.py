"""A plan shared out to several processes or machines without an engine: `--shard I/N`.

Each of them makes the whole plan and measures its part; all agree on the parts without a word, because what they are
made of is the same for all: the plan, and what was measured before.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ampbench.core.units import counted
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import make_schedule, seconds_seen, table_of, turn_seconds
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.run import Settings, Shard
from ampbench.store import StoredRun

Part = tuple[int, int]
"""The number of a shard, from 1, and how many there are."""
MOST = 100_000
T = TypeVar("T", bound=Hashable)


def parse_shard(text: str) -> Part:
    """Return what `2/5` stands for; `UsageError` for anything else, and for a shard beyond the last."""
    number, slash, count = text.partition("/")
    if not (slash and number.strip().isdecimal() and count.strip().isdecimal()):
        raise UsageError(f"--shard {text!r}: expected I/N, as in --shard 2/5, the second of five")
    part = int(number), int(count)
    if not 1 <= part[0] <= part[1] <= MOST:
        raise UsageError(f"--shard {text}: the first of N shards is 1, the last is N, and N is {MOST:,} at most")
    return part


def take_shard(
    plan: Sequence[PlannedCase], settings: Settings, part: Part, stored: Iterable[StoredRun]
) -> tuple[list[PlannedCase], Shard]:
    """Return the cases of `plan` that are measured by one of several, and which these are.

    Tables stay whole, for speeds are compared within them. Each shard is meant to take as long as the others, by what
    rounds took in the `stored` runs: those of whole plans, so that what other shards measure meanwhile changes nothing.
    Tables of which nothing can run are in the first. Raises `NothingToRunError` for a shard that nothing is left for.
    """
    number, count = part
    seen = seconds_seen(run for run in stored if run.header.shard is None)
    seconds = {table_of(planned.case): 0.0 for planned in plan if not planned.skip}
    for turns in make_schedule(list(plan), settings):
        for turn in turns:
            seconds[table_of(turn.planned.case)] += turn_seconds(turn, settings, seen)
    parts = shared_out(seconds, count)
    parts[0] |= {table_of(planned.case) for planned in plan} - set(seconds)
    places = [place for place, planned in enumerate(plan) if table_of(planned.case) in parts[number - 1]]
    if not places:
        raise NothingToRunError(
            f"shard {number} of {count} has nothing to do: the selection has {counted(len(seconds), 'table')}, and a "
            "table is measured by one shard"
        )
    shard = Shard(number=number, count=count, plan=digest_of(plan), cases=len(plan), places=places)
    return [plan[place] for place in places], shard


def digest_of(plan: Iterable[PlannedCase]) -> str:
    """Return what tells plans apart: the digest of the ids of their cases, in order, and of what is skipped."""
    told = "\n".join(f"{planned.case.case_id} {planned.skip}" for planned in plan)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def shared_out(seconds: Mapping[T, float], count: int) -> list[set[T]]:
    """Return `count` parts of what takes so many `seconds` each, of about the same length together.

    The longest comes first, and each goes to the part that is the shortest so far: the longest part is at most 4/3 of
    what it would be at best (Graham 1969, Bounds on multiprocessing timing anomalies).
    """
    parts: list[set[T]] = [set() for _ in range(count)]
    lengths = [0.0] * count
    for one in sorted(seconds, key=lambda one: -seconds[one]):  # stable: as they are planned
        shortest = lengths.index(min(lengths))
        parts[shortest].add(one)
        lengths[shortest] += seconds[one]
    return parts
