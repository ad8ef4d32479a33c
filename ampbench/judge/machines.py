"""Compare machines: the measurements of each, side by side, and the fastest.

Every number is of one machine; a ratio between machines is of two.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from ampbench.core import stats
from ampbench.core.budget import Budget
from ampbench.core.units import counted
from ampbench.judge import frame
from ampbench.judge.rounds import MeasuredRun
from ampbench.judge.verdict import takes_of, verdicts_of
from ampbench.records.changes import Interval
from ampbench.records.labels import few
from ampbench.show.document import Document
from ampbench.show.networks import Network, Place, network_names, side_by_side
from ampbench.show.rows import Group, Row, Take, grouped, number, with_verdicts
from ampbench.store import StoredRun
from ampbench.store.folder import lanes_together, trainings_beside

BEST, TIED, ALONE = "best", "tied", "alone"


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
    measured = [part for run in measured for part in _by_device(*run)]
    names = _names([stored for stored, *_ in measured])
    return [
        Machine(name=name, stored=stored, rows=rows, takes=takes)
        for name, (stored, rows, takes) in zip(names, measured, strict=True)
    ]


def _by_device(
    stored: StoredRun, rows: Sequence[Row], takes: Mapping[Group, Take]
) -> Iterator[tuple[StoredRun, Sequence[Row], Mapping[Group, Take]]]:
    """Yield the part of a run on each of its devices."""
    devices: dict[str, list[Row]] = {}
    for row in rows:
        devices.setdefault(str(row["device"]), []).append(row)
    for device, device_rows in devices.items():
        ids = {row["case_id"] for row in device_rows}
        narrowed = replace(
            stored.narrowed(ids), rounds=[measured for measured in stored.rounds if measured.case_id in ids]
        )
        yield narrowed, device_rows, {group: take for group, take in takes.items() if group.device == device}


def networks(measured: Sequence[Machine]) -> list[Network]:
    """Return each network on each machine, by network, the fastest machine first."""
    together: dict[Group, list[tuple[Machine, Network]]] = {}
    for machine in measured:
        for group, rows in grouped(machine.rows).items():
            if group in machine.takes:
                network = Network(name="", rows=rows, take=machine.takes[group], machine=machine.name)
                together.setdefault(replace(group, device=""), []).append((machine, network))
    first = [machine.stored.cases[network.rows[0]["case_id"]] for (machine, network), *_ in together.values()]
    names = network_names([structs.replace(case, device="cpu") for case in first])
    compared = []
    for name, tables in zip(names, together.values(), strict=True):
        standings = _standings(tables)
        tables.sort(key=lambda table: (table[1].taken is None, _median(table[1].taken) or 0.0))
        compared += [replace(network, name=name, standing=standings.get(network.machine, "")) for _, network in tables]
    return compared


def _median(row: Row | None) -> float | None:
    return None if row is None else number(row["seconds_median"])


def _times_as_fast(ours: tuple[Machine, Row], theirs: tuple[Machine, Row]) -> Interval:
    """Return the speed of a row relative to another, with its 95% interval by Welch's test on logarithms.

    Without two rounds on each side there is no interval.
    """
    from scipy.special import stdtrit  # not for `show` of a run

    seconds, base = _median(ours[1]), _median(theirs[1])
    if not seconds or not base:
        return Interval()
    timed = [MeasuredRun.of(machine.stored).timed.get(row["case_id"], []) for machine, row in (ours, theirs)]
    rounds = [np.log(np.array([[measured.seconds for measured in own]])) for own in timed]
    if ours[0] is theirs[0] or min(logs.shape[1] for logs in rounds) < 2:
        return Interval(value=base / seconds)
    difference, error, freedom = (float(value[0]) for value in stats.welch(*rounds))
    reach = float(stdtrit(freedom, 0.975)) * error
    return Interval(value=base / seconds, low=float(np.exp(difference - reach)), high=float(np.exp(difference + reach)))


def _standings(tables: Sequence[tuple[Machine, Network]]) -> dict[str, str]:
    """Return the standing of each machine's take of a network, by the machines' names.

    `BEST` is certainly faster than all others, `TIED` the fastest or maybe as fast, `ALONE` measured nowhere else.
    """
    members = [(machine, row) for machine, network in tables if (row := network.taken) and _median(row) is not None]
    if not members:
        return {}
    first, *others = sorted(members, key=lambda member: _median(member[1]) or 0.0)
    if not others:
        return {} if len(tables) > 1 else {first[0].name: ALONE}
    tied = [member for member in others if (low := _times_as_fast(first, member).low) is None or low <= 1]
    standings = {first[0].name: TIED if tied else BEST}
    return standings | {machine.name: TIED for machine, _ in tied}


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
