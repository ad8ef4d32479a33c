"""What storing inputs in half saves and loses: the document of a run.

Numbers without a value are "–".
"""

from collections.abc import Sequence
from typing import NamedTuple

from ampbench.core.units import UNDEFINED
from ampbench.instruments.cases import case_title, document_of_cases
from ampbench.instruments.input_storage.findings import (
    FREE,
    LOSSY,
    comes_to,
    op_said,
    short_op,
    situation,
    storage_said,
)
from ampbench.instruments.input_storage.records import ACCEPTED, InputUse, StoragePass, StoredInputs
from ampbench.instruments.paired import step_seconds
from ampbench.records.case import Case
from ampbench.show.data import record_data
from ampbench.show.document import Block, Column, Document, Section, as_sentence, records, table
from ampbench.show.page import Held, Part, of_several, told_part
from ampbench.store import StoredRun

_WAYS = {ACCEPTED: "taken as it is"}
"""What stands for a use in tables, where its own word would sound like a verdict."""


class Stored(NamedTuple):
    """A way of storing the inputs of a pass, and whether that kept the bits of the step with fp32 inputs."""

    inputs: StoredInputs
    identical: bool | None
    repeatable: bool
    exact: bool


COLUMNS: Sequence[Column[Stored]] = (
    Column("dtype", lambda row: row.inputs.dtype, "inputs in"),
    Column("stored_bytes", lambda row: row.inputs.stored_bytes, "stored", "B", rare=True),
    Column("copy_seconds", lambda row: min(row.inputs.copy_samples, default=None), "copy", "s", rare=True),
    Column("casts", lambda row: row.inputs.casts, "casts", "whole", rare=True),
    Column("cast_bytes", lambda row: row.inputs.cast_bytes, "moved", "B", rare=True),
    Column("seconds", lambda row: step_seconds(row.inputs.samples), "step", "s", rare=True),
    Column("peak_memory_bytes", lambda row: row.inputs.peak_bytes, "peak", "B", rare=True),
    Column("output_rel_l2", lambda row: row.inputs.output_rel_l2, "output error", "error", rare=True),
    Column("loss_abs_error", lambda row: row.inputs.loss_abs_error, "absolute loss error", "error", rare=True),
    Column("grad_rel_l2", lambda row: row.inputs.grad_rel_l2, "gradient error", "error", rare=True),
    Column("identical", lambda row: row.identical),
    Column("repeatable", lambda row: row.repeatable),
    Column("exact", lambda row: row.exact),
    Column("reason", lambda row: row.inputs.error),
)
"""Of a dtype that inputs are stored in: the fastest copy, the casts of a step, the median of a step over builds.

`identical`: to the bits of fp32 inputs (None: not known), `reason`: why it has no numbers.
"""


def stored_ways(found: StoragePass) -> list[Stored]:
    """Return both ways of storing the inputs of a pass, fp32 first."""
    return [
        Stored(found.full, found.repeatable, found.repeatable, exact=True),
        Stored(found.low, found.identical, found.repeatable, found.exact),
    ]


def use_columns(low: str) -> list[Column[InputUse]]:
    """Return the columns of what becomes of an input that is stored in the dtype `low`."""
    return [
        Column("input", lambda use: use.name, "input"),
        Column("operation", lambda use: use.operation, "first op", said=op_said),
        Column("module", lambda use: use.module, "module"),
        Column("use", lambda use: use.use, f"in {low}", said=lambda use: _WAYS.get(use.use, use.use)),
        Column(
            "read_in_fp32", lambda use: use.read_in_fp32, "read in fp32 by",
            said=lambda use: short_op(use.read_in_fp32) or UNDEFINED,
        ),
        Column("situation", situation, "comes to"),
    ]  # fmt: skip


def document(stored: StoredRun, case_ids: Sequence[str], *, everything: bool = False) -> Document:  # noqa: ARG001
    """Return what storing the inputs of the cases `case_ids` in half saved and lost, a flat row for each dtype."""
    return document_of_cases(
        stored, case_ids, stored.of(StoragePass),
        section=storage_section,
        data=lambda case, found: {
            "sentences": storage_said(case, found),
            "tables": {
                "inputs": records(use_columns(found.low.dtype), found.uses),
                "stored": records(COLUMNS, stored_ways(found)),
            },
            "storage": record_data(found),
        },
        columns=COLUMNS,
        rows=stored_ways,
    )  # fmt: skip


def storage_section(case: Case, found: StoragePass) -> Section:
    """Return what a study of a case's inputs found, for people."""
    lines = [Block(as_sentence(line)) for line in [*storage_said(case, found), *found.notes]]
    return Section(case_title(case), [*lines, *_uses(found), _beside(found)])


def _uses(found: StoragePass) -> list[Block]:
    low = found.low.dtype
    note = (
        f"in {low}: what the first op does with an input stored so; read in fp32 by: the first op that does not cast "
        "the input to half where it is stored in fp32"
    )
    return [table("What becomes of each input", use_columns(low), found.uses, note)] if found.uses else []


def _beside(found: StoragePass) -> Block:
    """Return both ways of storing the inputs side by side, without the columns that neither has a number in."""
    rows = stored_ways(found)
    loss = any(row.inputs.loss_abs_error is not None for row in rows)
    kind = "that of the loss absolute, the others relative" if loss else "relative"
    note = f"errors against fp64 with the inputs as given in fp32, {kind}; moved: the bytes that casts read and write"
    return table("Side by side", COLUMNS, rows, note)


def part(held: Held[StoragePass]) -> Part | None:
    """Return the cases that were fed inputs stored in half, those first that lose information by it."""
    found = sorted(held.told, key=lambda one: (comes_to(one.found) != LOSSY, one.found.identical is True))
    return told_part(
        held,
        found,
        lambda one: storage_section(one.case, one.found),
        id="input-storage",
        title="Inputs stored in half",
        caption="What inputs stored in half come to, those first that lose by it",
        verb="Measured",
        said=[
            *of_several(
                found, lambda one: comes_to(one.found) == LOSSY, "with a rounded input for an op that reads it in fp32"
            ),
            *of_several(found, lambda one: comes_to(one.found) == FREE, "where all ops cast the input anyway"),
        ],
        finding=lambda one: next(iter(storage_said(one.case, one.found)), ""),
    )
