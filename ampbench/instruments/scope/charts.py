"""What entering autocast around less or more than forward and loss costs, on the page.

Its charts are of losses beside fp64's, step by step, and of the memory that is left.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ampbench.base.units import apart, counted, format_bytes, format_error
from ampbench.instruments.scope.findings import comparisons, scope_said
from ampbench.instruments.scope.records import (
    FORWARD,
    FORWARD_AND_LOSS,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopePass,
)
from ampbench.instruments.scope.show import scope_section
from ampbench.present.charts import (
    REFERENCES,
    Chart,
    Choice,
    Drawing,
    Rows,
    curve_layers,
    drawn,
    marked,
    series_encoded,
    steps_axis,
    tooltip,
    values_axis,
)
from ampbench.present.document import Section, as_sentence
from ampbench.present.page import Held, Overview, Part, Told, detail_of, sentences_of, told_part
from ampbench.records.labels import few

LOSSES, MEMORY = "studies-scope-losses", "studies-scope-memory"
_LOOKS: Mapping[str, tuple[str, str]] = {
    **REFERENCES,
    FORWARD: ("--series-1", "square"),
    FORWARD_AND_LOSS: ("--series-2", "triangle-up"),
    WITH_BACKWARD: ("--series-3", "diamond"),
    WHOLE_LOOP: ("--series-4", "triangle-down"),
    UNCACHED_LOOP: ("--series-7", "triangle-right"),
}
"""Colour and shape of each scope, and of fp64: all unlike one another."""
_UNITS: Mapping[str, int] = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}


def _loss_rows(one: Told[ScopePass]) -> list[dict[str, Any]]:
    """Return the loss of each step in fp64 and in each scope, and how far it lies from fp64's, relative to it."""
    rows: list[dict[str, Any]] = []
    exact = one.found.reference_dtype, one.found.reference_losses
    for scope, losses in (exact, *((run.scope, run.losses) for run in one.found.scopes)):
        for place, loss in enumerate(losses):
            reference = one.found.reference_losses[place] if place < len(one.found.reference_losses) else None
            error = abs(loss - reference) / abs(reference) if loss is not None and reference else None
            rows.append({"series": scope, "step": place + 1, "loss": loss, "error": format_error(error), "mark": False})
    marked(rows)
    return rows if any(row["loss"] is not None for row in rows) else []


def _losses_said(one: Told[ScopePass], rows: Rows) -> str:
    parts = [f"{one.name}, loss of each step"]
    for scope in dict.fromkeys(row["series"] for row in rows):
        ends = [row["loss"] for row in rows if row["series"] == scope]
        told = iter(apart(*(loss for loss in (ends[0], ends[-1]) if loss is not None)))
        said = ["not finite" if loss is None else next(told) for loss in (ends[0], ends[-1])]
        parts.append(f"{scope} from {said[0]} to {said[1]}")
    return f"{'; '.join(parts)}."


def _loss_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
    y = values_axis("loss", "training loss", [row["loss"] for row in rows])
    told = tooltip(series="autocast around", step="step", loss="loss", error="distance from the reference's")
    return Chart(
        id=LOSSES,
        title="Loss of each step by scope",
        alt="Where lines lie on one another, scopes do the same within the line's width; a line breaks where a loss is "
        "not finite.",
        spec={"layer": curve_layers(steps_axis(), y, looks, told)},
        dataset=LOSSES,
        height=260,
        choose="case",
        choices=choices,
    )


def _memory_rows(one: Told[ScopePass]) -> list[dict[str, Any]]:
    """Return what each step leaves allocated; nothing where none leaves anything."""
    rows: list[dict[str, Any]] = [
        {"series": run.scope, "step": step, "alive": alive, "said": format_bytes(alive), "mark": False}
        for run in one.found.scopes
        for step, alive in enumerate(run.alive_bytes, start=1)
    ]
    marked(rows)
    return rows if any(row["alive"] > 0 for row in rows) else []


def _memory_said(one: Told[ScopePass], rows: Rows) -> str:
    parts = [f"{one.name}, memory left allocated"]
    nothing = 0
    for scope in dict.fromkeys(row["series"] for row in rows):
        own = [row for row in rows if row["series"] == scope]
        first, last = own[0], own[-1]
        if not any(row["alive"] for row in own):
            nothing += 1
        elif first["alive"] == last["alive"]:
            parts.append(f"{scope} {first['said']} after the first step and after the last")
        else:
            parts.append(f"{scope} {first['said']} after step 1 and {last['said']} after step {last['step']:,}")
    parts += ["the others nothing" if nothing > 1 else "the other nothing"] if nothing else []
    return f"{'; '.join(parts)}."


def _memory_chart(choices: Sequence[Choice], rows: Rows) -> Chart:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
    most = max(row["alive"] for row in rows)
    unit, size = next((unit, size) for unit, size in _UNITS.items() if most >= size)
    y = values_axis("left", f"left after a step, {unit}", [])
    told = tooltip(series="autocast around", step="step", said="left")
    return Chart(
        id=MEMORY,
        title="Memory left after each step",
        alt="Allocated after a step and not before the first: a line that rises is memory that grows with every step.",
        spec={
            "transform": [{"calculate": f"datum.alive / {size}", "as": "left"}],
            "layer": curve_layers(steps_axis(), y, looks, told),
        },
        dataset=MEMORY,
        height=220,
        choose="case",
        choices=choices,
    )


DRAWINGS = (
    Drawing(name=LOSSES, rows=_loss_rows, said=_losses_said, chart=_loss_chart),
    Drawing(name=MEMORY, rows=_memory_rows, said=_memory_said, chart=_memory_chart),
)
"""The charts of the scope of autocast."""


def part(held: Held[ScopePass]) -> Part | None:
    """Return the cases that were trained in several scopes, those first that read stale weights."""
    found = sorted(held.told, key=lambda one: _stale(one.found), reverse=True)
    if not (found or held.untold):
        return None
    charts, datasets, said = drawn(found, *DRAWINGS)
    return told_part(
        found,
        id="scope",
        title="Scope of autocast",
        said=[*_said(found), *held.strangers_said("Trained"), *said],
        detail=lambda one: detail_of(one.name, _section(one), ["Losses"]),
        sentences=lambda one: sentences_of(_section(one)),
        finding=lambda one: next(iter(scope_said(one.case, one.found)), ""),
        overview=Overview(
            caption="What each scope of autocast costs beside the one that PyTorch recommends",
            headers=["scopes"],
            rows=[(one.name, [[as_sentence(line) for line in scope_said(one.case, one.found)]]) for one in found],
            wide={"scopes"},
        ),
        drawn=(charts, datasets),
        untold=held.untold,
    )


def _section(one: Told[ScopePass]) -> Section:
    return scope_section(one.case, one.found, everything=True)


def _stale(found: ScopePass) -> int:
    """Return how many weights the worst scope reads as old copies."""
    return max((row.stale_weights or 0 for row in comparisons(found)), default=0)


def _said(found: Sequence[Told[ScopePass]]) -> list[str]:
    if len(found) < 2:
        return []
    reading = [one for one in found if _stale(one.found)]
    which = f": {few(one.name for one in reading)}" if reading else ""
    return [f"Of {counted(len(found), 'case')}, {len(reading) or 'none'} with a scope that reads stale weights{which}."]
