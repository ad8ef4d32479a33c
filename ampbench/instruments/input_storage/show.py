"""Inputs stored in half, for people and as a frame.

Passes of the study of input storage as frames: a row per dtype that inputs are stored in, a row per input.

What a study of input storage found, as blocks of text for a terminal, a Markdown page, anything.

Numbers without a value are "–".
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from ampbench.base.units import UNDEFINED, format_bytes, format_error, format_seconds, format_whole
from ampbench.instruments.cases import document_of_cases, frame_rows
from ampbench.instruments.input_storage.findings import op_said, short_op, situation, storage_said
from ampbench.present.document import Block, Document, Section, as_sentence
from ampbench.records.beside import step_seconds
from ampbench.records.case import Case
from ampbench.records.labels import case_title
from ampbench.records.studies import ACCEPTED, StoragePass, StoredInputs
from ampbench.store import StoredRun

_NUMBERS = (
    "stored_bytes", "copy_seconds", "casts", "cast_bytes", "seconds", "peak_memory_bytes",
    "output_rel_l2", "loss_abs_error", "grad_rel_l2",
)  # fmt: skip
COLUMNS = ["dtype", *_NUMBERS, "identical", "repeatable", "exact", "reason"]


def storage_frame(found: StoragePass) -> pd.DataFrame:
    """Return a row per dtype that the inputs are stored in.

    Columns: dtype; stored_bytes, copy_seconds (the fastest), casts, cast_bytes, seconds (of a step, the median over
    builds), peak_memory_bytes, output_rel_l2, loss_abs_error, grad_rel_l2: NaN where undefined; identical (to the bits
    of fp32 inputs; None: not known), repeatable, exact, reason (why it has no numbers).
    """
    rows = [
        [stored.dtype, stored.stored_bytes, min(stored.copy_samples, default=None), stored.casts,
         stored.cast_bytes, step_seconds(stored.samples), stored.peak_bytes, stored.output_rel_l2,
         stored.loss_abs_error, stored.grad_rel_l2, same, found.repeatable, exact, stored.error]
        for stored, same, exact in ((found.full, found.repeatable, True), (found.low, found.identical, found.exact))
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype(dict.fromkeys(_NUMBERS, float) | {"identical": object})


def uses_frame(found: StoragePass) -> pd.DataFrame:
    """Return a row per floating input: input, operation, module, use, read_in_fp32, situation."""
    rows = [[use.name, use.operation, use.module, use.use, use.read_in_fp32, situation(use)] for use in found.uses]
    return pd.DataFrame(rows, columns=["input", "operation", "module", "use", "read_in_fp32", "situation"])


_WHOLE = ("stored_bytes", "casts", "cast_bytes", "peak_memory_bytes")


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:
    """Return what storing the inputs of the cases `case_ids` in half saved and lost, a flat row for each dtype."""
    return document_of_cases(
        stored, case_ids, stored.of(StoragePass),
        section=lambda case, found: storage_section(case, found, everything=everything),
        data=_data,
        columns=COLUMNS,
        rows=lambda found: frame_rows(storage_frame(found), _WHOLE),
    )  # fmt: skip


def _data(case: Case, found: StoragePass) -> dict[str, Any]:
    return {
        "sentences": storage_said(case, found),
        "tables": {"inputs": frame_rows(uses_frame(found)), "stored": frame_rows(storage_frame(found), _WHOLE)},
        "storage": asdict(found),
    }


_LOSS = "absolute loss error"
_WAYS = {ACCEPTED: "taken as it is"}
"""What stands for a use in tables, where its own word would sound like a verdict."""


def storage_section(case: Case, found: StoragePass, *, everything: bool = False) -> Section:  # noqa: ARG001
    """Return what a study of a case's inputs found, for people; there is no row that is left out."""
    lines = [Block(as_sentence(line)) for line in [*storage_said(case, found), *found.notes]]
    return Section(case_title(case), [*lines, *_uses(found), _beside(found)])


def _uses(found: StoragePass) -> list[Block]:
    cells = [
        [
            use.name,
            op_said(use),
            use.module,
            _WAYS.get(use.use, use.use),
            short_op(use.read_in_fp32) or UNDEFINED,
            situation(use),
        ]
        for use in found.uses
    ]
    headers = ["input", "first op", "module", f"in {found.low.dtype}", "read in fp32 by", "comes to"]
    note = (
        f"in {found.low.dtype}: what the first op does with an input stored so; read in fp32 by: the first op that "
        "does not cast the input to half where it is stored in fp32"
    )
    return [Block("What becomes of each input", headers, cells, note)] if cells else []


def _beside(found: StoragePass) -> Block:
    """Return both ways of storing the inputs side by side, without the columns that neither has a number in."""
    columns: dict[str, Callable[[StoredInputs], str]] = {
        "stored": lambda row: format_bytes(row.stored_bytes),
        "copy": lambda row: format_seconds(min(row.copy_samples, default=None)),
        "casts": lambda row: format_whole(row.casts),
        "moved": lambda row: format_bytes(row.cast_bytes),
        "step": lambda row: format_seconds(step_seconds(row.samples)),
        "peak": lambda row: format_bytes(row.peak_bytes),
        "output error": lambda row: format_error(row.output_rel_l2),
        _LOSS: lambda row: format_error(row.loss_abs_error),
        "gradient error": lambda row: format_error(row.grad_rel_l2),
    }
    rows = [(stored.dtype, [make(stored) for make in columns.values()]) for stored in (found.full, found.low)]
    kept = [place for place in range(len(columns)) if any(cells[place] != UNDEFINED for _, cells in rows)]
    headers = ["inputs in", *(list(columns)[place] for place in kept)]
    kind = "that of the loss absolute, the others relative" if _LOSS in headers else "relative"
    note = f"errors against fp64 with the inputs as given in fp32, {kind}; moved: the bytes that casts read and write"
    shown = [[dtype, *(cells[place] for place in kept)] for dtype, cells in rows]
    return Block("Side by side", headers, shown, note, numbers=headers[1:])
