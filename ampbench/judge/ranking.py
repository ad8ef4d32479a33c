"""A run of many networks in short: what each takes and gains, what each precision brought, what is not safe or failed.

What is advised is what `advice` says of each table; nothing is decided here. Tables are put together where all else
than their workload is the same: device, phase and path.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from msgspec import structs

from ampbench.core import stats
from ampbench.core.precisions import BASELINE, DEFAULT, rank
from ampbench.core.units import format_error, times
from ampbench.judge.table import speed_interval
from ampbench.records.case import Case
from ampbench.records.labels import case_labels, few
from ampbench.records.verdict import Status
from ampbench.show.document import Block, Column, Section, table
from ampbench.show.rows import (
    TODAYS,
    Group,
    Row,
    Take,
    grouped,
    is_wrong,
    judged_error,
    number,
    passed_over,
    precision_label,
    taken_of,
)
from ampbench.show.wording import code_words, why
from ampbench.workloads.index import RANDOM

MANY = 20
"""A run of more tables than this is shown as a ranking: they would fill a terminal five times and more."""
NAMED = 8
"""So many of the networks that have something in common are named."""
ALIKE = 2
"""A kind of networks has so many at least."""

_NUMBER = re.compile(r"\d[\d.,]*")
_KIND = re.compile(r"(?:[a-z]{1,2}_(?=[a-z]{3}))?[a-z]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A table in a ranking: its workload's `name` among the others, its `rows`, and the advice on it.

    `rows` are all that the run has of it.
    """

    name: str
    group: Group
    rows: Sequence[Row]
    advice: Take

    @property
    def kind(self) -> str:
        """What kind of network it is, as far as its name says: "vit" of "timm:vit_small_patch16_224"."""
        return kind_of(self.group.workload)

    @property
    def taken(self) -> Row | None:
        """The row that is advised; None without advice."""
        return taken_of(self.rows)

    @property
    def passed(self) -> list[Row]:
        """The rows that are refused or undecided, though faster or smaller than what is advised, the fastest first."""
        return passed_over(self.rows)

    @property
    def stays(self) -> bool:
        """Whether what is advised is what one runs who changes nothing."""
        return self.taken is not None and self.taken["verdict"] == Status.BASELINE

    @property
    def nearest(self) -> Row | None:
        """What comes nearest to being advised where no other precision is: the fastest that is wrong, or of all."""
        if self.passed and (_gain(self.passed[0]) or 0.0) > 1:
            return self.passed[0]
        others = (row for row in self.rows if row["outcome"] == "ok" and row["verdict"] != Status.BASELINE)
        return max(others, key=lambda row: _gain(row) or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """How many times as fast as fp32 what is advised is."""
        return None if self.taken is None else _gain(self.taken)


def kind_of(workload: str) -> str:
    """Return the beginning of a network's own name, without its library, version and size: "vit", "tf_efficientnet"."""
    name = workload.rpartition(":")[2]
    found = _KIND.match(name)
    kind = found[0] if found else name
    follows = name[len(kind) : len(kind) + 1]
    return kind[:-1] if follows.isdigit() and kind.endswith("v") and len(kind) > 2 else kind


def table_labels(rows: Sequence[Row], cases: Sequence[Mapping[str, Case]]) -> list[str]:
    """Return the short names of the tables that `rows` are of: those of their cases but for the precision."""
    neutral = [
        structs.replace(members[row["case_id"]], precision="", input_dtype="", scaler=True)
        for row, members in zip(rows, cases, strict=True)
    ]
    labels = case_labels(neutral)
    return [" ".join(labels[case.case_id].split()) for case in neutral]


def ranked(rows: Iterable[Row], advice: Mapping[Group, Take], cases: Mapping[str, Case]) -> dict[str, list[Ranked]]:
    """Return the tables on which there is advice by what they have in common ("training · cpu · eager"), ranked.

    What gains most comes first; of what gains nothing, that which came nearest; then what there is no advice on.
    """
    parts: dict[str, list[tuple[Group, list[Row]]]] = {}
    for group, members in grouped(rows).items():
        if group in advice:
            parts.setdefault(f"{group.phase} · {group.device} · {group.path}", []).append((group, members))
    found = {}
    for part, tables in parts.items():
        labels = table_labels([members[0] for _, members in tables], [cases] * len(tables))
        found[part] = in_order(
            Ranked(name=label, group=group, rows=members, advice=advice[group])
            for label, (group, members) in zip(labels, tables, strict=True)
        )
    return found


def in_order(tables: Iterable[Ranked]) -> list[Ranked]:
    """Return tables ranked, as `ranked` says."""

    def place(one: Ranked) -> tuple[bool, bool, float, float]:
        nearest = 0.0 if one.nearest is None else _gain(one.nearest) or 0.0
        return one.taken is None, one.stays, -(one.gain or 0.0), -nearest

    return sorted(tables, key=place)


def _columns(
    which: str, of: Callable[[Ranked], Row | None], beside: str, said: Callable[[Ranked], str]
) -> list[Column[Ranked]]:
    """Return the columns of a row of each table, headed `which`, and what is `said` beside it, headed `beside`."""

    def told(value: Callable[[Row], float | None], written: Callable[[Row], str]) -> dict[str, Any]:
        def cell(one: Ranked) -> str:
            row = of(one)
            return "" if row is None or value(row) is None else written(row)

        return {"of": lambda one: None if (row := of(one)) is None else value(row), "said": cell}

    return [
        Column("workload", lambda one: one.name, "workload", whole=True),
        Column("precision", lambda one: "–" if (row := of(one)) is None else precision_label(row), which, whole=True),
        Column(
            "speedup_vs_fp32",
            head="speed",
            unit="ratio",
            **told(_gain, lambda row: f"{times(row['speedup_vs_fp32'])} {speed_interval(row)}".strip()),
        ),
        Column(
            "memory_ratio_vs_fp32",
            head="memory",
            unit="ratio",
            **told(lambda row: number(row["memory_ratio_vs_fp32"]), lambda row: times(row["memory_ratio_vs_fp32"])),
        ),
        Column(
            "output_rel_l2",
            head="error",
            unit="error",
            **told(judged_error, lambda row: format_error(judged_error(row))),
        ),
        Column("why", said, beside, rare=True),
    ]


def _gain(row: Row) -> float | None:
    return number(row["speedup_vs_fp32"])


def _passed(one: Ranked) -> str:
    """Return why faster or smaller precisions are not taken, and that what is taken is not certain."""
    return ", ".join(filter(None, [passed_brief(one.passed), "" if one.advice.certain else "not certain"]))


def passed_brief(rows: Iterable[Row]) -> str:
    """Return why rows are not taken: "bf16_pure, fp16_pure: not finite; fp16_autocast: error"."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        labels.setdefault(code_words(row), []).append(precision_label(row))
    return "; ".join(f"{', '.join(names)}: {code}" for code, names in labels.items())


def _short(one: Ranked) -> str:
    """Say why the nearest other precision is not taken."""
    if one.nearest is None:
        return "all others failed"
    if is_wrong(one.nearest):
        return code_words(one.nearest)
    return "no gain" if one.advice.certain else "not certain"


TAKEN = _columns("take", lambda one: one.taken, "but", _passed)
"""A row of the ranking: what is advised."""
STAYING = _columns("nearest", lambda one: one.nearest, "but", _short)
"""A row of those that stay as they are: what comes nearest to being advised."""
UNADVISED: Sequence[Column[Ranked]] = (
    Column("workload", lambda one: one.name, "workload", whole=True),
    Column("why", lambda one: why(one.advice.statement), "no advice"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a precision brought to networks of a `kind` ("": of all): the `tables` that have it, with its row."""

    precision: str
    kind: str
    tables: Sequence[tuple[Ranked, Row]]

    @property
    def unsafe(self) -> dict[str, list[str]]:
        """The names of those for which it is not safe, by reason, the commonest first."""
        found: dict[str, list[str]] = {}
        for one, row in self.tables:
            if is_wrong(row):
                found.setdefault(code_words(row), []).append(one.name)
        return dict(sorted(found.items(), key=lambda each: -len(each[1])))

    @property
    def safe(self) -> list[tuple[Ranked, Row]]:
        """Those for which it is."""
        return [(one, row) for one, row in self.tables if row["verdict"] == Status.OK]

    @property
    def taken(self) -> int:
        """For how many it is advised."""
        return sum(one.taken is row for one, row in self.tables)

    @property
    def best(self) -> tuple[Ranked, float] | None:
        """Where it is safe and gains most, and how much."""
        gains = [(speed, one) for one, row in self.safe if (speed := number(row["speedup_vs_fp32"]))]
        if not gains:
            return None
        speed, one = max(gains, key=lambda each: each[0])
        return one, speed

    def mean(self, column: str) -> tuple[float, tuple[float, float] | None] | None:
        """Return the geometric mean of a ratio and its 95% t interval, None under three; None without any."""
        found = (number(row[column]) for _, row in self.tables)
        values = [value for value in found if value is not None and 0 < value < math.inf]
        if not values:
            return None
        return geometric_mean(values), stats.log_t_interval(values)

    @property
    def worst_error(self) -> float | None:
        """The largest error of outputs that are finite."""
        return max((error for _, row in self.tables if (error := judged_error(row)) is not None), default=None)


def brought(tables: Sequence[Ranked], *, by_kind: bool = False) -> list[Brought]:
    """Return what each precision brought, in the order of the precisions; or that to each kind of networks.

    Kinds are those of several networks, in the order of their names.
    """
    found: dict[tuple[str, int, str], list[tuple[Ranked, Row]]] = {}
    kinds = Counter(one.kind for one in tables)
    for one in tables:
        if not by_kind or kinds[one.kind] >= ALIKE:
            for row in one.rows:
                if row["outcome"] == "ok" and row["precision"] != BASELINE:
                    key = one.kind if by_kind else "", rank(row["precision"]), precision_label(row)
                    found.setdefault(key, []).append((one, row))
    return [Brought(kind=key[0], precision=key[2], tables=found[key]) for key in sorted(found)]


def _mean(one: Brought, column: str) -> str:
    known = one.mean(column)
    if known is None:
        return ""
    mean, interval = known
    between = "" if interval is None else f" {times(interval[0])}–{times(interval[1])}".replace("x", "")
    return f"{times(mean)}{between}"


def _best(one: Brought) -> str:
    return "" if one.best is None else f"{times(one.best[1])} {one.best[0].name}"


def _why_unsafe(one: Brought) -> str:
    return ", ".join(f"{reason} {len(names)}" for reason, names in one.unsafe.items())


BY_PRECISION: Sequence[Column[Brought]] = (
    Column("precision", lambda one: one.precision, "precision"),
    Column("taken", lambda one: one.taken, "taken", "whole"),
    Column("safe", lambda one: len(one.safe), "safe", "whole", lambda one: f"{len(one.safe)} of {len(one.tables)}"),
    Column(
        "speed", lambda one: one.mean("speedup_vs_fp32"), "speed", "ratio", lambda one: _mean(one, "speedup_vs_fp32")
    ),
    Column(
        "memory",
        lambda one: one.mean("memory_ratio_vs_fp32"),
        "memory",
        "ratio",
        lambda one: times(mean[0]) if (mean := one.mean("memory_ratio_vs_fp32")) else "",
    ),
    Column("error", lambda one: one.worst_error, "largest error", "error"),
    Column("best", lambda one: one.best, "best where it is safe", said=_best),
)
"""What each precision brought to all networks of a part."""
BY_KIND: Sequence[Column[Brought]] = (
    Column("kind", lambda one: one.kind, "kind"),
    *BY_PRECISION[:-1],
    Column("unsafe", lambda one: list(one.unsafe), "not safe", said=_why_unsafe),
)
"""The same of each kind of networks."""


def part_blocks(tables: Sequence[Ranked], *, kinds: bool = False) -> list[Block]:
    """Return what is told of the networks of a part: what each takes, what each precision brought, what is not safe.

    With `kinds`, what each precision brought to each kind of networks, too.
    """
    by_precision = brought(tables)
    unsafe = [
        (one.precision, reason, str(len(names)), few(names, NAMED))
        for one in by_precision
        for reason, names in one.unsafe.items()
    ]
    taking = [one for one in tables if one.taken is not None and not one.stays]
    staying = [one for one in tables if one.stays]
    stayed = " or ".join(sorted({one.taken["precision"] for one in staying if one.taken is not None}, key=rank))
    by_kind = brought(tables, by_kind=True) if kinds else []
    headers = ["precision", "for", "networks", "which"]
    blocks = [
        table("which precision to take, what gains most first", TAKEN, taking, RANKING_NOTE),
        table(f"stay in {stayed}, the nearest first", STAYING, staying, "" if taking else RANKING_NOTE),
        table("without advice", UNADVISED, [one for one in tables if one.taken is None]),
        table("what each precision brought", BY_PRECISION, by_precision, BROUGHT_NOTE),
        Block("not safe", headers, unsafe, numbers=["networks"]),
        table("by kind of network", BY_KIND, by_kind, BROUGHT_NOTE),
    ]
    weights = _weights(tables)
    return [replace(one, note="; ".join(filter(None, [one.note, weights]))) for one in blocks if one.rows]


def _weights(tables: Sequence[Ranked]) -> str:
    """Say of networks by name whose weights they are, where those are not trained: nothing else tells in a ranking."""
    random = [one for one in tables if f"weights={RANDOM}" in one.group.parameters.split(",")]
    if not random:
        return ""
    return "random weights" if len(random) == len(tables) else f"random weights in {len(random):,} of {len(tables):,}"


RANKING_NOTE = (
    "speed and memory are times those of fp32, with the 95% interval; error: relative L2 of the output against fp64"
)
BROUGHT_NOTE = "geometric means over networks, with their 95% interval"


def taken_said(tables: Sequence[Ranked]) -> str:
    """Return for how many tables which precision is advised."""
    counts = Counter("no advice" if one.taken is None else precision_label(one.taken) for one in tables)
    ordered = sorted(counts, key=lambda label: (label == "no advice", label in TODAYS, -counts[label]))
    verbs = {BASELINE: "stay in fp32", DEFAULT: "stay in default", "no advice": "no advice"}
    total = f" of {len(tables):,}"
    return ", ".join(
        f"{verbs.get(label, label if place else f'take {label}')} for {counts[label]:,}{'' if place else total}"
        for place, label in enumerate(ordered)
    )


def sections(parts: Mapping[str, Sequence[Ranked]], rows: Iterable[Row]) -> list[Section]:
    """Return the ranking of a run whose `rows` are given, and why others of them are not in it."""
    found = [Section(f"{part}: {taken_said(tables)}", part_blocks(tables)) for part, tables in parts.items()]
    missing = missing_blocks(rows)
    return [*found, *([Section("without a result, by reason", missing)] if missing else [])]


def missing_blocks(rows: Iterable[Row], named: int = NAMED) -> list[Block]:
    """Return the cases that failed and were skipped, each by reason, the commonest first.

    Reasons that differ in numbers and in the network's own name alone are one; the first is shown. Cases are named by
    their network, and by precision where it was not all of its precisions.
    """
    members = {group: list(found) for group, found in grouped(rows).items()}
    blocks = []
    for outcome in ("failed", "skipped"):
        reasons: dict[str, tuple[str, dict[Group, list[Row]]]] = {}
        for group, found in members.items():
            for row in found:
                if row["outcome"] == outcome:
                    reason = str(row["reason"])
                    _, of = reasons.setdefault(_general(reason, group.workload), (reason, {}))
                    of.setdefault(group, []).append(row)
        lines = [
            (reason, str(sum(map(len, of.values()))), few(_names(of, members), named))
            for reason, of in reasons.values()
        ]
        lines.sort(key=lambda line: -int(line[1]))
        if lines:
            blocks.append(Block(outcome, ["why", "cases", "which"], lines, numbers=["cases"]))
    return blocks


def _general(reason: str, workload: str) -> str:
    """Return a reason without what is a network's own."""
    own = sorted({workload, workload.rpartition(":")[2]}, key=len, reverse=True)
    for name in own:
        reason = reason.replace(name, "…")
    return _NUMBER.sub("#", reason)


def _names(of: Mapping[Group, Sequence[Row]], members: Mapping[Group, Sequence[Row]]) -> list[str]:
    """Return what cases are called: their workload, with phase and precision where others of it fared otherwise."""
    every = Counter(group.workload for group, rows in members.items() for _ in rows)
    told = Counter(group.workload for group, rows in of.items() for _ in rows)
    phases = {workload: {one.phase for one in members if one.workload == workload} for workload in told}
    names: list[str] = []
    for group, rows in of.items():
        name = group.workload if len(phases[group.workload]) == 1 else f"{group.workload} {group.phase}"
        if told[group.workload] == every[group.workload]:
            names.append(group.workload)
        elif len(rows) == len(members[group]):
            names.append(name)
        else:
            names += [f"{name} {precision_label(row)}" for row in rows]
    return names
