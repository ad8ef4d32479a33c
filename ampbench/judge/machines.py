"""Machines side by side: the measurements of each, the fastest first. Every number is of one machine."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from msgspec import structs

from ampbench.core import by_key
from ampbench.core.budget import Budget
from ampbench.core.units import counted
from ampbench.judge import frame
from ampbench.judge.verdict import takes_of, verdicts_of
from ampbench.records.case import Case
from ampbench.records.labels import few
from ampbench.show.document import Document
from ampbench.show.networks import Network, Place, network_names, side_by_side
from ampbench.show.rows import Group, Row, Take, grouped, number, with_verdicts
from ampbench.store import StoredRun
from ampbench.store.folder import lanes_together, trainings_beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The measurements of one machine, or of several equal ones; `name` is unique."""

    name: str
    stored: StoredRun
    rows: Sequence[Row]
    takes: Mapping[Group, Take]

    @property
    def place(self) -> Place:
        """The description to show."""
        environment = self.stored.header.environment
        types = dict.fromkeys(case.device for case in self.stored.cases.values())
        described = [environment.device(type) for type in types]
        devices = [device.name for device in described if device is not None and device.name]
        return Place(
            name=self.name,
            device=few(devices or types or [environment.cpu]),
            threads=environment.threads,
            torch=environment.torch_version,
            measured=sum(row["outcome"] == "ok" for row in self.rows),
            failed=sum(row["outcome"] == "failed" for row in self.rows),
            run=self.stored.header.run,
        )


def machines(runs: Sequence[StoredRun], budget: Budget) -> list[Machine]:
    """Return the machines of runs; lanes of a kind that shared their cases are one machine.

    Each device of a machine counts as a machine.
    """
    measured = []
    for stored in lanes_together(runs):
        studies = trainings_beside(stored)
        rows = with_verdicts(frame.run_rows(stored), verdicts_of(stored, budget, studies))
        measured.append((stored, rows, takes_of(stored, budget, studies)))
    return told_apart(measured)


def document(runs: Sequence[StoredRun], budget: Budget, *, everything: bool = False) -> Document:
    """Return a document of runs on several machines, side by side: the take of each network, or `everything`."""
    measured = machines(runs, budget)
    rows = [row for machine in measured for row in machine.rows]
    compared, places = networks(measured), [machine.place for machine in measured]
    return side_by_side(places, compared, rows, everything=everything)


def told_apart(measured: Sequence[tuple[StoredRun, Sequence[Row], Mapping[Group, Take]]]) -> list[Machine]:
    """Return a machine with a unique name for each device of each run, given its rows and takes."""
    parts = [
        (stored.narrowed({row["case_id"] for row in own}), own, {of: takes[of] for of in takes if of.device == device})
        for stored, rows, takes in measured
        for device, own in by_key(rows, itemgetter("device")).items()
    ]
    return [
        Machine(name=name, stored=stored, rows=rows, takes=takes)
        for name, (stored, rows, takes) in zip(_names([stored for stored, *_ in parts]), parts, strict=True)
    ]


def networks(measured: Sequence[Machine]) -> list[Network]:
    """Return each network on each machine, by network, the fastest machine first."""
    together: dict[Group, list[Network]] = {}
    first: list[Case] = []
    for machine in measured:
        for group, rows in grouped(machine.rows).items():
            if group in machine.takes:
                network = Network(name="", rows=rows, take=machine.takes[group], machine=machine.name)
                alike = together.setdefault(replace(group, device=""), [])
                first += [] if alike else [structs.replace(machine.stored.cases[rows[0]["case_id"]], device="cpu")]
                alike.append(network)
    compared = []
    for name, tables in zip(network_names(first), together.values(), strict=True):
        tables.sort(key=lambda network: number(network.taken["seconds_median"]) or 0.0 if network.taken else math.inf)
        compared += [replace(network, name=name) for network in tables]
    return compared


def _names(runs: Sequence[StoredRun]) -> list[str]:
    """Return unique names of machines: their lane or host, with device, torch, threads or run if needed."""
    headers = [run.header for run in runs]
    names = [header.fleet.lane if header.fleet is not None else header.environment.host for header in headers]
    for traits in (
        [next(iter(run.cases.values())).device if run.cases else "" for run in runs],
        [f"torch {header.environment.torch_version}" for header in headers],
        [counted(header.environment.threads or 0, "thread") for header in headers],
        [header.run.rpartition("-")[2] for header in headers],
    ):
        counts = Counter(names)
        longer = [f"{name} · {trait}" if counts[name] > 1 else name for name, trait in zip(names, traits, strict=True)]
        names = longer if len({*longer}) > len(counts) else names
    return names
