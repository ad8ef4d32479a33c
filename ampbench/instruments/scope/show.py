"""Scopes of autocast, for people and as a frame.

Scopes of autocast as frames: a row for each scope, a row for each step and scope.

Scopes of autocast as blocks of text for a terminal, a Markdown page, anything.

Numbers without a value are "–".
"""

from typing import Any

import pandas as pd

from ampbench.base.units import (
    UNDEFINED,
    counted,
    format_bytes,
    format_error,
    format_loss,
    format_seconds,
    format_whole,
)
from ampbench.instruments.scope.findings import RECOMMENDED, Comparison, casts_said, comparisons, scope_said
from ampbench.present.document import Block, Section, as_sentence, first_rows
from ampbench.records.beside import short_ratio
from ampbench.records.case import Case
from ampbench.records.labels import case_title
from ampbench.records.studies import SCOPES, UNCACHED_LOOP, WITH_BACKWARD, ScopePass

_PEAK = "peak_memory_bytes"
_RUN_FIELDS = ("output_rel_l2", "loss_abs_error", "grad_rel_l2")
_OWN_FIELDS = (
    "first_casts", "later_casts", "first_cast_bytes", "later_cast_bytes", "stale_weights", "seconds", "kept_bytes",
    "growth_bytes", "loss_rel_error",
)  # fmt: skip
_TYPED = ("output", "loss", "gradients")
_ENDS = {"": "value", "_low": "low", "_high": "high"}
_NUMBERS = [
    *_OWN_FIELDS,
    _PEAK,
    *(f"ratio{end}" for end in _ENDS),
    *_RUN_FIELDS,
    "update_rel_l2",
    "first_loss",
    "last_loss",
]
COLUMNS = ["scope", "reason", *_NUMBERS, *(f"{what}_dtype" for what in _TYPED)]


def scope_frame(found: ScopePass) -> pd.DataFrame:
    """Return a row per scope: the numbers of its `Comparison` and of its run, NaN where undefined.

    `ratio`, `ratio_low` and `ratio_high` are times against the recommended scope, `first_loss` and `last_loss` those of
    the first and the last step.
    """
    rows: list[dict[str, Any]] = []
    for one in comparisons(found):
        run, ratio = one.run, one.ratio
        row: dict[str, Any] = {"scope": run.scope, "reason": run.error or None}
        row |= {name: getattr(one, name) for name in _OWN_FIELDS} | {_PEAK: one.peak_bytes}
        row |= {f"ratio{end}": ratio and getattr(ratio, name) for end, name in _ENDS.items()}
        row |= {f"{what}_dtype": run.dtypes.get(what) for what in _TYPED}
        row |= {name: getattr(run, name) for name in _RUN_FIELDS} | {"update_rel_l2": run.update_error}
        row |= {
            "first_loss": run.losses[0] if run.losses else None,
            "last_loss": run.losses[-1] if run.losses else None,
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object).astype(dict.fromkeys(_NUMBERS, float))


def loss_frame(found: ScopePass) -> pd.DataFrame:
    """Return a row per step and scope: step (from 1), scope, loss and that of the fp64 step, NaN where undefined."""
    rows = [
        [step, run.scope, loss, found.reference_losses[step - 1] if found.reference_losses else None]
        for run in found.scopes
        for step, loss in enumerate(run.losses, start=1)
    ]
    frame = pd.DataFrame(rows, columns=["step", "scope", "loss", "reference_loss"], dtype=object)
    return frame.astype({"loss": float, "reference_loss": float})


SHOWN = 8
"""The losses of so many steps are shown unless all are asked for."""
_SHORT = {scope: scope for scope in SCOPES} | {WITH_BACKWARD: "with backward", UNCACHED_LOOP: "cache off"}
"""The scopes' names in tables."""


def scope_section(case: Case, found: ScopePass, *, everything: bool = False) -> Section:
    """Return what each scope costs and computes; `everything`: the losses of all steps."""
    rows = comparisons(found)
    running = [row for row in rows if not row.run.error]
    blocks = [Block(as_sentence(line)) for line in scope_said(case, found)]
    if running:
        blocks += [_costs(running), _dtypes(running), _errors(found, running)]
        losses = _losses(found, running)
        blocks.append(losses if everything else first_rows(losses, SHOWN))
    notes = [*found.notes, *(f"{row.run.scope}: {note}" for row in rows for note in row.run.notes)]
    blocks += [Block(as_sentence(note)) for note in notes]
    return Section(f"{case_title(case)} · {counted(found.steps, 'step')}", blocks)


def _costs(rows: list[Comparison]) -> Block:
    """Return what each scope costs."""
    headers = ["scope", "casts", "moved", "step", "time ratio", "peak", "kept", "growth"]
    note = (
        f"per step; with backward: around forward, loss and backward; cache off: around the whole loop, without weight "
        f"cache; moved: by the casts of steps after the first; time ratio: to {RECOMMENDED}; kept: allocated after "
        "the last step and not before the first; growth: what a step adds to that"
    )
    return Block("What it costs", headers, [_cost_cells(row) for row in rows], note, numbers=headers[1:])


def _cost_cells(one: Comparison) -> list[str]:
    run = one.run
    return [
        _SHORT[run.scope],
        casts_said(run.casts) if run.casts else UNDEFINED,
        format_bytes(one.later_cast_bytes),
        format_seconds(one.seconds),
        short_ratio(one.ratio) if one.ratio else "" if run.scope == RECOMMENDED else UNDEFINED,
        format_bytes(one.peak_bytes),
        format_bytes(one.kept_bytes),
        format_bytes(one.growth_bytes),
    ]


def _dtypes(rows: list[Comparison]) -> Block:
    """Return what each scope computes in, and from which weights."""
    headers = ["scope", "output", "loss", "gradients", "stale"]
    cells = [
        [_SHORT[one.run.scope], *(one.run.dtypes.get(what, UNDEFINED) for what in headers[1:4]),
         format_whole(one.stale_weights)]
        for one in rows
    ]  # fmt: skip
    note = "stale: weights that the last step reads as old copies"
    return Block("What it computes in", headers, cells, note, numbers=["stale"])


def _errors(found: ScopePass, rows: list[Comparison]) -> Block:
    """Return how far the numbers of each scope lie from the reference."""
    headers = ["scope", "output", "loss", "gradients", "updates"]
    errors = [(one.run.output_rel_l2, one.loss_rel_error, one.run.grad_rel_l2, one.run.update_error) for one in rows]
    cells = [[_SHORT[one.run.scope], *map(format_error, each)] for one, each in zip(rows, errors, strict=True)]
    note = "of the values of the first step; updates: what all steps changed in the weights"
    title = f"Relative errors against {found.reference_dtype}" if found.reference_dtype else "Relative errors: unknown"
    return Block(title, headers, cells, note, numbers=headers[1:])


def _losses(found: ScopePass, rows: list[Comparison]) -> Block:
    """Return the loss of each step in each scope and in the reference."""
    headers = ["step", found.reference_dtype or "no reference", *(_SHORT[row.run.scope] for row in rows)]
    columns = [found.reference_losses, *(row.run.losses for row in rows)]
    cells = [
        [f"{step + 1}", *(format_loss(losses[step] if step < len(losses) else None) for losses in columns)]
        for step in range(found.steps)
    ]
    note = "–: not finite, or not reached" if any(UNDEFINED in row for row in cells) else ""
    return Block("Losses", headers, cells, note, numbers=headers)
