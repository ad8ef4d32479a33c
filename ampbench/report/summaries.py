"""What each precision brought and cost over a machine's tables, in numbers."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ampbench import stats
from ampbench.precisions import BASELINE, rank
from ampbench.report.machines import Machine, Table, table_labels
from ampbench.rows import Row, judged_error, judged_floor_ratio, number, precision_label


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Positive numbers summed up on logarithms: their geometric mean and its 95% t interval, None under three.

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
    named = row_names(tables)
    found: dict[tuple[str, str], list[tuple[Row, str]]] = {}
    for table, label in zip(tables, labels, strict=True):
        for row in table.rows:
            if row["outcome"] == "ok":
                found.setdefault((row["precision"], named(row)), []).append((row, label))
    chosen = [named(table.chosen) for table in tables if table.chosen is not None]

    def summary(precision: str, label: str) -> Summary:
        rows = found[precision, label]

        def of(column: str) -> Spread | None:
            return spread((number(row[column]), name) for row, name in rows)

        return Summary(
            precision=precision,
            label=label,
            tables=len(tables),
            measured=len(rows),
            advised=chosen.count(label),
            speed=of("speedup_vs_fp32"),
            tf32=of("speedup_vs_tf32"),
            memory=of("memory_ratio_vs_fp32"),
            error=spread((judged_error(row), name) for row, name in rows),
            floor=spread((judged_floor_ratio(row), name) for row, name in rows),
        )

    return [summary(*key) for key in sorted(found, key=lambda key: (rank(key[0]), *key))]


def unmeasured(tables: Sequence[Table]) -> dict[str, str]:
    """Return the precisions that were wanted in some of `tables` and are ok in none: "skipped", "failed" or both."""
    named = row_names(tables)
    known = {named(row) for table in tables for row in table.rows if row["outcome"] == "ok"}
    became: dict[str, dict[str, None]] = {}
    missing = [[row for row in table.rows if named(row) not in known] for table in tables]
    for row in (row for rows in missing for row in rows):
        became.setdefault(named(row), {})[row["outcome"]] = None
    return {name: " or ".join(became[name]) for name in _tables_by_precision(missing)}


def hidden_advice(tables: Sequence[Table]) -> dict[str, int]:
    """Return in how many of `tables` each precision is advised that was measured there, and is not shown."""
    return _tables_by_precision([one] for table in tables if (one := table.chosen) and one not in table.rows)


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


def _tables_by_precision(tables: Iterable[Iterable[Row]]) -> dict[str, int]:
    """Return in how many of `tables` there is a row of each precision, in the order of the precisions."""
    counts = Counter(found for rows in tables for found in {(row["precision"], precision_label(row)) for row in rows})
    return {label: counts[precision, label] for precision, label in sorted(counts, key=lambda one: (rank(one[0]), one))}


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


def speedups(machine: Machine) -> Iterator[tuple[Table, Row, float]]:
    """Yield every row with a positive speedup against fp32, but for those in fp32 itself."""
    for table in machine.tables:
        for row in table.rows:
            speed = number(row["speedup_vs_fp32"])
            if row["outcome"] == "ok" and row["precision"] != BASELINE and speed and math.isfinite(speed):
                yield table, row, speed
