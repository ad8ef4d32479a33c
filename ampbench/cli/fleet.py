"""`ampbench run --ray`: the same selection on the machines of a Ray cluster."""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampbench.base.budget import Budget
from ampbench.base.units import counted, format_duration
from ampbench.cli.options import results_words, stored_already
from ampbench.cli.printing import OutputFormat, print_note
from ampbench.errors import CASE_FAILED, INTERRUPTED, NothingToRunError, StoreError, UnknownNameError, UsageError
from ampbench.records.measured import Failure
from ampbench.records.run import EACH, LANES, NODE, ON, Fleet, Selection, Settings
from ampbench.workloads.index import is_users

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampbench.fleet.session import Progress
    from ampbench.store import StoredRun

LIVE_SECONDS = 0.1
"""The line on a terminal is set anew this often at most: a thousand lanes say more."""
NO_RAY = 'ampbench run --ray needs Ray: pip install "ampbench[ray]"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray cluster as it is typed, and which of its machines measure what."""

    ray: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Measure on the machines of this Ray cluster: auto, or host:port.")
    ] = ""
    on: Annotated[
        str,
        typer.Option(
            metavar="WHICH",
            help="each: every machine measures every case; spread: those of a kind share. Default: each.",
        ),
    ] = ""
    lanes: Annotated[
        str, typer.Option(metavar="WHAT", help="A lane is a node, or each device of it. Default: node.")
    ] = ""
    nodes: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Only nodes with this label. Repeatable.")
    ] = None

    def fleet(self) -> Fleet | None:
        """Return the fleet that is asked for, None for none; raises `UsageError` for what cannot be meant."""
        if not self.ray:
            given = {"--on": self.on, "--lanes": self.lanes, "--nodes": self.nodes}
            if typed := [option for option, value in given.items() if value]:
                raise UsageError(f"{typed[0]} is of a fleet: name its cluster, as in --ray auto")
            return None
        for option, value, known in (("--on", self.on, ON), ("--lanes", self.lanes, LANES)):
            if value and value not in known:
                raise UnknownNameError(option, value, known)
        labels = dict(_label(text) for text in self.nodes or [])
        if find_spec("ray") is None:
            raise UsageError(NO_RAY)
        return Fleet(id=secrets.token_hex(3), lane="", on=self.on or EACH, lanes=self.lanes or NODE, labels=labels)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name.strip() and value.strip()):
        raise UsageError(f"--nodes {text!r}: expected LABEL=VALUE, as in --nodes ray.io/accelerator-type=H100")
    return name.strip(), value.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Where a fleet measures, and how its end is shown."""

    address: str
    results: Path
    format: OutputFormat
    budget: Budget
    report: bool


def run_fleet(asked: Asked, fleet: Fleet, selection: Selection, settings: Settings, label: str) -> int:
    """Measure a selection on the nodes of a cluster; return the exit code."""
    from ampbench import store

    store.require_writable(asked.results)
    return _measured(asked, fleet, selection, settings, label, [])


def resume_fleet(asked: Asked, name: str, settings: Settings) -> int:
    """Go on with the fleet called `name`, an id of it, on a cluster; return the exit code."""
    from ampbench import store

    runs = [store.read_run(path) for path in store.find_fleet(name, asked.results)]
    header = runs[0].header
    assert header.fleet is not None
    own = replace(header.settings, memory_limit_bytes=settings.memory_limit_bytes, max_seconds=settings.max_seconds)
    return _measured(asked, replace(header.fleet, lane=""), header.selection, own, header.label, runs)


def _measured(
    asked: Asked, fleet: Fleet, selection: Selection, settings: Settings, label: str, earlier: "Sequence[StoredRun]"
) -> int:
    """Measure what no lane has yet, say what became of each lane, and show all of them side by side."""
    from ampbench import store
    from ampbench.drive.planning import check_selection
    from ampbench.drive.session import current_commit
    from ampbench.fleet.node import Order
    from ampbench.fleet.on_ray import RayCluster
    from ampbench.fleet.session import FleetSession, open_files
    from ampbench.judge.merging import lanes_together
    from ampbench.records.wire import ready_line

    files = any(map(is_users, check_selection(selection)))
    if files:
        selection = replace(selection, workloads=[_below_here(name) for name in selection.workloads])
    order = Order(
        ready=ready_line().decode(), selection=selection, settings=settings, label=label,
        command=["ampbench", *sys.argv[1:]], commit=current_commit(),
    )  # fmt: skip
    open_files()
    with redirect_stdout(sys.stderr), _progress() as watch:  # Ray says there what it notices
        cluster = RayCluster(asked.address, fleet.labels, fleet.lanes, files=files)
        session = FleetSession(cluster, order, fleet, asked.results, watch, earlier)
        problem = None
        try:
            ended = session.run()
        except (NothingToRunError, StoreError) as error:
            ended, problem = "interrupted", error
    for lane in session.lanes:
        what = f"lost: {lane.why}; " if lane.why else ""
        print_note(f"{lane.place.name}: {what}{'nothing measured' if lane.writer is None else lane.writer.path}")
    own = (path for path in store.list_runs(asked.results) if store.run_id(path).endswith(f"-{fleet.id}"))
    runs = [store.read_run(path) for path in own]
    if any(run.rounds for run in runs):
        _show(fleet, asked, runs)
    if ended != "complete" or session.left:
        again = f"ampbench run --resume {fleet.id} --ray {asked.address}{results_words(asked.results)}"
        print_note(f"{ended}: {counted(session.left, 'case')} left; {again} goes on")
    if problem is not None:
        raise problem
    if ended == "interrupted":
        return INTERRUPTED
    if any(run.failures for run in lanes_together(runs)) or (ended == "complete" and session.left):
        return CASE_FAILED
    measured = any(run.rounds or run.memory or run.divergence for run in runs)
    return 0 if measured or ended == "complete" else NothingToRunError.exit_code


def _show(fleet: Fleet, asked: Asked, runs: "Sequence[StoredRun]") -> None:
    """Print what the machines of a fleet measured, side by side, and write its page where that is asked for."""
    from ampbench.cli.printing import print_document
    from ampbench.judge.beside import document

    again = f"ampbench show {fleet.id}{results_words(asked.results)}"
    with stored_already(again):
        print_document(document([run for run in runs if run.cases], asked.budget), asked.format)
        print_note(f"fleet {fleet.id}: {again} --all shows every precision")
        if asked.report:
            from ampbench.cli.report import write_page

            print_note(f"report: {write_page([run.path for run in runs], asked.results, asked.budget)}")


def _below_here(name: str) -> str:
    """Return a workload's name as the nodes read it, who are given the current folder; `UsageError` for one outside."""
    file, colon, function = name.rpartition(":")
    if not file.endswith(".py"):
        return name
    try:
        inside = Path(file).expanduser().resolve().relative_to(Path.cwd().resolve())
    except ValueError:
        raise UsageError(
            f"{name} is outside the current folder, which travels to the nodes: change to its folder"
        ) from None
    return f"{inside}{colon}{function}"


@contextmanager
def _progress() -> "Iterator[Callable[[Progress], None]]":
    """Yield a watcher that says on stderr what the lanes do and how long that will take."""
    from rich.markup import escape

    from ampbench.cli.progress import LINE_SECONDS
    from ampbench.fleet.session import IDLE, LOST
    from ampbench.present.terminal import make_console

    last = [0.0]
    console = make_console(stderr=True)
    live = sys.stderr.isatty()
    status = console.status("") if live else None
    told: set[tuple[str, str]] = set()

    def watch(step: "Progress") -> None:
        if isinstance(step.entry, Failure):
            print_note(f"failed: {step.entry.case_id}: {step.entry.said}")
        lane = step.lane
        if lane.state in (LOST, IDLE) and (lane.place.id, lane.state) not in told:
            told.add((lane.place.id, lane.state))
            print_note(f"{lane.place.name}: {'lost: ' + lane.why if lane.why else 'opened'}")
        if step.seconds - last[0] < (LIVE_SECONDS if live else LINE_SECONDS):
            return
        last[0] = step.seconds
        if status is not None:
            status.update(escape(said_of(step)))
        else:
            print_note(said_of(step))

    if status is None:
        yield watch
    else:
        with status:
            yield watch


def said_of(step: "Progress") -> str:
    """Return where a fleet stands, in a line: "3 lanes, 1 opening; 120 of 400 turns, about 3 min left"."""
    from ampbench.fleet.session import LOST, OPENING

    states = step.states
    parts = [counted(sum(states.values()) - states[LOST], "lane")]
    parts += [f"{states[state]} {state}" for state in (OPENING, LOST) if states[state]]
    left = f", about {format_duration(step.left)} left" if step.left is not None else ""
    return f"{', '.join(parts)}; {step.done:,} of {step.total:,} turns{left}"
