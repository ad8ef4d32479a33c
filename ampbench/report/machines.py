"""The runs shown by machine: its tables with their advice, and what each precision brought and cost over them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ampbench import notes, stats
from ampbench.advice import Advice, Group, Row, grouped, number, precision_label
from ampbench.labels import case_labels
from ampbench.precisions import BASELINE, PRECISIONS
from ampbench.records.cases import Case
from ampbench.report.material import Material, Shown
from ampbench.trends import Place, place_of
from ampbench.trends.sentences import number as counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured in several precisions to be compared: the `rows` of a group, and the advice for it.

    `label` tells it from the other tables of its machine. `shown` is the run that measured it.
    """

    group: Group
    label: str
    rows: Sequence[Row]
    shown: Shown

    @property
    def advice(self) -> Advice | None:
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

    `name` is that of the device in a sentence ("this CPU (AMD EPYC)"), `title` tells it from other machines, `device`
    says how it computes.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Positive numbers summed up on logarithms: their geometric mean and its 95 % t interval, None under three.

    `least` and `most` are the ends of all that are defined, with the labels they came with. `count` numbers make the
    mean; `zeros` and `infinite` cannot and are left out of it.
    """

    count: int
    mean: float | None
    low: float | None
    high: float | None
    least: tuple[float, str]
    most: tuple[float, str]
    zeros: int = 0
    infinite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a precision brought over the tables of a phase and path on a machine; None where nothing is defined.

    `speed`, `tf32` and `memory` are ratios to the same case in another precision, over the tables in which both are ok.
    `tables` is how many there are, in `measured` of them the precision is ok, and in `advised` it is to be taken.
    """

    precision: str
    label: str
    tables: int
    measured: int
    advised: int
    speed: Spread | None
    tf32: Spread | None
    memory: Spread | None
    error: Spread | None
    floor: Spread | None


def machines(material: Material) -> list[Machine]:
    """Return the machines of the runs shown, in order of appearance."""
    runs: dict[Place, list[Shown]] = {}
    for shown in material.shown:
        for device in dict.fromkeys(row["device"] for row in shown.rows):
            runs.setdefault(place_of(shown.stored.header, device, "commit"), []).append(shown)
    return [_machine(place, members) for place, members in runs.items()]


def parts(machine: Machine) -> dict[str, list[Table]]:
    """Return a machine's tables by phase and, where there are several, path: "training", "training · compiled"."""
    paths = {table.group.path for table in machine.tables}
    found: dict[str, list[Table]] = {}
    for table in machine.tables:
        part = f"{table.group.phase} · {table.group.path}" if len(paths) > 1 else table.group.phase
        found.setdefault(part, []).append(table)
    return found


def summaries(tables: Sequence[Table]) -> list[Summary]:
    """Return what each precision that is ok in any of `tables` brought, in the order of the table of precisions."""
    labels = table_labels([table.rows[0] for table in tables], [table.shown.stored.cases for table in tables])
    found: dict[tuple[str, str], list[tuple[Row, str]]] = {}
    for table, label in zip(tables, labels, strict=True):
        for row in table.rows:
            if row["outcome"] == "ok":
                found.setdefault((row["precision"], precision_label(row)), []).append((row, label))
    order = {name: place for place, name in enumerate(PRECISIONS)}
    chosen = [precision_label(table.chosen) for table in tables if table.chosen is not None]

    def summary(precision: str, label: str) -> Summary:
        rows = found[precision, label]

        def of(column: str) -> Spread | None:
            return spread((number(row[column]), name) for row, name in rows)

        return Summary(
            precision=precision,
            label=label,
            tables=len(tables),
            measured=len({name for _, name in rows}),
            advised=chosen.count(label),
            speed=of("speedup_vs_fp32"),
            tf32=of("speedup_vs_tf32"),
            memory=of("memory_ratio_vs_fp32"),
            error=of("output_rel_l2"),
            floor=of("output_floor_ratio"),
        )

    return [summary(*key) for key in sorted(found, key=lambda key: (order.get(key[0], len(order)), *key))]


def unmeasured(tables: Sequence[Table]) -> dict[str, int]:
    """Return in how many of `tables` each precision that is ok in none was wanted."""
    known = {precision_label(row) for table in tables for row in table.rows if row["outcome"] == "ok"}
    wanted: dict[str, int] = {}
    for table in tables:
        for label in {precision_label(row) for row in table.rows} - known:
            wanted[label] = wanted.get(label, 0) + 1
    order = list(PRECISIONS)
    return dict(sorted(wanted.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def spread(values: Iterable[tuple[float | None, str]]) -> Spread | None:
    """Return the spread of labelled numbers of 0 or more, None where none is defined."""
    defined = [(value, label) for value, label in values if value is not None and not math.isnan(value)]
    if not defined:
        return None
    usable = [value for value, _ in defined if 0 < value < math.inf]
    interval = stats.log_t_interval(usable) if usable else None
    return Spread(
        count=len(usable),
        mean=geometric_mean(usable),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        least=min(defined),
        most=max(defined),
        zeros=sum(value == 0 for value, _ in defined),
        infinite=sum(value == math.inf for value, _ in defined),
    )


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean of positive, finite numbers, None without any."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def table_labels(rows: Sequence[Row], cases: Sequence[Mapping[str, Case]]) -> list[str]:
    """Return the short names of the tables that `rows` are of: those of their cases but for the precision."""
    neutral = [
        replace(members[row["case_id"]], precision="", input_dtype="", scaler=True)
        for row, members in zip(rows, cases, strict=True)
    ]
    labels = case_labels(neutral)
    return [" ".join(labels[case.case_id].split()) for case in neutral]


def _machine(place: Place, runs: Sequence[Shown]) -> Machine:
    found = [
        (shown, group, members)
        for shown in runs
        for group, members in grouped(row for row in shown.rows if row["device"] == place.device).items()
    ]
    labels = table_labels([members[0] for _, _, members in found], [shown.stored.cases for shown, _, _ in found])
    repeated = Counter(labels)
    environment = runs[-1].stored.header.environment
    described = environment.device(place.device)
    model = place.device_name or (place.cpu if place.device == "cpu" else "")
    kind = "this CPU" if place.device == "cpu" else f"this {place.device.upper()} device"
    told = (
        model or place.device,
        place.device if model else "",
        f"host {place.host}" if place.host else "",
        counted(place.threads, "thread", "threads") if place.threads else "",
        f"torch {place.torch_version}" if place.torch_version else "",
        " ".join(f"{name}={value}" for name, value in place.settings),
        f"imported from {place.program}" if runs[-1].stored.header.imported else "",
    )
    return Machine(
        name=f"{kind} ({model})" if model else kind,
        title=" · ".join(part for part in told if part),
        statement=notes.device_statement(described, environment) if described is not None else "",
        runs=runs,
        tables=[
            Table(
                group=group,
                label=f"{label} · {shown.name}" if repeated[label] > 1 else label,
                rows=members,
                shown=shown,
            )
            for (shown, group, members), label in zip(found, labels, strict=True)
        ],
    )


def speedups(machine: Machine) -> Iterator[tuple[Table, Row, float]]:
    """Yield every row with a positive speedup against fp32, but for those in fp32 itself."""
    for table in machine.tables:
        for row in table.rows:
            speed = number(row["speedup_vs_fp32"])
            if row["outcome"] == "ok" and row["precision"] != BASELINE and speed and math.isfinite(speed):
                yield table, row, speed
