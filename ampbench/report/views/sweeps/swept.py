"""Sweeps: cases of a run that differ in precision and one parameter, and how precisions stand to fp32 along it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ampbench import notes
from ampbench.precisions import BASELINE
from ampbench.report.material import Material, Shown
from ampbench.report.views.sweeps.crossings import Level, Rivals
from ampbench.rows import Group, Row, described, grouped, number, precision_label

BATCH_SIZE = "batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Cases of a run that differ in precision and in the parameter `swept` alone.

    `groups` are those of the advice by the parameter's value, in order; `rows` the cases by the name of their precision
    and value, `levels` the throughputs of those that have one. `xs` are the values as numbers above 0, empty where a
    value of the chart is none. `places` compare the precisions that have values in common with fp32 to it.
    """

    swept: str
    title: str
    shown: Shown
    groups: Mapping[str, Group]
    rows: Mapping[str, Mapping[str, Row]]
    levels: Mapping[str, Mapping[str, Level]]
    xs: Mapping[str, float]
    places: Mapping[str, Sequence[Rivals]]


def find_sweeps(material: Material) -> dict[str, list[Sweep]]:
    """Return the sweeps by parameter: of those that runs were asked to sweep, and of batch sizes wherever they differ.

    Each is of one run: cases of two runs were not measured in turns.
    """
    wanted = {BATCH_SIZE: None} | {name: None for one in material.shown for name in one.stored.header.selection.sweeps}
    found: dict[str, list[Sweep]] = {}
    for parameter in wanted:
        candidates: list[tuple[Shown, Group, dict[str, Group], dict[Group, list[Row]]]] = []
        for shown in material.shown:
            groups = grouped(shown.rows)
            tables: dict[Group, dict[str, Group]] = {}
            for group in groups:
                value = notes.swept_value(group, parameter)
                if value is not None:
                    tables.setdefault(_rest(group, parameter), {})[value] = group
            candidates += [(shown, rest, values, groups) for rest, values in tables.items() if len(values) > 1]
        xs = _numbers(value for _, _, values, _ in candidates for value in values)
        for shown, rest, values, groups in candidates:
            title = _title(rest, shown, alone=len(material.shown) == 1)
            ordered = {value: values[value] for value in sorted(values, key=lambda one: xs.get(one, 0.0))}
            sweep = _sweep(parameter, title, shown, ordered, groups, xs)
            if any(len(levels) > 1 for levels in sweep.levels.values()):
                found.setdefault(parameter, []).append(sweep)
    return found


def _sweep(
    parameter: str,
    title: str,
    shown: Shown,
    values: Mapping[str, Group],
    groups: Mapping[Group, Sequence[Row]],
    xs: Mapping[str, float],
) -> Sweep:
    inputs: dict[str, set[str]] = {}
    for group in values.values():
        for row in groups[group]:
            inputs.setdefault(precision_label(row), set()).add(row["input_dtype"])
    rows: dict[str, dict[str, Row]] = {}
    for value, group in values.items():
        for row in groups[group]:
            name = precision_label(row)
            name += f" in-{row['input_dtype']}" if len(inputs[name]) > 1 else ""
            rows.setdefault(name, {})[value] = row
    levels = {
        name: {value: level for value, row in members.items() if (level := _level(row)) is not None}
        for name, members in rows.items()
    }
    baselines = [name for name in (BASELINE, f"{BASELINE} in-{BASELINE}") if levels.get(name)]
    places = {
        name: [
            Rivals(value=value, x=xs.get(value), own=own[value], other=levels[baselines[0]][value])
            for value in values
            if value in own and value in levels[baselines[0]]
        ]
        for name, own in levels.items()
        if baselines and name != baselines[0]
    }
    return Sweep(
        swept=parameter,
        title=title,
        shown=shown,
        groups=values,
        rows=rows,
        levels=levels,
        xs=xs,
        places={name: some for name, some in places.items() if some},
    )


def _level(row: Row) -> Level | None:
    """Return the throughput of a case; its interval is that of the time, turned round."""
    rate, median = number(row["items_per_second"]), number(row["seconds_median"])
    if row["outcome"] != "ok" or rate is None or not 0 < rate < math.inf:
        return None
    low, high = number(row["seconds_low"]), number(row["seconds_high"])
    if not median or not low or not high or not 0 < low <= high < math.inf:
        return Level(rate=rate)
    return Level(rate=rate, low=rate * (median / high), high=rate * (median / low))


def _rest(group: Group, parameter: str) -> Group:
    """Return what the cases of a sweep share: the group without the parameter."""
    if parameter == BATCH_SIZE:
        return replace(group, batch_size=None)
    pairs = group.parameters.split(",")
    return replace(group, parameters=",".join(one for one in pairs if not one.startswith(f"{parameter}=")))


def _numbers(values: Iterable[str]) -> dict[str, float]:
    """Return values as numbers for a log axis; empty where one of them is no number above 0."""
    found = {}
    for value in values:
        try:
            found[value] = float(value)
        except ValueError:
            return {}
    return found if all(0 < one < math.inf for one in found.values()) else {}


def _title(rest: Group, shown: Shown, *, alone: bool) -> str:
    return " · ".join([rest.workload, described(rest), *([] if alone else [shown.name])])
