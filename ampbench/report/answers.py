"""The runs shown by machine, and the answer for each: what its precisions brought and cost, which to take, and why.

A machine has tables, each with its advice. Over them go the numbers of a precision; an `Answer` puts them in words.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import geometric_mean
from types import MappingProxyType

from ampbench.core.precisions import BASELINE
from ampbench.core.units import all_of, counted, every, format_error, times
from ampbench.instruments.ceilings.findings import shown as as_measured
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.judge import notes
from ampbench.judge.verdict import across_tables
from ampbench.records.labels import AGAINST_FP32, device_statement, few, told_apart
from ampbench.report.material import Material, Shown
from ampbench.show.networks import MANY, NO_ADVICE, Network, in_order, network_names, table_names
from ampbench.show.rows import TODAYS, Group, Row, Take, grouped, judged_error, number, precision_label
from ampbench.show.wording import CAUSES, words
from ampbench.show.wording import answer as answer_words
from ampbench.trend.building import place_of
from ampbench.trend.series import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured in several precisions to be compared: the `rows` of a group, and the advice for it.

    `label` tells it from the other tables of its machine. `shown` is the run that measured it, and `whole` all rows
    that this has of the group.
    """

    group: Group
    label: str
    rows: Sequence[Row]
    whole: Sequence[Row]
    shown: Shown

    @property
    def advice(self) -> Take | None:
        """The advice for it, which is of the whole run: the row advised may not be among those shown."""
        return self.shown.advice.get(self.group)

    @property
    def chosen(self) -> Row | None:
        """The row that is advised, of all rows of the run; None without advice."""
        wanted = self.advice.case_id if self.advice else None
        return None if wanted is None else self.shown.whole[wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device of a machine with one torch: what numbers on the page can be put together.

    `name` is that of the device in a sentence ("this CPU (AMD EPYC)"), `title` tells it from other machines,
    `statement` says how it computes.
    """

    name: str
    title: str
    statement: str
    runs: Sequence[Shown]
    tables: Sequence[Table]

    @property
    def advised(self) -> list[Table]:
        """The tables for which there is advice: those in which anything was measured."""
        return [table for table in self.tables if table.advice is not None]

    @property
    def is_ranked(self) -> bool:
        """Whether these are so many that a row each stands for them."""
        return len(self.advised) > MANY


@lru_cache(maxsize=1)
def machines(material: Material) -> list[Machine]:
    """Return the machines of the runs shown, in order of appearance."""
    runs: dict[Place, list[Shown]] = {}
    for shown in material.shown:
        for device in dict.fromkeys(row["device"] for row in shown.rows):
            runs.setdefault(place_of(shown.stored.header, device, "commit"), []).append(shown)
    return [_machine(place, members) for place, members in runs.items()]


def advised_machines(material: Material) -> list[Machine]:
    """Return the machines on which anything was measured."""
    return [machine for machine in machines(material) if machine.advised]


def networks(machine: Machine) -> list[Network]:
    """Return what was measured of each network on a machine, in the order of `in_order`."""
    found: list[Network] = []
    for tables in parts(machine).values():
        known = [(table, advice) for table in tables if (advice := table.advice) is not None]
        labels = network_names([table.shown.stored.cases[table.rows[0]["case_id"]] for table, _ in known])
        names = told_apart(labels, (table.shown.name for table, _ in known))
        found += [
            Network(name=name, rows=table.whole, take=advice)
            for (table, advice), name in zip(known, names, strict=True)
        ]
    return in_order(found)


def across(machine: Machine) -> list[str]:
    """Return what is to be said of several tables of a machine together."""
    swept = dict.fromkeys(name for shown in machine.runs for name in shown.stored.header.selection.sweeps)
    takes = {table.group: table.advice for table in machine.tables if table.advice is not None}
    hints = (hint for shown in machine.runs for hint in across_tables(shown.stored, shown.advice))
    return [*map(words, hints), *map(words, notes.sweep_notes(takes, swept))]


def _machine(place: Place, runs: Sequence[Shown]) -> Machine:
    found = [
        (shown, group, members, whole[group])
        for shown in runs
        for whole in [grouped(shown.whole.values())]
        for group, members in grouped(row for row in shown.rows if row["device"] == place.device).items()
    ]
    labels = table_names(one.stored.cases[members[0]["case_id"]] for one, _, members, _ in found)
    names = told_apart(labels, (shown.name for shown, _, _, _ in found))
    environment = runs[-1].stored.header.environment
    described = environment.device(place.device)
    ceilings = [one for shown in runs for one in shown.stored.every(Ceiling)]
    ran = {row["precision"] for _, _, members, _ in found for row in members if row["outcome"] == "ok"}
    model = place.device_name or (place.cpu if place.device == "cpu" else "")
    kind = "this CPU" if place.device == "cpu" else f"this {place.device.upper()} device"
    told = (
        model or place.device,
        place.device if model else "",
        f"host {place.host}" if place.host else "",
        counted(place.threads, "thread") if place.threads else "",
        f"torch {place.torch_version}" if place.torch_version else "",
        " ".join(f"{name}={value}" for name, value in place.settings),
        f"imported from {place.program}" if runs[-1].stored.header.imported else "",
    )
    return Machine(
        name=f"{kind} ({model})" if model else kind,
        title=" · ".join(part for part in told if part),
        statement=device_statement(as_measured(described, ceilings), environment, ran) if described is not None else "",
        runs=runs,
        tables=[
            Table(
                group=group,
                label=name,
                rows=members,
                whole=whole,
                shown=shown,
            )
            for (shown, group, members, whole), name in zip(found, names, strict=True)
        ],
    )


def parts(machine: Machine) -> dict[str, list[Table]]:
    """Return a machine's tables by phase and, where there are several, path: "training", "training · compiled"."""
    paths = {table.group.path for table in machine.tables}
    found: dict[str, list[Table]] = {}
    for table in machine.tables:
        part = f"{table.group.phase} · {table.group.path}" if len(paths) > 1 else table.group.phase
        found.setdefault(part, []).append(table)
    return found


def row_names(tables: Iterable[Table]) -> Callable[[Row], str]:
    """Return what calls the rows of `tables` by precision, with the dtype of the inputs where a table has several."""
    several: set[str] = set()
    for table in tables:
        inputs: dict[str, set[str]] = {}
        for row in table.whole:
            inputs.setdefault(precision_label(row), set()).add(row["input_dtype"])
        several |= {label for label, dtypes in inputs.items() if len(dtypes) > 1}

    def name(row: Row) -> str:
        label = precision_label(row)
        return f"{label} in-{row['input_dtype']}" if label in several else label

    return name


UNCERTAIN = "not certain"
"""What stands before every caveat of advice."""
REASONS = 3
"""So many reasons for which there is no advice are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to take on a machine, and what each precision `gains` there.

    Of a single machine, `where` and `said` are "": the heading says it.
    """

    where: str
    said: str
    gains: Sequence[str]


def heading(known: Sequence[Machine]) -> str:
    """Return in one line which precision to take on machines, on all of which anything was measured."""
    if len(known) == 1:
        return f"on {known[0].name}: {answer(known)}"
    torches = {one.runs[-1].stored.header.environment.torch_version for one in known}
    where = "devices" if len(torches) == 1 else "devices or torch versions"
    return f"on {len(known)} {where}: {answer(known)}"


def answers(known: Sequence[Machine], allowed: float) -> list[Answer]:
    """Return the answer for each machine, on all of which anything was measured, if outputs may err by `allowed`."""
    gains = [_gains(one.advised, allowed) for one in known]
    if len(known) == 1:
        return [Answer(where="", said="", gains=gains[0])]
    return [Answer(where=one.title, said=answer([one]), gains=said) for one, said in zip(known, gains, strict=True)]


def taken(tables: Sequence[Table]) -> Counter[str]:
    """Return for how many of `tables`, all of which have advice, each precision is to be taken, or `NO_ADVICE`."""
    return Counter(NO_ADVICE if one.chosen is None else precision_label(one.chosen) for one in tables)


def answer(found: Sequence[Machine]) -> str:
    """Return which precision to take for how many of the tables of machines that have advice."""
    tables = [table for machine in found for table in machine.advised]
    if not any(row["outcome"] == "ok" and row["precision"] != BASELINE for table in tables for row in table.whole):
        return "only fp32 was measured: there is nothing to choose from"
    counts = taken(tables)
    ranked = sorted(counts, key=lambda label: (label == NO_ADVICE, label in TODAYS, -counts[label]))
    phrases = []
    for place, label in enumerate(ranked):
        count = f"{counts[label]:,}" if place else f"{counts[label]:,} of {len(tables):,} {_nouns(found)}"
        if len(ranked) == 1:
            count = tables[0].label if len(tables) == 1 else f"{every(len(tables))} {_nouns(found)}"
        verb = label if place or label == NO_ADVICE else f"take {label}"
        own = _uncertain([one.advice for one in tables if one.advice and taken([one])[label]])
        phrases.append(f"{f'stay in {label}' if label in TODAYS else verb} for {count}{own}")
    return ", ".join(phrases)


_TRAITS: Mapping[str, Callable[[Table], object]] = MappingProxyType(
    {
        "workloads": lambda table: table.group.workload,
        "phases": lambda table: table.group.phase,
        "settings": lambda table: (
            table.group.path,
            table.group.parameters,
            table.group.batch_size,
            table.group.memory_format,
            table.group.recipe,
            table.group.sdpa,
        ),
        "runs": lambda table: table.shown.name,
    }
)
"""What may tell a table from others of its machine."""


def _nouns(found: Sequence[Machine]) -> str:
    """Return what tells the tables apart: "workloads and phases"."""
    tables = [(place, table) for place, machine in enumerate(found) for table in machine.advised]
    nouns: list[str] = []
    keys: list[tuple[object, ...]] = [(place,) for place, _ in tables]
    for noun, trait in _TRAITS.items():
        values = [trait(table) for _, table in tables]
        if len(set(keys)) < len(keys) and len(set(values)) > 1:
            nouns.append(noun)
            keys = [(*key, value) for key, value in zip(keys, values, strict=True)]
    nouns += ["devices"] if len(found) > 1 else []
    return all_of(nouns or ["workloads"])


def _uncertain(advice: Sequence[Take]) -> str:
    """Return in brackets what makes it uncertain that one must stay, and for how much of it; "" where nothing does."""
    causes = [CAUSES[str(one.statement.facts["cause"])] for one in advice if "cause" in one.statement.facts]
    many = f"{len(causes):,} of {len(advice):,} " if len(causes) < len(advice) else ""
    return f" ({many}{UNCERTAIN}: {'; '.join(dict.fromkeys(causes))})" if causes else ""


def _withheld(tables: Sequence[Table]) -> list[str]:
    """Return for which tables there is no advice and why, by reason, the commonest ones."""
    reasons: dict[str, list[str]] = {}
    for table in tables:
        if table.advice is not None and table.chosen is None:
            reasons.setdefault(answer_words(table.advice.statement), []).append(table.label)
    ranked = sorted(reasons.items(), key=lambda each: -len(each[1]))
    said = [f"{few(labels)}: {sentence}" for sentence, labels in ranked[:REASONS]]
    more = sum(len(labels) for _, labels in ranked[REASONS:])
    return [*said, *([f"no advice for {more:,} more, with the reasons in the table of advice"] if more else [])]


def _gains(tables: Sequence[Table], allowed: float) -> list[str]:
    """Return what each precision advised brings where it is advised, and why nothing is for others."""
    rows: dict[str, list[Row]] = {}
    for table in tables:
        if (chosen := table.chosen) is not None and chosen["precision"] not in TODAYS:
            rows.setdefault(precision_label(chosen), []).append(chosen)
    said = []
    for label, chosen_rows in rows.items():
        speeds, sizes = (
            [value for row in chosen_rows if (value := number(row[name])) and value < math.inf]
            for name in ("speedup_vs_fp32", "memory_ratio_vs_fp32")
        )
        errors = [error for row in chosen_rows if (error := judged_error(row)) is not None]
        parts = []
        if speeds:
            ends = f" in geometric mean ({times(min(speeds))} to {times(max(speeds))})" if len(speeds) > 1 else ""
            parts.append(f"{times(geometric_mean(speeds))} the speed of fp32{ends}")
        if sizes and times(geometric_mean(sizes)) != times(1):
            parts.append(f"{times(geometric_mean(sizes))} the memory")
        if errors:
            against = any(row["reference_dtype"] == BASELINE for row in chosen_rows)
            note = f" ({AGAINST_FP32})" if against else ""
            parts.append(f"an output error of at most {format_error(max(errors))}{note} of {allowed:g} allowed")
        if parts:
            said.append(f"{label}, where it is advised: {', '.join(parts)}")
    return [*said, *_withheld(tables)]
