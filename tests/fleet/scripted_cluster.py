"""A cluster of machines that answer from a script, in this process: they die, appear and wait by number of turns."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ampbench.drive.fleet import FleetSession
from ampbench.errors import NothingToRunError
from ampbench.records.case import Environment
from ampbench.records.measured import Failure
from ampbench.records.run import SPREAD, Entry, Fleet, Selection, Settings
from ampbench.records.wire import Reply, Request, reply_with
from ampbench.store import StoredRun, list_runs, read_run
from tests.scripted_channel import CPU, NO_GPU, machine, measured

HERE = machine(CPU, NO_GPU)
SELECTION = Selection(workloads=["linear", "conv"], precisions=["fp32", "tf32", "bf16_pure"])


@dataclass(slots=True)
class Machine:
    """A machine: it appears and becomes free when `appears` and `free` of its cluster hold, and `dies` after turns.

    `problem` is the reason why it cannot be opened; the cases in `fails` fail there. Before each turn it calls `wait`.
    """

    name: str
    environment: Environment = HERE
    appears: Callable[["ScriptedCluster"], bool] = lambda _: True
    free: Callable[["ScriptedCluster"], bool] = lambda _: True
    dies: float = float("inf")
    wait: Callable[["ScriptedCluster"], bool] = lambda _: True
    problem: str = ""
    fails: Collection[str] = ()
    id: str = ""
    turns: int = 0

    @property
    def place(self) -> str:
        """Its place's id: its name, unless a machine of this name came back."""
        return self.id or self.name


@dataclass(slots=True)
class ScriptedCluster:
    """Machines that answer from the script, in place of a `RayCluster`."""

    machines: Sequence[Machine]
    opened: list[str] = field(default_factory=list)
    closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def turns(self, name: str) -> int:
        """Return the turns of the machines of this name."""
        return sum(machine.turns for machine in self.machines if machine.name == name)

    def places(self) -> dict[str, str]:
        return {one.place: one.name for one in self.machines if one.appears(self) and one.turns < one.dies}

    def open(self, place: str) -> int | None:
        machine = self._machine(place)
        self._wait(machine.free)
        if machine.problem:
            raise NothingToRunError(machine.problem)
        with self.changed:
            self.opened.append(place)
            self.changed.notify_all()
        return 1 << 30

    def channel(self, place: str, preload: list[str]) -> "ScriptedServer":
        return ScriptedServer(self, self._machine(place))

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def serve(self, machine: Machine, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(machine.environment)
        if request.case is None:
            return Reply()
        self._wait(machine.wait)
        with self.changed:
            if machine.turns >= machine.dies:
                raise NothingToRunError("its node died")
            machine.turns += 1
            self.changed.notify_all()
        if request.case.case_id in machine.fails:
            failure = Failure(case_id=request.case.case_id, stage=request.task, cause="exception", message="broken")
            return Reply(failure=failure)
        return measured(request)

    def _machine(self, place: str) -> Machine:
        return next(machine for machine in self.machines if machine.place == place)

    def _wait(self, ready: Callable[["ScriptedCluster"], bool]) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or ready(self), timeout=60)
            if self.closed:
                raise NothingToRunError("the cluster is closed")


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    cluster: ScriptedCluster
    machine: Machine

    def serve(self, request: Request) -> Reply:
        return self.cluster.serve(self.machine, request)

    def close(self) -> None:
        """End it, which leaves nothing behind."""


def fleet_session(
    cluster: ScriptedCluster,
    results: Path,
    on: str = SPREAD,
    watch: Callable[[str, Entry | None], None] = lambda _, __: None,
    earlier: Sequence[StoredRun] = (),
    clock: Callable[[], float] = lambda: 0.0,
    selection: Selection = SELECTION,
) -> FleetSession:
    fleet, settings = Fleet(id="abcdef", lane="", on=on), Settings(rounds=3)
    return FleetSession(
        cluster=cluster, selection=selection, settings=settings, fleet=fleet, results=results, watch=watch,
        tell=lambda _: None, earlier=earlier, clock=clock,
    )  # type: ignore[arg-type]  # fmt: skip


def runs_of(results: Path) -> dict[str, StoredRun]:
    runs = map(read_run, list_runs(results))
    return {run.header.fleet.lane: run for run in runs if run.header.fleet is not None}


def turns_of(runs: dict[str, StoredRun]) -> Counter[tuple[str, str, int]]:
    """Return how often each turn was done, the control's apart."""
    found: Counter[tuple[str, str, int]] = Counter()
    for run in runs.values():
        found.update(("round", each.case_id, each.round) for each in run.rounds if not each.control)
        found.update(("memory", case_id, 0) for case_id in run.memory)
        found.update(("divergence", case_id, 0) for case_id in run.divergence)
        found.update(("late", case_id, 0) for case_id in run.late)
    return found
