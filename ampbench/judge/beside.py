"""Machines side by side: what each network takes on each of them, what that costs, and where it is best.

Every number is of one machine; ratios between machines are of two, and say which. Machines of one kind that measured
the same are compared as two runs of one machine would be, so that one that is slower than the others is named.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from msgspec import structs
from scipy.special import stdtrit

from ampbench.core import stats
from ampbench.core.budget import Budget
from ampbench.core.precisions import BASELINE
from ampbench.core.units import counted, times
from ampbench.errors import NothingComparableError, UnknownNameError
from ampbench.judge import frame
from ampbench.judge.compare import compare
from ampbench.judge.ranking import missing_blocks, passed_brief, table_labels
from ampbench.judge.table import speed_interval
from ampbench.judge.verdict import own_rounds, takes_of, trainings_beside, verdicts_of
from ampbench.records.case import Case, kind_of
from ampbench.records.changes import ChangeStatus, Comparison
from ampbench.records.labels import few
from ampbench.records.verdict import VERDICT_COLUMNS
from ampbench.show.document import Block, Column, Document, Section, records, table
from ampbench.show.rows import (
    Group,
    Row,
    Take,
    grouped,
    judged_error,
    number,
    passed_over,
    precision_label,
    with_verdicts,
)
from ampbench.show.wording import verdict_words, why
from ampbench.store import StoredRun
from ampbench.store.merge import lanes_together

BEST, TIED, ALONE = "best", "tied", "alone"
Network = tuple[str, str, str]
"""What is compared between machines: a table's network, phase and path, whatever device it ran on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one machine, or several of a kind together, measured; `name` tells it from the others."""

    name: str
    stored: StoredRun
    rows: Sequence[Row]
    advice: Mapping[Group, Take]
    seconds: Mapping[str, Sequence[float]]

    @property
    def device(self) -> str:
        """What it measured on, in a word or two."""
        environment = self.stored.header.environment
        types = dict.fromkeys(case.device for case in self.stored.cases.values())
        described = [environment.device(one) for one in types]
        names = [one.name for one in described if one is not None and one.name]
        return few(names or types or [environment.cpu])


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A row of a machine, with the machine's advice on its table, beside those of others on the same `network`.

    `label` is the network's short name; `over` is the speed over fp32 of the machine that is asked for, with its
    interval. `standing` says where it stands among what the machines are advised to take: `BEST` where it is certainly
    faster than on every other, `TIED` where it is the fastest, or may be as fast, `ALONE` where no other measured any.
    """

    machine: Machine
    network: Network
    label: str
    row: Row
    advice: Take | None
    passed: Sequence[Row] = ()
    standing: str = ""
    over: float | None = None
    over_interval: tuple[float, float] | None = None

    @property
    def taken(self) -> bool:
        """Whether it is what the machine is advised to take."""
        return bool(self.row["taken"])


def machines(runs: Sequence[StoredRun], budget: Budget) -> list[Machine]:
    """Return the machines that runs were measured on; lanes of a kind that shared their cases are one.

    Each device of a machine is one of its own.
    """
    measured = []
    for stored in lanes_together(runs):
        studies = trainings_beside(stored)
        rows = with_verdicts(frame.run_rows(stored), verdicts_of(stored, budget, studies))
        measured.append((stored, rows, takes_of(stored, budget, studies)))
    return told_apart(measured)


def told_apart(measured: Sequence[tuple[StoredRun, Sequence[Row], Mapping[Group, Take]]]) -> list[Machine]:
    """Return a machine for each device of each run, whose rows are given and the advice on them, named apart."""
    measured = [one for each in measured for one in _by_device(*each)]
    names = _names([stored for stored, *_ in measured])
    return [
        Machine(
            name=name,
            stored=stored,
            rows=rows,
            advice=advice,
            seconds={
                case_id: [stats.round_value(each.samples, each.cpu_samples, each.windows) for each in rounds]
                for case_id, rounds in own_rounds(stored).items()
            },
        )
        for name, (stored, rows, advice) in zip(names, measured, strict=True)
    ]


def _by_device(
    stored: StoredRun, rows: Sequence[Row], advice: Mapping[Group, Take]
) -> Iterator[tuple[StoredRun, Sequence[Row], Mapping[Group, Take]]]:
    """Yield what a run measured on each of its devices."""
    devices: dict[str, list[Row]] = {}
    for row in rows:
        devices.setdefault(str(row["device"]), []).append(row)
    for device, own in devices.items():
        ids = {row["case_id"] for row in own}
        narrowed = replace(stored.narrowed(ids), rounds=[each for each in stored.rounds if each.case_id in ids])
        yield narrowed, own, {group: one for group, one in advice.items() if group.device == device}


def placed(found: Sequence[Machine], over: str = "") -> list[Placed]:
    """Return all that was measured, by network, those of one network together and the fastest advised first.

    `over` names the machine whose fp32 others are held against; "": the first. Raises `UnknownNameError` for a name
    that no machine has.
    """
    reference = _named(found, over)
    rows: list[Placed] = []
    for machine in found:
        for group, members in grouped(machine.rows).items():
            network = _network(group, members[0])
            advice = machine.advice.get(group)
            label = table_labels([members[0]], [machine.stored.cases])[0]
            rows += [
                Placed(
                    machine=machine,
                    network=network,
                    label=label,
                    row=row,
                    advice=advice,
                    passed=passed_over(members) if row["taken"] else (),
                )
                for row in members
                if row["outcome"] == "ok"
            ]
    labels = _labels(rows)
    bases = {one.network: one for one in rows if one.machine is reference and one.row["precision"] == BASELINE}
    standings = _standings(rows)
    order = {network: place for place, network in enumerate(dict.fromkeys(one.network for one in rows))}
    told = [
        replace(
            one,
            label=labels[one.network],
            standing=standings.get(id(one), ""),
            over=over,
            over_interval=interval,
        )
        for one in rows
        for over, interval in [_times_as_fast(one, bases.get(one.network))]
    ]
    return sorted(told, key=lambda one: (order[one.network], not one.taken, number(one.row["seconds_median"]) or 0.0))


def document(runs: Sequence[StoredRun], budget: Budget, over: str = "", *, everything: bool = False) -> Document:
    """Return what runs on several machines tell side by side: of each network what to take where, or `everything`."""
    found = machines(runs, budget)
    rows = placed(found, over)
    shown = rows if everything else [one for one in rows if one.taken]
    reference = _named(found, over)
    without = unadvised(rows)
    columns = _columns(reference.name)
    hidden = {"items_per_second", "speedup_vs_fp32" if over else "over", "" if everything else "taken"}
    return Document(
        sections=lambda: sections(found, shown, without, reference.name, hidden),
        data=lambda: {
            "machines": records(MACHINES, found),
            "networks": records(columns, shown),
            "without_advice": records(UNADVISED, without),
            "alike": [difference.sentence for difference in alike(found)],
        },
        columns=[column.key for column in columns if column.key],
        rows=lambda: records(columns, shown),
    )


def unadvised(rows: Iterable[Placed]) -> list[Placed]:
    """Return a row of each network on each machine that measured it and can advise nothing."""
    rows = list(rows)
    taken = {(one.network, one.machine.name) for one in rows if one.taken}
    first = {(one.network, one.machine.name): one for one in reversed(rows)}
    return [one for one in rows if first[place := (one.network, one.machine.name)] is one and place not in taken]


def sections(
    found: Sequence[Machine],
    shown: Sequence[Placed],
    without: Sequence[Placed],
    over: str,
    hidden: Container[str] = (),
) -> list[Section]:
    """Return the machines, what is `shown` of them by phase and path, what is `without` advice or a result, and why.

    `over` is the machine whose fp32 speeds are held against; columns whose key is among `hidden` are for machines.
    """
    missing, odd = _missing(found), [Block(difference.sentence) for difference in alike(found)]
    return [
        Section("machines", [table("what was measured where", MACHINES, found), *odd, Block(NOTE)]),
        *(Section(part, blocks) for part, blocks in _parts(shown, _columns(over, hidden)).items()),
        *([Section("without advice", [table("measured, but", UNADVISED, without)])] if without else []),
        *([Section("without a result", missing)] if missing else []),
    ]


MACHINES: Sequence[Column[Machine]] = (
    Column("machine", lambda one: one.name, "machine", whole=True),
    Column("device", lambda one: one.device, "device"),
    Column("threads", lambda one: one.stored.header.environment.threads, "threads", "whole"),
    Column("torch", lambda one: one.stored.header.environment.torch_version, "torch"),
    Column("cases", lambda one: sum(row["outcome"] == "ok" for row in one.rows), "measured", "whole"),
    Column("failed", lambda one: sum(row["outcome"] == "failed" for row in one.rows), "failed", "whole"),
    Column("run", lambda one: one.stored.header.run, ""),
)
"""A row of the machines."""
UNADVISED: Sequence[Column[Placed]] = (
    Column("network", lambda one: one.label, "network", whole=True),
    Column("phase", lambda one: one.row["phase"], "phase"),
    Column("path", lambda one: one.row["path"], "path"),
    Column("machine", lambda one: one.machine.name, "machine", whole=True),
    Column("why", lambda one: why(one.advice.statement) if one.advice else "", "no advice"),
)
"""A row of what a machine measured and can advise nothing on."""


def _columns(reference: str, hidden: Container[str] = ()) -> list[Column[Placed]]:
    """Return the columns of what was measured; speeds are over fp32 of the machine itself, and of the `reference`."""

    def of(name: str) -> Callable[[Placed], Any]:
        return lambda one: number(one.row[name])

    def raw(name: str) -> Callable[[Placed], Any]:
        return lambda one: one.row[name]

    def over(one: Placed) -> str:
        if one.over is None:
            return ""
        low_high = one.over_interval
        return times(one.over) + (f" {times(low_high[0])}–{times(low_high[1])}".replace("x", "") if low_high else "")

    columns: list[Column[Placed]] = [
        Column("network", lambda one: one.label, "network", whole=True),
        Column("phase", lambda one: one.row["phase"]),
        Column("path", lambda one: one.row["path"]),
        Column("machine", lambda one: one.machine.name, "machine", whole=True),
        Column("precision", lambda one: precision_label(one.row), "precision", whole=True),
        Column("taken", lambda one: one.taken, "take", said=lambda one: "take" if one.taken else ""),
        Column("standing", lambda one: one.standing, "standing"),
        Column("seconds_median", of("seconds_median"), "time/step", "s"),
        Column("items_per_second", of("items_per_second"), "items/s", "items/s"),
        Column(
            "speedup_vs_fp32",
            of("speedup_vs_fp32"),
            "own fp32",
            "ratio",
            lambda one: (
                f"{times(one.row['speedup_vs_fp32'])} {speed_interval(one.row)}".strip()
                if number(one.row["speedup_vs_fp32"])
                else ""
            ),
        ),
        Column("over", lambda one: one.over, f"fp32 of {reference}", "ratio", over),
        Column("over_low", lambda one: one.over_interval and one.over_interval[0]),
        Column("over_high", lambda one: one.over_interval and one.over_interval[1]),
        Column("peak_memory_bytes", of("peak_memory_bytes"), "memory", "B"),
        Column("error", lambda one: judged_error(one.row), "error", "error"),
        Column("verdict", lambda one: one.row["verdict"], "verdict", said=lambda one: verdict_words(one.row)),
        *(Column(name, raw(name)) for name in VERDICT_COLUMNS if name not in ("verdict", "taken")),
        Column("", lambda one: passed_brief(one.passed), "not taken", rare=True),
        Column("case_id", lambda one: one.row["case_id"]),
    ]
    return [replace(column, head="") if column.key in hidden else column for column in columns]


def _parts(rows: Iterable[Placed], columns: Sequence[Column[Placed]]) -> dict[str, list[Block]]:
    """Return a table of the rows of each phase and path."""
    parts: dict[str, list[Placed]] = {}
    for one in rows:
        _, phase, path = one.network
        parts.setdefault(f"{phase} · {path}", []).append(one)
    return {part: [table("the fastest first", columns, members)] for part, members in parts.items()}


NOTE = (
    "speeds are times those of fp32, with 95% intervals; best: certainly faster than every other machine by what that "
    "is to take (Welch, on logarithms); tied: the fastest, or not certainly slower; alone: measured nowhere else"
)


def _missing(found: Sequence[Machine]) -> list[Block]:
    """Return what failed or was skipped, once for machines of which the same is said."""
    blocks: list[tuple[Block, list[str]]] = []
    for machine in found:
        for block in missing_blocks(machine.rows):
            names = next((names for known, names in blocks if known == block), None)
            if names is None:
                blocks.append((block, names := []))
            names.append(machine.name)
    return [replace(block, title=f"{few(names)}: {block.title}") for block, names in blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """That one of several machines of a kind is slower than most others, or faster.

    Its times are so many times theirs (`ratio`, the median over the cases that differ), in `cases` of those compared.
    """

    machine: str
    others: Sequence[str]
    slower: bool
    cases: int
    of: int
    ratio: float

    @property
    def sentence(self) -> str:
        """What that comes to."""
        how = "slower" if self.slower else "faster"
        told = f"in {self.cases} of {counted(self.of, 'case')}, its times are {times(self.ratio)} theirs (median)"
        return f"{self.machine} is {how} than {few(self.others)}, of the same kind: {told}"


def alike(found: Sequence[Machine]) -> list[Difference]:
    """Return which machines differ in time from others of their kind, by the tests of a comparison of two runs.

    An odd one is slower, or faster, in a case at least than more than half of the others; of two, the slower.
    """
    kinds: dict[str, list[Machine]] = {}
    for machine in found:
        kinds.setdefault(kind_of(machine.stored.header.environment), []).append(machine)
    return [difference for members in kinds.values() for difference in _odd(members)]


def _odd(members: Sequence[Machine]) -> list[Difference]:
    """Return which machines of one kind are odd ones."""
    slower: dict[str, dict[str, tuple[list[float], int]]] = {one.name: {} for one in members}
    faster: dict[str, dict[str, tuple[list[float], int]]] = {one.name: {} for one in members}
    for one, other in combinations(members, 2):
        ratios, of = _slower(one, other)
        for first, second, own in ((other, one, ratios), (one, other, [1 / ratio for ratio in ratios])):
            if longer := [ratio for ratio in own if ratio > 1]:
                slower[first.name][second.name] = longer, of
                faster[second.name][first.name] = [1 / ratio for ratio in longer], of
    differences = []
    for is_slower, told in ((True, slower), (False, faster)):
        for name, others in told.items():
            if len(others) > (len(members) - 1) / 2 and (is_slower or len(members) > 2):
                cases, of = max((len(ratios), of) for ratios, of in others.values())
                ratio = median(ratio for ratios, _ in others.values() for ratio in ratios)
                differences.append(
                    Difference(machine=name, others=list(others), slower=is_slower, cases=cases, of=of, ratio=ratio)
                )
    return differences


def _slower(one: Machine, other: Machine) -> tuple[list[float], int]:
    """Return by how much `other`'s times certainly differ from `one`'s, case by case, and how many were compared."""
    try:
        found = _compared(one, other)
    except NothingComparableError:
        return [], 0
    timed = [finding for finding in found.findings if finding.metric == "seconds_median"]
    differ = [finding for finding in timed if finding.status in (ChangeStatus.REGRESSED, ChangeStatus.IMPROVED)]
    ratios = [finding.candidate / finding.baseline for finding in differ if finding.baseline and finding.candidate]
    return ratios, len(timed)


def _compared(one: Machine, other: Machine) -> Comparison:
    """Return the comparison of what two machines of a kind measured, as if it were one machine."""
    header = other.stored.header
    environment = structs.replace(header.environment, host=one.stored.header.environment.host)
    return compare(one.stored, replace(other.stored, header=structs.replace(header, environment=environment)))


def _times_as_fast(one: Placed, base: Placed | None) -> tuple[float | None, tuple[float, float] | None]:
    """Return how many times as fast a row is as `base`, and the 95% interval of that by Welch's test on logarithms.

    Each is None where it is not known: what was timed in a single round has no interval.
    """
    if base is None:
        return None, None
    ours, theirs = (number(each.row["seconds_median"]) for each in (one, base))
    if not ours or not theirs:
        return None, None
    rounds = [np.log(np.array([each.machine.seconds.get(each.row["case_id"], [])])) for each in (one, base)]
    if one.machine is base.machine or min(each.shape[1] for each in rounds) < 2:
        return theirs / ours, None
    difference, error, freedom = (float(each[0]) for each in stats.welch(*rounds))
    reach = float(stdtrit(freedom, 0.975)) * error
    return theirs / ours, (float(np.exp(difference - reach)), float(np.exp(difference + reach)))


def _standings(rows: Iterable[Placed]) -> dict[int, str]:
    """Return how what machines are advised to take stands against that of the others, by the rows' identities."""
    networks: dict[Network, list[Placed]] = {}
    measured: dict[Network, set[str]] = {}
    for one in rows:
        measured.setdefault(one.network, set()).add(one.machine.name)
        if one.taken and number(one.row["seconds_median"]) is not None:
            networks.setdefault(one.network, []).append(one)
    standings = {}
    for network, members in networks.items():
        first, *others = sorted(members, key=lambda one: number(one.row["seconds_median"]) or 0.0)
        if not others:
            standings[id(first)] = "" if len(measured[network]) > 1 else ALONE
            continue
        intervals = [(one, _times_as_fast(first, one)[1]) for one in others]
        tied = [one for one, interval in intervals if interval is None or interval[0] <= 1]
        standings[id(first)] = TIED if tied else BEST
        standings |= {id(one): TIED for one in tied}
    return standings


def _named(found: Sequence[Machine], name: str) -> Machine:
    by_name = {machine.name: machine for machine in found}
    if name and name not in by_name:
        raise UnknownNameError("machine", name, by_name)
    return by_name[name] if name else found[0]


def _network(group: Group, row: Row) -> Network:
    own = replace(group, device="")
    return repr(own), row["phase"], row["path"]


def _labels(rows: Sequence[Placed]) -> dict[Network, str]:
    """Return a short name of each network that tells it from the others."""
    cases: dict[Network, Case] = {}
    for one in rows:
        cases.setdefault(one.network, one.machine.stored.cases[one.row["case_id"]])
    neutral = [structs.replace(case, device="cpu", phase="inference", path="eager") for case in cases.values()]
    told = table_labels([{"case_id": case.case_id} for case in neutral], [{case.case_id: case} for case in neutral])
    return dict(zip(cases, told, strict=True))


def _names(runs: Sequence[StoredRun]) -> list[str]:
    """Return what machines are called: their lane, or their host, with what else tells them apart."""
    headers = [run.header for run in runs]
    names = [header.fleet.lane if header.fleet is not None else header.environment.host for header in headers]
    devices = [next(iter(run.cases.values())).device if run.cases else "" for run in runs]
    if len(set(devices)) > 1:
        names = [
            f"{name} · {device}" if names.count(name) > 1 else name for name, device in zip(names, devices, strict=True)
        ]
    for tell in (
        lambda header: f"torch {header.environment.torch_version}",
        lambda header: counted(header.environment.threads or 0, "thread"),
        lambda header: header.run.rpartition("-")[2],
    ):
        counts = Counter(names)
        told = [f"{name} · {tell(header)}" for name, header in zip(names, headers, strict=True)]
        if len({one for one, name in zip(told, names, strict=True) if counts[name] > 1}) > len(
            {name for name in names if counts[name] > 1}
        ):
            names = [one if counts[name] > 1 else name for one, name in zip(told, names, strict=True)]
    return names
