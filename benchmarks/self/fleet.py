"""A fleet of many lanes: the real session, its dealing and its files, and lanes that answer from a script.

The session reads the simulated clock of the lanes, so that hours of measuring take minutes: only the driver takes real
time. `python -m benchmarks.self.fleet` prints the table of docs/fleet.md.
"""

import heapq
import itertools
import math
import random
import resource
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from ampbench.core.units import format_bytes, format_duration
from ampbench.drive.fleet import FleetSession
from ampbench.drive.fleet_node import Done, Order, Work
from ampbench.drive.planning import PlannedCase
from ampbench.drive.rounds import SERVER_SECONDS, Turn, make_schedule
from ampbench.records.case import Environment, WorkloadSource
from ampbench.records.measured import Failure, Skip
from ampbench.records.run import SCHEMA, SPREAD, Entry, Fleet, Selection, Settings
from ampbench.records.wire import MEMORY, ROUND
from ampbench.store import lines
from benchmarks.self.load import make_case, make_divergence, make_header, make_memory, make_round

OPENING_SECONDS = 8.0
"""The seconds from a free lane to its first turn: an actor, a session, a server."""
Answer = tuple[str, bytes]
"""A line, and the place of its machine before it."""
SOURCE = WorkloadSource(name="linear_chain", family="linear", module="m", function="f", builtin=True)


@dataclass(slots=True)
class Machine:
    """A machine of the script: the seconds of a turn, and when it appears, becomes free and dies.

    `problem` is the reason why it cannot be opened; the cases in `fails` fail there.
    """

    name: str
    environment: Environment = field(default_factory=lambda: make_header().environment)
    seconds: float = 1.0
    appears: float = 0.0
    free: float = 0.0
    dies: float = math.inf
    problem: str = ""
    fails: Collection[str] = ()
    id: str = ""

    @property
    def place(self) -> str:
        """Its place's id: its name, unless a machine of this name came back."""
        return self.id or self.name


class ScriptedCluster:
    """A `Cluster` of machines that measure the cases of a plan in the time that the script gives them."""

    def __init__(self, machines: Sequence[Machine], plan: Sequence[PlannedCase], settings: Settings):
        self.machines = {machine.place: machine for machine in machines}
        self.plan, self.settings = list(plan), settings
        self.by_id = {planned.case.case_id: planned for planned in plan}
        skips = [Skip(case_id=planned.case.case_id, reason=planned.skip) for planned in plan if planned.skip]
        self._described = [lines.encode(entry) for entry in (*(planned.case for planned in plan), *skips)]
        self.now = 0.0
        self.asked: list[tuple[str, Work]] = []
        self.closed = False
        self._coming: list[tuple[float, int, Answer, Iterator[tuple[float, Answer]]]] = []
        self._count = itertools.count()

    def clock(self) -> float:
        """Return the simulated time."""
        return self.now

    def places(self) -> dict[str, str]:
        """Return the present machines."""
        present = [machine for machine in self.machines.values() if machine.appears <= self.now < machine.dies]
        return {machine.place: machine.name for machine in present}

    def open(self, place: str, order: bytes) -> None:
        """Let a machine send its header once it is free."""
        machine, asked = self.machines[place], msgspec.json.decode(order, type=Order)
        fields = {"environment": machine.environment, "selection": asked.selection, "settings": self.settings}
        header = replace(make_header(), schema=SCHEMA, **fields)
        plan = [] if machine.problem else [lines.encode(header), *self._described]
        answers = itertools.chain(plan, [Done(problem=machine.problem).line])
        begin = max(self.now, machine.free) + OPENING_SECONDS
        self._begin(machine, ((begin, line) for line in answers))
        if machine.dies < math.inf:
            died = machine.place, Done(problem="its node died").line
            heapq.heappush(self._coming, (machine.dies, next(self._count), died, iter(())))

    def ask(self, place: str, work: bytes) -> None:
        """Have a machine measure."""
        machine, asked = self.machines[place], msgspec.json.decode(work, type=Work)
        self.asked.append((place, asked))
        self._begin(machine, self._measured(machine, asked, self.now))

    def events(self, seconds: float) -> list[Answer]:
        """Advance to the next event, at most by `seconds`; return the events until then."""
        if not self._coming or self._coming[0][0] > self.now + seconds:
            self.now += seconds
            return []
        self.now = max(self.now, self._coming[0][0])
        events = []
        while self._coming and self._coming[0][0] <= self.now:
            _, _, event, further = heapq.heappop(self._coming)
            events.append(event)
            self._next(further)
        return events

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True

    def _measured(self, machine: Machine, work: Work, begun: float) -> Iterator[tuple[float, bytes]]:
        """Yield the times and lines of a machine's turns on this work."""
        failed: set[str] = set()
        at, wanted = begun, [self.by_id[case_id] for case_id in work.cases]
        rounds = itertools.chain.from_iterable(make_schedule(wanted, self.settings, frozenset(work.done)))
        for server, turns in enumerate(rounds, work.first_server):
            at += SERVER_SECONDS
            for turn in turns:
                case_id = turn.planned.case.case_id
                if case_id in failed:
                    continue
                at += machine.seconds
                if case_id in machine.fails:
                    failed.add(case_id)
                yield at, lines.encode(_entry(turn, server, machine.seconds, broken=case_id in machine.fails))
        yield at, Done().line

    def _begin(self, machine: Machine, answers: Iterator[tuple[float, bytes]]) -> None:
        self._next((at, (machine.place, line)) for at, line in answers if at < machine.dies)

    def _next(self, answers: Iterator[tuple[float, Answer]]) -> None:
        for at, event in answers:
            heapq.heappush(self._coming, (at, next(self._count), event, answers))
            return


def _entry(turn: Turn, server: int, seconds: float, *, broken: bool) -> Entry:
    case = turn.planned.case
    if broken:
        return Failure(case_id=case.case_id, stage=turn.task.name, cause="exception", message="broken")
    if turn.task == ROUND:
        return replace(make_round(case, turn.round, np.full(3, seconds / 100)), server=server, control=turn.control)
    return make_memory(case) if turn.task == MEMORY else make_divergence(case)


def make_plan(cases: int) -> list[PlannedCase]:
    """Return a plan of `cases` cases, in tables of four precisions."""
    return [PlannedCase(case=make_case(number), source=SOURCE) for number in range(cases)]


def fleet_session(
    cluster: ScriptedCluster,
    results: Path,
    on: str = SPREAD,
    watch: Callable[[str, Entry | None], None] = lambda _, __: None,
    earlier: Sequence[object] = (),
) -> FleetSession:
    """Return a session on a scripted cluster, on its clock."""
    order = Order(ready="", selection=Selection(), settings=cluster.settings)
    fleet = Fleet(id="abcdef", lane="", on=on)
    return FleetSession(cluster, order, fleet, results, watch, lambda _: None, earlier, clock=cluster.clock)  # type: ignore[arg-type]


def simulate(lanes: int, cases: int, rounds: int = 3) -> str:
    """Return the row of a fleet in which every twentieth lane dies and every fiftieth is four times as slow."""
    draw = random.Random(0)
    equal = cases * (2 + rounds) / lanes
    machines = [
        Machine(
            f"node{number:04}",
            seconds=4.0 if number % 50 == 7 else draw.uniform(0.9, 1.1),
            appears=draw.uniform(0, 60) if number % 2 else 0.0,
            dies=draw.uniform(0.1, 0.9) * equal if number % 20 == 3 else math.inf,
        )
        for number in range(lanes)
    ]
    cluster = ScriptedCluster(machines, make_plan(cases), Settings(rounds=rounds))
    with tempfile.TemporaryDirectory() as folder:
        session = fleet_session(cluster, Path(folder))
        session.run()
    assert not session.left
    cells = (
        f"{lanes:,}", f"{cases:,}", str(sum(machine.dies < math.inf for machine in machines)),
        format_duration(cluster.now), format_duration(equal),
        format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the driver's cost of fleets of growing size."""
    print("| lanes | cases | lanes that die | fleet's time | all work / lanes | memory |")
    print("|---" * 6 + "|")
    for lanes, cases in ((10, 1_000), (32, 1_000)):
        print(simulate(lanes, cases), flush=True)


if __name__ == "__main__":
    main()
