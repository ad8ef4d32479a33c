"""Networks in one table, a row each: the precision to take, its gain, and why nothing faster or smaller is taken.

With several machines, each network has a row for each machine. Nothing is decided here.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from statistics import geometric_mean
from typing import Any

from msgspec import structs

from ampbench.core import by_key, stats
from ampbench.core.precisions import BASELINE, rank
from ampbench.core.statement import Answer, Flaw
from ampbench.core.units import format_error, times
from ampbench.records.case import Case
from ampbench.records.changes import VERDICT_COLUMNS, Status
from ampbench.records.labels import case_labels, few
from ampbench.show.document import Block, Column, Document, Section, picked, records, table
from ampbench.show.rows import (
    TODAYS,
    Group,
    Row,
    Take,
    deciding_error,
    grouped,
    number,
    passed_over,
    precision_label,
    taken_of,
)
from ampbench.show.wording import BRIEFLY, briefly, verdict_words

TABLES = 3
"""The most tables that one screen holds; a run of more is shown with one row for each."""
NAMED = 8
"""The most networks named for one kind of failure."""
NO_ADVICE = "no advice"

_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A measured network: the `rows` of its precisions, and which of them to `take`.

    `name` is unique among the networks shown. With several machines, `machine` measured it.
    """

    name: str
    rows: Sequence[Row]
    take: Take
    machine: str = ""

    @property
    def taken(self) -> Row | None:
        """The row to take; None without advice."""
        return taken_of(self.rows)

    @property
    def stays(self) -> bool:
        """Whether the precision to take is the one that runs without any change."""
        return self.taken is not None and self.taken["verdict"] == Status.BASELINE

    @property
    def because(self) -> str:
        """Why nothing faster or smaller is taken, in codes: "bf16_pure: updates lost; fp16_pure: not finite"."""
        facts: Mapping[str, Any] = self.take.statement.facts
        code = self.take.statement.code
        passed = by_key(passed_over(self.rows), lambda row: briefly(row["verdict_code"]))
        reasons = {brief: [*map(precision_label, rows)] for brief, rows in passed.items()}
        if "best" in facts and (not reasons or facts["best_speed"] > 1):
            reasons[briefly(code)] = [f"{facts['best']} {times(facts['best_speed'])}"]
        if "looks" in facts:
            reasons[briefly(Answer.UNCERTAIN)] = [f"{facts['looks']} {times(facts['looks_speed'])}"]
        if "equal" in facts:
            reasons["nearer to a limit"] = [str(facts["equal"])]
        if not reasons and (code in BRIEFLY or isinstance(code, Flaw)):
            return briefly(code)
        return "; ".join(f"{few(names, 1)}: {reason}" for reason, names in reasons.items())


SPEED = ("speedup_vs_fp32", "speedup_low", "speedup_high")
Line = Mapping[str, Any]
"""A row of the table: its columns by name, None where a network has none to take."""
NUMBERS = ("seconds_median", "items_per_second", *SPEED, "memory_ratio_vs_fp32", "peak_memory_bytes")


def network_names(cases: Sequence[Case]) -> list[str]:
    """Return the short names of the tables of `cases`, without phase, device and path, which head the tables."""
    parts = by_key(range(len(cases)), lambda place: attrgetter("phase", "device", "path")(cases[place]))
    names = dict.fromkeys(range(len(cases)), "")
    for places in parts.values():
        neutral = [structs.replace(cases[place], precision="", input_dtype="", scaler=True) for place in places]
        labels = case_labels(neutral)
        names |= {place: " ".join(labels[case.case_id].split()) for place, case in zip(places, neutral, strict=True)}
    return list(names.values())


def networks_of(rows: Iterable[Row], takes: Mapping[Group, Take], cases: Mapping[str, Case]) -> list[Network]:
    """Return the networks of a run with any measurement, in the order of `in_order`."""
    known = {group: members for group, members in grouped(rows).items() if group in takes}
    names = network_names([cases[members[0]["case_id"]] for members in known.values()])
    return in_order(
        Network(name=name, rows=members, take=takes[group])
        for name, (group, members) in zip(names, known.items(), strict=True)
    )


def in_order(networks: Iterable[Network]) -> list[Network]:
    """Return networks by phase, device and path; in each the largest gain first, then the largest gain not taken."""
    listed = list(networks)
    parts = list(dict.fromkeys(map(_part, listed)))

    def place(network: Network) -> tuple[int, bool, bool, float, float]:
        gain = 0.0 if network.taken is None else _speed(network.taken) or 0.0
        others = [_speed(row) or 0.0 for row in network.rows if row["verdict"] != Status.BASELINE]
        return parts.index(_part(network)), network.taken is None, network.stays, -gain, -max(others, default=0.0)

    return sorted(listed, key=place)


def _part(network: Network) -> tuple[str, str, str]:
    row = network.rows[0]
    return row["phase"], row["device"], row["path"]


def _speed(row: Row) -> float | None:
    return number(row["speedup_vs_fp32"])


def lines_of(networks: Iterable[Network], *, everything: bool = False) -> list[Line]:
    """Return a line for each network with the row to take; with `everything` one for each precision measured."""
    return [
        _line(network, row)
        for network in networks
        for row in ([row for row in network.rows if row["outcome"] == "ok"] if everything else [network.taken])
    ]


def _line(network: Network, row: Row | None) -> Line:
    known: Row = row or dict.fromkeys((*NUMBERS, *VERDICT_COLUMNS, "case_id"))
    return {
        "network": network.name,
        **{name: network.rows[0][name] for name in ("phase", "path", "device")},
        "machine": network.machine,
        "precision": None if row is None else precision_label(row),
        **{name: number(known[name]) for name in NUMBERS},
        "error": None if row is None else deciding_error(row),
        **{name: known[name] for name in VERDICT_COLUMNS},
        "because": network.because if row is None or row["taken"] else verdict_words(row),
        "case_id": known["case_id"],
    }


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a ratio with its interval: "1.77x (1.73–1.80)"; "" where it is not known."""
    if not value:
        return ""
    between = "" if low is None or high is None else f" ({times(low)}–{times(high)})".replace("x", "")
    return f"{times(value)}{between}"


def _column(
    name: str, head: str = "", unit: str = "", said: Callable[[Line], str] | None = None, **kind: bool
) -> Column[Line]:
    return Column(name, itemgetter(name), head, unit, said, **kind)


COLUMNS: Sequence[Column[Line]] = (
    _column("network", "network", whole=True),
    *map(_column, ("phase", "path", "device")),
    _column("machine", "machine", whole=True),
    _column("precision", "take", whole=True),
    _column("seconds_median", "time/step", "s"),
    _column("items_per_second"),
    _column("speedup_vs_fp32", "speed", "ratio", lambda line: ratio(*(line[name] for name in SPEED))),
    *map(_column, SPEED[1:]),
    _column("memory_ratio_vs_fp32", "memory", "ratio", lambda line: ratio(line["memory_ratio_vs_fp32"])),
    _column("peak_memory_bytes"),
    _column("error", "error", "error", lambda line: "" if line["error"] is None else format_error(line["error"])),
    *map(_column, VERDICT_COLUMNS),
    _column("because", "because", rare=True),
    _column("case_id"),
)
"""All columns of lines."""
SUMMARY = picked(COLUMNS, "network", "precision", "speedup_vs_fp32", "memory_ratio_vs_fp32", "error", "because")
"""The columns of the networks of one machine."""


def tables(
    networks: Iterable[Network], columns: Sequence[Column[Line]] = SUMMARY, *, everything: bool = False
) -> list[Block]:
    """Return a table of networks for each phase, device and path; its title counts the precisions to take."""
    parts: dict[tuple[str, ...], list[Network]] = {}
    for network in networks:
        phase, device, path = _part(network)
        parts.setdefault((phase, "" if network.machine else device, path), []).append(network)
    differing = [place for place, values in enumerate(zip(*parts, strict=True)) if len(set(values)) > 1]
    blocks: list[Block] = []
    for part, members in parts.items():
        title = ": ".join(filter(None, [" · ".join(part[place] for place in differing), heading(members)]))
        lines = lines_of(members, everything=everything)
        blocks.append(table(title, columns, lines))
    return blocks


def heading(networks: Sequence[Network]) -> str:
    """Return for how many networks to take which precision: "take bf16_pure for 4 of 9, stay in fp32 for 5"."""
    takes = by_key(networks, lambda row: NO_ADVICE if row.taken is None else precision_label(row.taken))
    verbs = {label: f"stay in {label}" for label in TODAYS} | {NO_ADVICE: NO_ADVICE}
    phrases: list[str] = []
    for label in sorted(takes, key=lambda label: (label == NO_ADVICE, label in TODAYS, -len(takes[label]))):
        open_still = sum(not network.take.certain for network in takes[label])
        count = "" if len(networks) == 1 else f" for {len(takes[label]):,}{'' if phrases else f' of {len(networks):,}'}"
        many = f"{open_still:,} " if open_still < len(takes[label]) else ""
        certain = f" ({many}not certain)" if open_still else ""
        phrases.append(f"{verbs.get(label, label if phrases else f'take {label}')}{count}{certain}")
    return ", ".join(phrases)


def brought(networks: Sequence[Network]) -> Block:
    """Return the gain of each precision over the networks, in geometric means."""
    measured = (row for network in networks for row in network.rows if row["outcome"] == "ok")
    low = (row for row in measured if row["precision"] != BASELINE)
    groups = by_key(low, lambda row: (rank(row["precision"]), precision_label(row)))

    def mean(rows: Sequence[Row], column: str) -> str:
        values = [value for row in rows if (value := number(row[column])) is not None and 0 < value < math.inf]
        low, high = (stats.log_t_interval(values) if values else None) or (None, None)
        return ratio(geometric_mean(values), low, high) if values else ""

    cells = []
    for (_, label), rows in sorted(groups.items(), key=itemgetter(0)):
        errors = [error for row in rows if (error := deciding_error(row)) is not None]
        taken, right = sum(bool(row["taken"]) for row in rows), sum(row["verdict"] == Status.OK for row in rows)
        means = mean(rows, "speedup_vs_fp32"), mean(rows, "memory_ratio_vs_fp32")
        worst = format_error(max(errors)) if errors else ""
        cells.append((label, f"{taken:,}", f"{right:,} of {len(rows):,}", *means, worst))
    headers = ["precision", "taken", "ok", "speed", "memory", "largest error"]
    note = "geometric means over networks, with their 95% interval"
    return Block("what each precision brought", headers, cells, note, numbers=headers[1:])


def missing(rows: Iterable[Row]) -> Block:
    """Return the cases that failed or were skipped by reason, the commonest first.

    Reasons that differ only in numbers and in the network's name are joined; the first is shown.
    """
    reasons: dict[tuple[str, str], list[Row]] = {}
    every = list(rows)
    several = len({row["phase"] for row in every}) > 1
    for row in every:
        if row["outcome"] in ("failed", "skipped"):
            general, workload = str(row["reason"]), row["workload"]
            for name in sorted({workload, workload.rpartition(":")[2]}, key=len, reverse=True):
                general = general.replace(name, "…")
            reasons.setdefault((row["outcome"], _NUMBER.sub("#", general)), []).append(row)
    ordered = sorted(reasons.items(), key=lambda pair: (pair[0][0], -len(pair[1])))
    cells = [
        (
            outcome,
            str(members[0]["reason"]),
            f"{len(members):,}",
            few(precision_label(row) for row in members),
            few((f"{row['workload']} {row['phase']}" if several else row["workload"] for row in members), NAMED),
        )
        for (outcome, _), members in ordered
    ]
    headers = ["outcome", "reason", "cases", "precisions", "networks"]
    return Block("without a result", headers, cells, numbers=["cases"], whole=["outcome"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A machine that measured: its `name` among the others, its device, and how many of its cases were `measured`."""

    name: str
    device: str
    threads: int | None
    torch: str
    measured: int
    failed: int
    run: str


PLACES: Sequence[Column[Place]] = (
    Column("machine", lambda place: place.name, "machine", whole=True),
    Column("device", lambda place: place.device, "device"),
    Column("threads", lambda place: place.threads, "threads", "whole"),
    Column("torch", lambda place: place.torch, "torch"),
    Column("cases", lambda place: place.measured, "measured", "whole"),
    Column("failed", lambda place: place.failed, "failed", "whole"),
    Column("run", lambda place: place.run),
)


def side_by_side(
    places: Sequence[Place],
    networks: Sequence[Network],
    rows: Iterable[Row],
    *,
    everything: bool = False,
) -> Document:
    """Return the results of several machines: the machines, the cases without a result, a row for each network on each.

    `rows` are all rows of the machines.
    """
    listed = [
        replace(column, head="precision") if everything and column.head == "take" else column for column in COLUMNS
    ]
    lines = lines_of(networks, everything=everything)
    lost = missing(rows)
    return Document(
        sections=lambda: [
            Section("machines", [table("", PLACES, places), *([lost] if lost.rows else [])]),
            Section("networks", tables(networks, listed, everything=everything)),
        ],
        data=lambda: {
            "machines": records(PLACES, places),
            "networks": records(listed, lines),
        },
        columns=[column.key for column in listed],
        rows=lambda: records(listed, lines),
    )
