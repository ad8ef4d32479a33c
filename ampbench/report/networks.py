"""The section of networks: a row each with what to take and why nothing faster is, and what each precision brought.

Where several machines measured, a row is of a network on a machine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import counted, times
from ampbench.judge.machines import alike, told_apart
from ampbench.judge.machines import networks as on_machines
from ampbench.report.answers import Machine, across, advised_machines, row_names
from ampbench.report.answers import networks as on_machine
from ampbench.report.material import Material, Shown
from ampbench.report.tradeoff import LEAST_SPAN, SLOWEST, positive
from ampbench.show.charts import Chart, Choice, middle_cut, precision_encoded, quantity, rule_at, tooltip
from ampbench.show.document import Block, Section, cut
from ampbench.show.networks import MANY, brought, side_by_side, tables
from ampbench.show.page import Part, View, view_of_parts

AT_ONCE = 25
"""So many rows of a table are shown; the others are folded away."""
MOST = 1_000
"""So many rows a table has at most."""
_ROW_PIXELS = 22
_LABEL_PIXELS = 215
_LABEL_LENGTH = 30


def networks(material: Material) -> View | None:
    """Return the view; None where nothing was measured."""
    machines = advised_machines(material)
    together = _side_by_side(material)
    few = [machine for machine in machines if not machine.is_ranked]
    rows = [row for place, machine in enumerate(few) for row in _points(machine, str(place))]
    drawn = Part(id="speed", title="", charts=[_chart(few, rows)], datasets={"networks": rows}) if rows else None
    several = len(machines) > 1
    own = [_of_machine(machine, titled=several, tabled=not together) for machine in machines]
    parts = [_part(str(place), section) for place, section in enumerate([*together, *own])]
    return view_of_parts("networks", "Networks", [drawn, *parts]) if machines else None


def _part(id: str, section: Section) -> Part:
    return Part(id=id, title=section.title, blocks=[part for block in section.blocks for part in _folding(block)])


def _folding(block: Block) -> list[Block]:
    """Return a table as its first rows and, folded away, the others as far as a page has room."""
    first, rest = block.rows[:AT_ONCE], cut(replace(block, rows=block.rows[AT_ONCE:]), MOST)
    return [
        replace(block, rows=first),
        *([replace(rest, title=f"{len(block.rows) - AT_ONCE:,} more", folded=True)] if rest.rows else []),
    ]


def _of_machine(machine: Machine, *, titled: bool, tabled: bool) -> Section:
    """Return what is told of a machine: its networks where no other section has them, and what precisions brought."""
    own = on_machine(machine)
    blocks = [*(tables(own, explained=not machine.is_ranked) if tabled else []), brought(own)]
    said = [*([machine.statement] if titled and machine.statement else []), *across(machine)]
    return Section(machine.title if titled else "", [*(block for block in blocks if block.rows), *map(Block, said)])


def _side_by_side(material: Material) -> list[Section]:
    """Return the sections of machines, none where one machine measured all."""
    shown = [each for each in material.shown if each.rows]
    if len({_place(each) for each in shown}) < 2:
        return []
    found = told_apart([(each.stored, each.rows, each.advice) for each in shown])
    rows = [row for machine in found for row in machine.rows]
    own = on_machines(found)
    places = [machine.place for machine in found]
    return list(side_by_side(places, own, rows, alike(found), explained=len(own) <= MANY).sections())


def _place(shown: Shown) -> tuple[object, ...]:
    """Return what makes a machine another one: versions of torch on one are a matter of trends."""
    environment = shown.stored.header.environment
    devices = tuple(sorted({case.device for case in shown.stored.cases.values()}))
    return environment.host, environment.cpu, environment.threads, devices


def _points(machine: Machine, place: str) -> list[dict[str, Any]]:
    """Return the points of the chart: the speed of every precision of each network of a machine."""
    named = row_names(machine.tables)
    return [
        {
            "machine": place,
            "table": table.label,
            "precision": row["precision"],
            "name": named(row),
            "speed": speed,
            "said": f"{named(row)}: {times(speed)}",
        }
        for table in machine.tables
        for row in table.rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE and (speed := positive(row["speedup_vs_fp32"]))
    ]


def _chart(machines: Sequence[Machine], rows: Sequence[dict[str, Any]]) -> Chart:
    shown = {str(place): machine for place, machine in enumerate(machines)}
    shown = {place: machine for place, machine in shown.items() if any(row["machine"] == place for row in rows)}
    of = {place: [row for row in rows if row["machine"] == place] for place in shown}
    several = len(shown) > 1
    speeds = [row["speed"] for row in rows]
    # what hardly differs does not look far apart, and what is emulated stands at the edge
    domain = [max(SLOWEST, min(LEAST_SPAN[0], *speeds)), max(LEAST_SPAN[1], *speeds)]
    scale = {"type": "log", "nice": False, "padding": 16, "clamp": True, "domain": domain}
    # room for the labels is reserved: where the chart is drawn without a browser, they are wider than was reckoned
    axis = {
        "labelExpr": middle_cut(_LABEL_LENGTH),
        "labelLimit": _LABEL_PIXELS,
        "minExtent": 7.4 * min(_LABEL_LENGTH, max(len(row["table"]) for row in rows)),
        "grid": True,
        "labelOverlap": False,
    }
    encoding = {
        "x": quantity("speed", "times the speed of fp32", scale, {"format": "~g", "tickCount": 6}),
        "y": {"field": "table", "type": "nominal", "sort": None, "title": None, "axis": axis},
        **precision_encoded(row["precision"] for row in rows),
        "tooltip": tooltip(table="table", said="speed"),
    }
    return Chart(
        id="networks-speed",
        title="Speed of each precision, times that of fp32",
        alt="" if several else " ".join(map(_fastest, of.values())),
        spec={"layer": [{"mark": {"type": "point"}, "encoding": encoding}, rule_at("x", 1)]},
        dataset="networks",
        height=_ROW_PIXELS * (max(len({row["table"] for row in own}) for own in of.values()) + 1),
        choose="machine" if several else "",
        choices=[
            Choice(value=place, label=machine.title, alt=f"{machine.title}: {_fastest(of[place])}")
            for place, machine in shown.items()
            if several
        ],
    )


def _fastest(rows: Sequence[dict[str, Any]]) -> str:
    """Return in words which precision is the fastest in how many tables."""
    best: dict[str, tuple[float, str]] = {}
    for row in rows:
        best[row["table"]] = max(best.get(row["table"], (1.0, BASELINE)), (row["speed"], row["name"]))
    counts = Counter(name for _, name in best.values()).most_common()
    said = ", ".join(f"{name} in {count:,}" for name, count in counts)
    slow = sum(row["speed"] < SLOWEST for row in rows)
    edge = f" At the left edge: {counted(slow, 'point')} slower than {times(SLOWEST)}." if slow else ""
    return f"Fastest of {counted(len(best), 'table')}: {said}.{edge}"
