"""What scopes of autocast cost: the document of a run.

Numbers without a value are "–".
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ampbench.core.units import UNDEFINED, counted, format_bytes, format_error, format_loss
from ampbench.instruments.scope.findings import RECOMMENDED, Comparison, casts_said, comparisons, scope_said
from ampbench.instruments.scope.records import (
    FORWARD,
    FORWARD_AND_LOSS,
    SCOPES,
    UNCACHED_LOOP,
    WHOLE_LOOP,
    WITH_BACKWARD,
    ScopePass,
)
from ampbench.records.case import Case
from ampbench.show.charts import (
    REFERENCES,
    Drawing,
    Rows,
    curve_layers,
    marked,
    series_encoded,
    steps_axis,
    tooltip,
    values_axis,
)
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, picked, records, table
from ampbench.show.page import Held, Part, Told, of_several, told_part
from ampbench.show.studies import case_title, document_of_cases
from ampbench.store import StoredRun
from ampbench.studies.paired import Ratio, short_ratio

SHOWN = 8
"""The losses of so many steps are shown unless all are asked for."""
_SHORT = {scope: scope for scope in SCOPES} | {WITH_BACKWARD: "with backward", UNCACHED_LOOP: "cache off"}
"""The scopes' names in tables."""


def _casts(one: Comparison) -> str:
    return casts_said(one.run.casts) if one.run.casts else UNDEFINED


def _ratio(one: Comparison) -> str:
    return short_ratio(one.ratio) if one.ratio else "" if one.run.scope == RECOMMENDED else UNDEFINED


def _of(ratio: Ratio | None, end: str) -> float | None:
    return getattr(ratio, end) if ratio else None


COLUMNS: Sequence[Column[Comparison]] = (
    Column("scope", lambda one: one.run.scope, "scope", said=lambda one: _SHORT[one.run.scope]),
    Column("reason", lambda one: one.run.error or None),
    Column("first_casts", lambda one: one.first_casts, "casts", "whole", _casts),
    Column("later_casts", lambda one: one.later_casts),
    Column("first_cast_bytes", lambda one: one.first_cast_bytes),
    Column("later_cast_bytes", lambda one: one.later_cast_bytes, "moved", "B"),
    Column("stale_weights", lambda one: one.stale_weights, "stale", "whole"),
    Column("seconds", lambda one: one.seconds, "step", "s"),
    Column("kept_bytes", lambda one: one.kept_bytes, "kept", "B"),
    Column("growth_bytes", lambda one: one.growth_bytes, "growth", "B"),
    Column("loss_rel_error", lambda one: one.loss_rel_error, "loss", "error"),
    Column("peak_memory_bytes", lambda one: one.peak_bytes, "peak", "B"),
    Column("ratio", lambda one: _of(one.ratio, "value"), "time ratio", "ratio", _ratio),
    Column("ratio_low", lambda one: _of(one.ratio, "low")),
    Column("ratio_high", lambda one: _of(one.ratio, "high")),
    Column("output_rel_l2", lambda one: one.run.output_rel_l2, "output", "error"),
    Column("loss_abs_error", lambda one: one.run.loss_abs_error),
    Column("grad_rel_l2", lambda one: one.run.grad_rel_l2, "gradients", "error"),
    Column("update_rel_l2", lambda one: one.run.update_rel_l2, "updates", "error"),
    Column("first_loss", lambda one: one.run.losses[0] if one.run.losses else None),
    Column("last_loss", lambda one: one.run.losses[-1] if one.run.losses else None),
    Column("output_dtype", lambda one: one.run.dtypes.get("output"), "output"),
    Column("loss_dtype", lambda one: one.run.dtypes.get("loss"), "loss"),
    Column("gradients_dtype", lambda one: one.run.dtypes.get("gradients"), "gradients"),
)
"""Of a scope: its numbers, those of a step in SI units, and what each is beside the recommended scope's."""


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what each scope of autocast did to the cases `case_ids` of a run, a flat row for each scope."""
    return document_of_cases(
        stored, case_ids, stored.of(ScopePass),
        section=lambda case, found: scope_section(case, found, everything=everything),
        data=lambda case, found: {
            "sentences": scope_said(case, found),
            "tables": {"scopes": records(COLUMNS, comparisons(found)), "losses": losses(found)},
            "scope": record_data(found),
        },
        columns=COLUMNS,
        rows=comparisons,
    )  # fmt: skip


def losses(found: ScopePass) -> list[dict[str, Any]]:
    """Return a row per step and scope: step (from 1), scope, loss and that of the reference, None where undefined."""
    return [
        {"step": step, "scope": run.scope, "loss": loss, "reference_loss": _at(found.reference_losses, step - 1)}
        for run in found.scopes
        for step, loss in enumerate(run.losses, start=1)
    ]


def scope_section(case: Case, found: ScopePass, *, everything: bool = False) -> Section:
    """Return what each scope costs and computes; `everything`: the losses of all steps."""
    rows = comparisons(found)
    running = [row for row in rows if not row.run.error]
    blocks = [Block(as_sentence(line)) for line in scope_said(case, found)]
    if running:
        blocks += [_costs(running), _dtypes(running), _errors(found, running), _losses(found, running, everything)]
    notes = [*found.notes, *(f"{row.run.scope}: {note}" for row in rows for note in row.run.notes)]
    blocks += [Block(as_sentence(note)) for note in notes]
    return Section(f"{case_title(case)} · {counted(found.steps, 'step')}", blocks)


def _costs(rows: Sequence[Comparison]) -> Block:
    note = (
        f"per step; with backward: around forward, loss and backward; cache off: around the whole loop, without weight "
        f"cache; moved: by the casts of steps after the first; time ratio: to {RECOMMENDED}; kept: allocated after "
        "the last step and not before the first; growth: what a step adds to that"
    )
    keys = ("scope", "first_casts", "later_cast_bytes", "seconds", "ratio", "peak_memory_bytes", "kept_bytes")
    return table("What it costs", picked(COLUMNS, *keys, "growth_bytes"), rows, note)


def _dtypes(rows: Sequence[Comparison]) -> Block:
    keys = ("scope", "output_dtype", "loss_dtype", "gradients_dtype", "stale_weights")
    return table(
        "What it computes in", picked(COLUMNS, *keys), rows, "stale: weights that the last step reads as old copies"
    )


def _errors(found: ScopePass, rows: Sequence[Comparison]) -> Block:
    title = f"Relative errors against {found.reference_dtype}" if found.reference_dtype else "Relative errors: unknown"
    keys = ("scope", "output_rel_l2", "loss_rel_error", "grad_rel_l2", "update_rel_l2")
    note = "of the values of the first step; updates: what all steps changed in the weights"
    return table(title, picked(COLUMNS, *keys), rows, note)


def _losses(found: ScopePass, rows: Sequence[Comparison], everything: bool) -> Block:
    """Return the loss of each step in the reference and in each scope."""
    told = [(found.reference_dtype or "no reference", found.reference_losses)]
    told += [(_SHORT[row.run.scope], row.run.losses) for row in rows]
    columns: list[Column[int]] = [Column("", lambda step: step + 1, "step", "whole")]
    columns += [Column("", partial(_at, known), head, "loss") for head, known in told]
    undefined = any(format_loss(_at(known, step)) == UNDEFINED for _, known in told for step in range(found.steps))
    note = "–: not finite, or not reached" if undefined else ""
    return table("Losses", columns, range(found.steps), note, shown=None if everything else SHOWN)


def _at(losses: Sequence[float | None], step: int) -> float | None:
    return losses[step] if step < len(losses) else None


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


def _loss_rows(one: Told[ScopePass]) -> dict[str, list[dict[str, Any]]]:
    """Return the loss of each step in fp64 and in each scope, and how far it lies from fp64's, relative to it."""
    rows: list[dict[str, Any]] = []
    exact = one.found.reference_dtype, one.found.reference_losses
    for scope, losses in (exact, *((run.scope, run.losses) for run in one.found.scopes)):
        for place, loss in enumerate(losses):
            reference = _at(one.found.reference_losses, place)
            error = abs(loss - reference) / abs(reference) if loss is not None and reference else None
            rows.append({"series": scope, "step": place + 1, "loss": loss, "error": format_error(error), "mark": False})
    marked(rows)
    return {"": rows} if any(row["loss"] is not None for row in rows) else {}


def _loss_spec(rows: Rows) -> dict[str, Any]:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
    y = values_axis("loss", "training loss", [row["loss"] for row in rows])
    told = tooltip(series="autocast around", step="step", loss="loss", error="distance from the reference's")
    return {"layer": curve_layers(steps_axis(), y, looks, told)}


def _memory_rows(one: Told[ScopePass]) -> dict[str, list[dict[str, Any]]]:
    """Return what each step leaves allocated; nothing where none leaves anything."""
    rows: list[dict[str, Any]] = [
        {"series": run.scope, "step": step, "alive": alive, "said": format_bytes(alive), "mark": False}
        for run in one.found.scopes
        for step, alive in enumerate(run.alive_bytes, start=1)
    ]
    marked(rows)
    return {"": rows} if any(row["alive"] > 0 for row in rows) else {}


def _memory_spec(rows: Rows) -> dict[str, Any]:
    looks = series_encoded(list(dict.fromkeys(row["series"] for row in rows)), _LOOKS)
    most = max(row["alive"] for row in rows)
    unit, size = next((unit, size) for unit, size in _UNITS.items() if most >= size)
    y = values_axis("left", f"left after a step, {unit}", [])
    told = tooltip(series="autocast around", step="step", said="left")
    return {
        "transform": [{"calculate": f"datum.alive / {size}", "as": "left"}],
        "layer": curve_layers(steps_axis(), y, looks, told),
    }


_DRAWINGS = (
    Drawing(
        name="studies-scope-losses",
        title="Loss of each step by scope",
        alt="Where lines lie on one another, scopes do the same within the line's width; a line breaks where a loss is "
        "not finite.",
        rows=_loss_rows,
        spec=_loss_spec,
    ),
    Drawing(
        name="studies-scope-memory",
        title="Memory left after each step",
        alt="Allocated after a step and not before the first: a line that rises is memory that grows with every step.",
        rows=_memory_rows,
        spec=_memory_spec,
        height=220,
    ),
)


def part(held: Held[ScopePass]) -> Part | None:
    """Return the cases that were trained in several scopes, those first that read stale weights."""

    def stale(one: Told[ScopePass]) -> int:
        return max((row.stale_weights or 0 for row in comparisons(one.found)), default=0)

    found = sorted(held.told, key=stale, reverse=True)
    return told_part(
        held,
        found,
        lambda one: scope_section(one.case, one.found, everything=True),
        id="scope",
        title="Scope of autocast",
        caption="What each scope of autocast costs beside the one that PyTorch recommends",
        verb="Trained",
        said=of_several(found, lambda one: stale(one) > 0, "with a scope that reads stale weights"),
        drawings=_DRAWINGS,
        folding=["Losses"],
        finding=lambda one: next(iter(scope_said(one.case, one.found)), ""),
    )
