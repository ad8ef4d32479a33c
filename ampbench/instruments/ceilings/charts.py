"""What devices attain at best, in which dtype, and what of the vendor's promises that is, on the page.

Its charts are of rates over sizes: FLOP/s of what multiplies, bytes per second of copies and reads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampbench.base.units import counted, format_bandwidth, format_flop_rate
from ampbench.instruments.ceilings.datasheets import datasheet_of
from ampbench.instruments.ceilings.findings import ceilings_said, described, ordered, rate, top
from ampbench.instruments.ceilings.records import MOVING, OPERATIONS, Ceiling
from ampbench.instruments.ceilings.show import NAMES, ceilings_section
from ampbench.present.charts import Chart, Choice, Drawing, Rows, drawn, limit_layers, series_encoded, tooltip
from ampbench.present.document import as_sentence
from ampbench.present.page import (
    Detail,
    Held,
    Overview,
    Part,
    cut,
    detail_of,
    place_of,
    sentences_of,
    told_part,
)
from ampbench.records.case import DeviceDescription
from ampbench.records.measured import CONV
from ampbench.store import StoredRun

FLOPS, COPIES = "studies-flops", "studies-copies"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """One operation of a device. `number` counts from 0."""

    number: int
    name: str
    operation: str
    found: Ceilings


def operated(found: Sequence[Ceilings]) -> list[Operated]:
    """Return what can be chosen: each device with each operation that was measured on it."""
    pairs = [
        (one, operation)
        for one in found
        for operation in OPERATIONS
        if any(each.operation == operation and each.attained for each in one.ceilings)
    ]
    return [
        Operated(number=number, name=f"{one.name}: {NAMES[operation]}", operation=operation, found=one)
        for number, (one, operation) in enumerate(pairs)
    ]


def _rows(one: Operated) -> list[dict[str, Any]]:
    """Return a row for each size of each dtype, and one for each peak of the datasheet."""
    own = [each for each in ordered(one.found.ceilings) if each.operation == one.operation]
    told = format_bandwidth if one.operation in MOVING else format_flop_rate
    rows: list[dict[str, Any]] = []
    for found in own:
        for each in sorted(found.attained, key=lambda each: each.work):
            reached = rate(each)
            if reached:
                rows.append(
                    {
                        "series": found.dtype,
                        "work": each.work,
                        "rate": reached,
                        "said": told(reached),
                        "size": each.size,
                        "joined": one.operation != CONV,
                        "kind": each.size.partition(" ")[0] if each.size[:1].isalpha() else "",
                        "mark": True,
                        "limit": None,
                        "text": None,
                    }
                )
    empty = dict.fromkeys(rows[0]) if rows else {}
    return rows + [{**empty, "limit": peak, "text": text} for text, peak in (_peaks(one).items() if rows else ())]


def _peaks(one: Operated) -> dict[str, float]:
    """Return the datasheet's peaks, by what they are called; dtypes that share one share its line."""
    promised = datasheet_of(one.found.device.name)
    if promised is None:
        return {}
    if one.operation in MOVING:
        return {f"datasheet: {format_bandwidth(promised.bandwidth)}": promised.bandwidth}
    measured = {each.dtype for each in one.found.ceilings if each.operation == one.operation and each.attained}
    together: dict[float, list[str]] = {}
    for dtype, peak in promised.flops.items():
        if dtype in measured:
            together.setdefault(peak, []).append(dtype)
    return {f"datasheet, {', '.join(dtypes)}: {format_flop_rate(peak)}": peak for peak, dtypes in together.items()}


def _said(one: Operated, rows: Rows) -> str:  # noqa: ARG001 - as the others
    told = format_bandwidth if one.operation in MOVING else format_flop_rate
    parts = [f"{one.name}, {'the largest size' if one.operation in MOVING else 'at best'}"]
    for found in ordered(one.found.ceilings):
        if found.operation == one.operation and (best := top(found)) is not None:
            parts.append(f"{found.dtype} {told(rate(best))} at {best.size}")
    parts += list(_peaks(one))
    return f"{'; '.join(parts)}."


def _chart(name: str, title: str, alt: str, axes: tuple[str, str], choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded([dtype for dtype in _LOOKS if any(row["series"] == dtype for row in rows)], _LOOKS)
    x = {
        "field": "work",
        "type": "quantitative",
        "title": f"{axes[0]} (log scale)",
        "scale": {"type": "log", "padding": 12, "nice": False},
        "axis": {"format": "~s", "tickCount": 5, "labelSeparation": 8},
    }
    y = {
        "field": "rate",
        "type": "quantitative",
        "title": f"{axes[1]} (log scale)",
        "scale": {"type": "log", "padding": 12, "nice": False},
        "axis": {"format": ".2~s", "tickCount": 5, "minExtent": 46},
    }
    told = tooltip(series="dtype", size="size", said="attained")
    dashed = {"test": f"datum.kind == '{LINEAR}'", "value": [5, 3]}
    lines = {
        "color": looks["color"],
        "detail": {"field": "kind", "type": "nominal"},
        "strokeDash": {"condition": dashed, "value": [1, 0]},
    }
    return Chart(
        id=name,
        title=title,
        alt=alt,
        spec={
            "layer": [
                {
                    "transform": [{"filter": "isValid(datum.rate)"}],
                    "mark": {"type": "point", "size": 60, "opacity": 1},
                    "encoding": {"x": x, "y": y, **looks, "tooltip": told},
                },
                {
                    "transform": [{"filter": "datum.joined && isValid(datum.rate)"}],
                    "mark": {"type": "line", "strokeWidth": 1.5},
                    "encoding": {"x": x, "y": y, **lines},
                },
                *limit_layers("y", y),
            ]
        },
        dataset=name,
        height=280,
        choose="case",
        choices=choices,
    )


def _flops_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    alt = "Each point is one size at its fastest."
    if any(row["kind"] == LINEAR for row in rows):
        alt += " Dashed lines are linear layers as torch multiplies them, the others products of square matrices."
    axes = "FLOP of one run", "FLOP/s"
    return _chart(FLOPS, "What the device attains by dtype and size", alt, axes, choices, rows)


def _copies_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    alt = "Read and written. What is small runs in a cache; the largest tells what main memory attains."
    axes = "bytes read and written by one run", "bytes/s"
    return _chart(COPIES, "Copies by dtype and size", alt, axes, choices, rows)


FLOPS_DRAWING = Drawing(name=FLOPS, rows=_rows, said=_said, chart=_flops_chart)
COPIES_DRAWING = Drawing(name=COPIES, rows=_rows, said=_said, chart=_copies_chart)
"""The charts of those of `operated` that multiply, and of those that copy."""


def part(held: Held[Any]) -> Part | None:
    """Return the devices of which ceilings were measured."""
    found = device_ceilings(held.runs)
    if not found:
        return None
    each = operated(found)
    flops = drawn([one for one in each if one.operation not in MOVING], FLOPS_DRAWING)
    copies = drawn([one for one in each if one.operation in MOVING], COPIES_DRAWING)
    return told_part(
        found,
        id="ceilings",
        title="Ceilings",
        said=[],
        detail=_detail,
        sentences=lambda one: sentences_of(ceilings_section(one.device, one.ceilings)),
        finding=lambda one: next(iter(ceilings_said(one.device, one.ceilings)), ""),
        overview=Overview(
            caption="What each device attains at best",
            headers=["attained"],
            rows=[
                (one.name, [[as_sentence(line) for line in ceilings_said(one.device, one.ceilings)]]) for one in found
            ],
            first="device",
            wide={"attained"},
        ),
        drawn=([*flops[0], *copies[0]], {**flops[1], **copies[1]}),
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
            if known is None or _attained(one) >= _attained(known):
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


def _attained(found: Ceiling) -> float:
    attained = top(found)
    return (rate(attained) or 0.0) if attained is not None else 0.0


def _detail(one: Ceilings) -> Detail:
    """Return what a device attains, with all sizes and what is remarked on them folded."""
    short = ceilings_section(one.device, one.ceilings)
    whole = ceilings_section(one.device, one.ceilings, everything=True)
    more = [block for block in whole.blocks if block not in short.blocks]
    folded = {
        "Every size": [cut(block) for block in more if block.headers],
        "Remarks": [block for block in more if not block.headers],
    }
    told = detail_of(one.name, short)
    return replace(told, folded={title: blocks for title, blocks in folded.items() if blocks})
