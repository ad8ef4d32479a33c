"""What devices attain at most: the document of a run.

Numbers without a value are "–".
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ampbench.core.units import (
    UNDEFINED,
    counted,
    format_bandwidth,
    format_flop_rate,
    format_ratio,
    format_share,
)
from ampbench.instruments.ceilings.datasheets import Datasheet, datasheet_of
from ampbench.instruments.ceilings.findings import (
    DTYPES,
    best,
    ceilings_said,
    described,
    ordered,
    rate,
    share,
    shown,
    top,
)
from ampbench.instruments.ceilings.records import FP32, MOVING, OPERATIONS, Attained, Ceiling
from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.measured import CONV, MULTIPLYING
from ampbench.show.charts import Drawing, Rows, limit_layers, series_encoded, tooltip
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, picked, records, table
from ampbench.show.page import (
    Held,
    Part,
    place_of,
    told_part,
)
from ampbench.store import StoredRun

NAMES = dict(zip(OPERATIONS, ("matrix products", "convolutions", "attention", "copies", "reads"), strict=True))


class Size(NamedTuple):
    """A size of a ceiling, None where there is none; of the one that counts, its share of the vendor's peak."""

    found: Ceiling
    one: Attained | None = None
    reached: float | None = None


def _of(get: Callable[[Attained], Any]) -> Callable[[Size], Any]:
    return lambda row: None if row.one is None else get(row.one)


COLUMNS: Sequence[Column[Size]] = (
    Column("device", lambda row: row.found.device),
    Column("operation", lambda row: row.found.operation, "operation"),
    Column("dtype", lambda row: row.found.dtype, "dtype"),
    Column("threads", lambda row: row.found.threads),
    Column("size", _of(lambda one: one.size), "size"),
    Column("library", _of(lambda one: one.library), "library"),
    Column("work", _of(lambda one: one.work)),
    Column("unit", lambda row: "B" if row.found.operation in MOVING else "FLOP"),
    Column("samples", lambda row: len(row.one.samples) if row.one else 0, "samples", "whole"),
    Column("seconds", _of(lambda one: min(one.samples, default=None)), "fastest", "s"),
    Column("per_second", _of(rate), "attained", "FLOP/s", lambda row: _rate_said(row.found, _of(rate)(row))),
    Column("ceiling", lambda row: row.one is not None and row.one is top(row.found)),
    Column("datasheet_share", lambda row: row.reached),
    Column("reason", lambda row: None if row.found.attained else row.found.error),
)
"""Of a size: the library where it is known, the work of one run and its unit, how many samples, the fastest, the rate.

`ceiling` is whether it is the size that counts, `datasheet_share` that one's share of the vendor's peak, `reason` why
there is no size.
"""


def sizes(environment: Environment, ceilings: Sequence[Ceiling]) -> list[Size]:
    """Return a row for each size that was measured, and one for each operation and dtype without any."""
    rows = []
    for found in ceilings:
        reached = share(found, datasheet_of(described(environment, found.device).name))
        rows += [Size(found, one, reached if one is top(found) else None) for one in found.attained]
        rows += [] if found.attained else [Size(found)]
    return rows


def document(
    stored: StoredRun,
    case_ids: Sequence[str],  # noqa: ARG001 - as all documents
    *,
    everything: bool = False,
) -> Document:
    """Return what devices attained in a run, a flat row for each size; it has no cases.

    `everything`: every size, and which were left out. Nested, each ceiling has all its samples and what is derived from
    it.
    """
    environment = stored.header.environment
    return Document(
        sections=lambda: ceilings_sections(environment, stored.every(Ceiling), everything=everything),
        data=lambda: _data(stored),
        columns=[column.key for column in COLUMNS],
        rows=lambda: records(COLUMNS, sizes(environment, stored.every(Ceiling))),
    )


def _data(stored: StoredRun) -> dict[str, Any]:
    environment = stored.header.environment
    types = dict.fromkeys(found.device for found in stored.every(Ceiling))
    devices = {type: described(environment, type) for type in types}
    ceilings = []
    for found in stored.every(Ceiling):
        one = top(found)
        promised = datasheet_of(devices[found.device].name)
        derived = {
            "per_second": None if one is None else rate(one),
            "size": None if one is None else one.size,
            "datasheet_share": share(found, promised),
        }
        ceilings.append(record_data(found) | derived)
    said = {type: ceilings_said(device, stored.every(Ceiling)) for type, device in devices.items()}
    told = {"run": stored.header.run, "environment": record_data(environment), "ended": stored.ending}
    return told | {"sentences": said, "ceilings": ceilings}


def ceilings_sections(
    environment: Environment, ceilings: Sequence[Ceiling], *, everything: bool = False
) -> list[Section]:
    """Return a section about each type of device among `ceilings`; `everything`: with every size."""
    types = dict.fromkeys(one.device for one in ceilings)
    return [ceilings_section(described(environment, type), ceilings, everything=everything) for type in types]


def ceilings_section(device: DeviceDescription, ceilings: Sequence[Ceiling], *, everything: bool = False) -> Section:
    """Return what the ceilings of a device say, a table of them, what was left out; `everything`: every size."""
    own = ordered([one for one in ceilings if one.device == device.type])
    blocks = [Block(as_sentence(line)) for line in ceilings_said(device, own)]
    blocks.append(_table(device, own))
    if everything:
        rows = [Size(found, one) for found in own for one in found.attained]
        keys = ("operation", "dtype", "size", "library", "per_second", "seconds", "samples")
        blocks.append(table("Every size", picked(COLUMNS, *keys), rows))
    for one in own:
        where = f"{one.dtype} {one.operation}"
        lines = [*([one.error] if one.error else []), *(one.notes if everything else [])]
        blocks += [Block(as_sentence(f"{where}: {line}")) for line in lines]
    threads = ", ".join(counted(each, "thread") for each in dict.fromkeys(one.threads for one in own))
    named = [device.type, device.name, *([threads] if device.type == "cpu" else [])]
    return Section(" · ".join(filter(None, named)), blocks)


def _table(device: DeviceDescription, own: Sequence[Ceiling]) -> Block:
    """Return a row for each dtype: what it attains in each operation, over fp32 and of the datasheet's peaks."""
    promised = datasheet_of(device.name)
    kinds = shown(device, own).arithmetic
    found = {(one.operation, one.dtype): one for one in own}
    full = best(own, device.type, FP32)
    told = [operation for operation in OPERATIONS if any(one.operation == operation for one in own)]
    rows = []
    for dtype in dict.fromkeys(one.dtype for one in sorted(own, key=lambda one: _place(one.dtype))):
        cells = {operation: found.get((operation, dtype)) for operation in told}
        reached = best(own, device.type, dtype)
        multiplied, moved = ([cells.get(name) for name in names] for names in (MULTIPLYING, MOVING))
        rows.append(
            [
                dtype,
                kinds.get(dtype, ""),
                *(_attained(cells[operation]) for operation in told if operation in MULTIPLYING),
                format_ratio(reached / full if reached and full else None),
                *(_attained(cells[operation]) for operation in told if operation in MOVING),
                *([_peak_share(multiplied, promised), _peak_share(moved, promised)] if promised else []),
            ]
        )
    headers = ["dtype", "arithmetic", *(NAMES[operation] for operation in told if operation in MULTIPLYING), "to fp32"]
    headers += [NAMES[operation] for operation in told if operation in MOVING]
    headers += ["of peak", "of bandwidth"] if promised else []
    note = "of the best size; of copies and reads, the largest, in main memory"
    return Block("Attained at best", headers, rows, note, numbers=headers[2:])


def _attained(found: Ceiling | None) -> str:
    one = top(found) if found is not None else None
    return UNDEFINED if found is None or one is None else _rate_said(found, rate(one))


def _rate_said(found: Ceiling, value: float | None) -> str:
    return format_bandwidth(value) if found.operation in MOVING else format_flop_rate(value)


def _peak_share(found: Sequence[Ceiling | None], promised: Datasheet) -> str:
    shares = [share(one, promised) for one in found if one is not None]
    return format_share(max((value for value in shares if value is not None), default=None))


def _place(dtype: str) -> int:
    return DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES)


LINEAR = "linear"
"""What the sizes of linear layers begin with."""
_LOOKS: Mapping[str, tuple[str, str]] = {
    "fp32": ("--fp32", "circle"),
    "tf32": ("--tf32", "cross"),
    "bf16": ("--bf16_autocast", "triangle-up"),
    "fp16": ("--fp16_autocast", "square"),
    "fp64": ("--dtype-fp64", "triangle-left"),
}
"""Colour and shape of each dtype: those of the precision that is named after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device of a machine attains: of several ceilings of one operation and dtype the highest.

    Whatever else runs only delays.
    """

    name: str
    device: DeviceDescription
    ceilings: Sequence[Ceiling]


def _rows(device: Ceilings, operations: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return for each operation a row for each size of each dtype, and one for each peak of the datasheet."""
    return {NAMES[operation]: _rows_of(device, operation) for operation in OPERATIONS if operation in operations}


def _rows_of(device: Ceilings, operation: str) -> list[dict[str, Any]]:
    own = [found for found in ordered(device.ceilings) if found.operation == operation]
    rows: list[dict[str, Any]] = [
        {
            "series": found.dtype,
            "work": each.work,
            "rate": reached,
            "said": _rate_said(found, reached),
            "size": each.size,
            "joined": operation != CONV,
            "kind": each.size.partition(" ")[0] if each.size[:1].isalpha() else "",
            "limit": None,
            "text": None,
        }
        for found in own
        for each in sorted(found.attained, key=lambda each: each.work)
        if (reached := rate(each))
    ]
    promised = datasheet_of(device.device.name)
    if promised is None or not rows:
        return rows
    dtypes: dict[float, list[str]] = {}
    for dtype, peak in promised.flops.items():
        if any(row["series"] == dtype for row in rows):
            dtypes.setdefault(peak, []).append(dtype)
    limits = {peak: f"datasheet, {', '.join(names)}: {format_flop_rate(peak)}" for peak, names in dtypes.items()}
    if operation in MOVING:
        limits = {promised.bandwidth: f"datasheet: {format_bandwidth(promised.bandwidth)}"}
    empty = dict.fromkeys(rows[0])
    return rows + [{**empty, "limit": peak, "text": text} for peak, text in limits.items()]


def _spec(rows: Rows, work: str, reached: str) -> dict[str, Any]:
    looks = series_encoded([dtype for dtype in _LOOKS if any(row["series"] == dtype for row in rows)], _LOOKS)
    scale = {"type": "log", "padding": 12, "nice": False}
    x = {
        "field": "work",
        "type": "quantitative",
        "title": f"{work} (log scale)",
        "scale": scale,
        "axis": {"format": "~s", "tickCount": 5, "labelSeparation": 8},
    }
    y = {
        "field": "rate",
        "type": "quantitative",
        "title": f"{reached} (log scale)",
        "scale": scale,
        "axis": {"format": ".2~s", "tickCount": 5, "minExtent": 46},
    }
    points = {
        "transform": [{"filter": "isValid(datum.rate)"}],
        "mark": {"type": "point", "size": 60, "opacity": 1},
        "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip(series="dtype", size="size", said="attained")},
    }
    dashed = {"test": f"datum.kind == '{LINEAR}'", "value": [5, 3]}
    lines = {
        "transform": [{"filter": "datum.joined && isValid(datum.rate)"}],
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": x,
            "y": y,
            "color": looks["color"],
            "detail": {"field": "kind", "type": "nominal"},
            "strokeDash": {"condition": dashed, "value": [1, 0]},
        },
    }
    return {"layer": [points, lines, *limit_layers("y", y)]}


_DRAWINGS = (
    Drawing(
        name="studies-flops",
        title="What the device attains by dtype and size",
        alt="Each point is one size at its fastest. Dashed lines are linear layers as torch multiplies them, the "
        "others products of square matrices.",
        rows=partial(_rows, operations=MULTIPLYING),
        spec=partial(_spec, work="FLOP of one run", reached="FLOP/s"),
        height=280,
    ),
    Drawing(
        name="studies-copies",
        title="Copies by dtype and size",
        alt="Read and written. What is small runs in a cache; the largest tells what main memory attains.",
        rows=partial(_rows, operations=MOVING),
        spec=partial(_spec, work="bytes read and written by one run", reached="bytes/s"),
        height=280,
    ),
)


def part(held: Held[Any]) -> Part | None:
    """Return the devices of which ceilings were measured."""
    return told_part(
        held,
        device_ceilings(held.runs),
        lambda one: ceilings_section(one.device, one.ceilings, everything=True),
        id="ceilings",
        title="Ceilings",
        caption="What each device attains at best",
        first="device",
        drawings=_DRAWINGS,
        folding=["Every size"],
        finding=lambda one: next(iter(ceilings_said(one.device, one.ceilings)), ""),
        what="devices",
    )


def device_ceilings(runs: Iterable[StoredRun]) -> list[Ceilings]:
    """Return the devices with their ceilings that `runs` know, the oldest first; a CPU for each number of threads."""
    highest: dict[tuple[str, str, str, int | None], dict[tuple[str, str], Ceiling]] = {}
    devices: dict[tuple[str, str, str, int | None], DeviceDescription] = {}
    for run in runs:
        for one in run.every(Ceiling):
            key = (*place_of(run), one.device, one.threads if one.device == "cpu" else None)
            devices[key] = described(run.header.environment, one.device)
            own = highest.setdefault(key, {})
            known = own.get((one.operation, one.dtype))
            if known is None or _best_rate(one) >= _best_rate(known):
                own[one.operation, one.dtype] = one
    places = len({key[:2] for key in highest})
    counts = Counter(key[:3] for key in highest)
    found = []
    for key, own in highest.items():
        host, version, device, threads = key
        name = f"{device} of {host}, torch {version}" if places > 1 else device
        name += f", {counted(threads, 'thread')}" if counts[key[:3]] > 1 and threads is not None else ""
        found.append(Ceilings(name=name, device=devices[key], ceilings=list(own.values())))
    return found


def _best_rate(found: Ceiling) -> float:
    attained = top(found)
    return (rate(attained) or 0.0) if attained is not None else 0.0
