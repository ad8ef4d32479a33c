"""The sections of many networks and of several machines.

Which precision each network takes, what that gains, what is not safe or failed; and of machines side by side, what to
take where, and where it is best.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from ampbench.core.precisions import BASELINE
from ampbench.core.units import counted, format_error, times
from ampbench.judge.beside import placed, sections, told_apart, unadvised
from ampbench.judge.ranking import Ranked, missing_blocks, part_blocks, taken_said
from ampbench.judge.table import speed_interval
from ampbench.report.answers import advised_machines, ranked_parts
from ampbench.report.material import Material, Shown
from ampbench.report.views.precisions import SLOWEST, speed_axis
from ampbench.show.charts import Chart, Choice, precision_encoded, rule_at, tooltip
from ampbench.show.document import as_sentence
from ampbench.show.page import View, cut
from ampbench.show.rows import is_wrong, judged_error, number
from ampbench.show.wording import code_words

AT_ONCE = 25
"""So many rows of a table are shown; the others are folded away."""
MOST = 1_000
"""So many rows a table has at most."""
NAMED = 40
"""So many networks that failed for one reason are named."""
DRAWN = 60
"""So many kinds of networks are drawn, those with the most networks."""
_ROW_PIXELS = 17


def ranking(material: Material) -> View | None:
    """Return the view; None where no machine has as many tables as need a ranking."""
    found = [(machine, ranked_parts(machine)) for machine in advised_machines(material) if machine.is_ranked]
    if not found:
        return None
    several = len(found) > 1
    rows: list[dict[str, Any]] = []
    choices: list[Choice] = []
    machines: list[dict[str, Any]] = []
    for machine, parts in found:
        told = []
        for part, tables in parts.items():
            value = str(len(choices))
            own = _points(tables, value)
            label = f"{machine.title} · {part}" if several else part
            if own:
                rows += own
                marks = list(dict.fromkeys(row["precision"] for row in own))
                choices.append(Choice(value=value, label=label, alt=faster_said(own), marks=marks))
            blocks = [cut(block, MOST) for block in part_blocks(tables, kinds=True)]
            told.append({"name": part, "said": as_sentence(taken_said(tables)), "blocks": blocks})
        missing = missing_blocks([row for table in machine.tables for row in table.rows], NAMED)
        machines.append({"title": machine.title, "parts": told, "missing": missing})
    return View(
        id="ranking",
        title="Ranking",
        template="ranking.html",
        content={
            "machines": machines,
            "several": several,
            "at_once": AT_ONCE,
            "named": ("take", "nearest", "precision"),
            "folded": ("by kind of network",),
        },
        charts=[_chart(choices, rows)] if rows else [],
        datasets={"ranking": rows} if rows else {},
    )


def _points(tables: Sequence[Ranked], part: str) -> list[dict[str, Any]]:
    """Return a point for every precision of every network that has a speed, of the kinds that are drawn.

    Kinds stand in the order of what their networks gain, in geometric mean; a kind of one network has its name.
    """
    members: dict[str, list[Ranked]] = {}
    for one in tables:
        members.setdefault(one.kind, []).append(one)
    largest = sorted(members, key=lambda kind: -len(members[kind]))[:DRAWN]
    gains = {kind: geometric_mean([one.gain or 1.0 for one in members[kind]]) for kind in largest}
    return [
        {
            "part": part,
            "kind": f"{kind} ({len(members[kind])})" if len(members[kind]) > 1 else members[kind][0].name,
            "network": one.name,
            "precision": row["precision"],
            "speed": speed,
            "safe": not is_wrong(row),
            "said": " ".join(filter(None, [times(speed), speed_interval(row)])),
            "error": "" if (error := judged_error(row)) is None else format_error(error),
            "taken": "advised" if row is one.taken else code_words(row) if is_wrong(row) else "",
        }
        for kind in sorted(largest, key=lambda kind: -gains[kind])
        for one in members[kind]
        for row in one.rows
        if row["outcome"] == "ok" and row["precision"] != BASELINE and (speed := _speed(row))
    ]


def _speed(row: Mapping[str, Any]) -> float | None:
    speed = number(row["speedup_vs_fp32"])
    return speed if speed and math.isfinite(speed) else None


def _chart(choices: Sequence[Choice], rows: Sequence[Mapping[str, Any]]) -> Chart:
    speeds = [row["speed"] for row in rows]
    speed = speed_axis(speeds, "times the speed of fp32 (faster →)")
    longest = max(len(row["kind"]) for row in rows)
    kind = {
        "field": "kind",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 240, "minExtent": 6.4 * min(longest, 32), "grid": True, "labelOverlap": False},
    }
    marks = precision_encoded(row["precision"] for row in rows)
    told = tooltip(network="network", precision="precision", said="speed", error="error", taken="")
    place = {"x": speed, "y": kind}
    unsafe = [{"filter": "!datum.safe"}]
    kinds = Counter(part for part, _ in {(row["part"], row["kind"]) for row in rows})
    return Chart(
        id="ranking-speed",
        title="Speed of each network by its kind, times that of fp32",
        alt="A point that is crossed out is not safe: its errors are beyond the budget, or it does not train.",
        spec={
            "layer": [
                {"mark": {"type": "point", "size": 34, "opacity": 1}, "encoding": {**place, **marks, "tooltip": told}},
                {"mark": {"type": "text", "text": "×", "fontSize": 13}, "transform": unsafe, "encoding": place},
                rule_at("x", 1),
            ]
        },
        dataset="ranking",
        height=_ROW_PIXELS * (max(kinds.values()) + 1),
        choose="part",
        choices=choices,
    )


def faster_said(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in words how many networks are faster where they are safe, and which is the most."""
    safe = [row for row in rows if row["safe"]]
    networks = len({row["network"] for row in rows})
    if not safe:
        return f"Of {counted(networks, 'network')} none is safe in another precision than fp32."
    fastest: dict[str, Mapping[str, Any]] = {}
    for row in safe:
        if row["network"] not in fastest or row["speed"] > fastest[row["network"]]["speed"]:
            fastest[row["network"]] = row
    faster = sum(row["speed"] > 1 for row in fastest.values())
    are = "is" if faster == 1 else "are"
    best = max(fastest.values(), key=lambda row: row["speed"])
    slow = sum(row["speed"] < SLOWEST for row in rows)
    edge = f" {counted(slow, 'point')} below {times(SLOWEST)} at the left edge." if slow else ""
    if not faster:
        return f"Of {counted(networks, 'network')} none is faster than fp32 in a precision that is safe.{edge}"
    return (
        f"Of {counted(networks, 'network')} {faster:,} {are} faster than fp32 in a precision that is safe, most of all "
        f"{best['network']} in {best['precision']} with {best['said']}.{edge}"
    )


MOST_BESIDE = 400
"""A table shows so many rows at most; the rest is in `ampbench show --format csv`."""


def beside(material: Material) -> View | None:
    """Return the view; None unless several machines measured something."""
    shown = [one for one in material.shown if one.rows]
    if len({_place(one) for one in shown}) < 2:
        return None
    found = told_apart([(one.stored, one.rows, one.advice) for one in shown])
    rows = placed(found)
    told = sections(found, [one for one in rows if one.taken], unadvised(rows), found[0].name)
    return View(
        id="machines",
        title="Machines side by side",
        template="beside.html",
        content={
            "told": [{"title": one.title, "blocks": [cut(block, MOST_BESIDE) for block in one.blocks]} for one in told],
            "named": ("precision",),
        },
    )


def _place(shown: Shown) -> tuple[object, ...]:
    """Return what makes a machine another one: versions of torch on one are a matter of trends."""
    environment = shown.stored.header.environment
    devices = tuple(sorted({case.device for case in shown.stored.cases.values()}))
    return environment.host, environment.cpu, environment.threads, devices
