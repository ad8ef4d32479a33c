"""Whether inputs kept in half only save a cast, or lose what an op would have read in fp32, on the page."""

from collections.abc import Sequence

from ampbench.base.units import UNDEFINED, counted, format_bytes, format_error, format_whole
from ampbench.instruments.input_storage.findings import FREE, LOSSY, comes_to, storage_said
from ampbench.instruments.input_storage.records import StoragePass
from ampbench.instruments.input_storage.show import storage_section
from ampbench.present.page import Held, Overview, Part, Told, detail_of, sentences_of, told_part
from ampbench.records.labels import few

BITS = {True: "the same", False: "others", None: "not known"}
"""What becomes of the bits of outputs, loss and gradients."""


def part(held: Held[StoragePass]) -> Part | None:
    """Return the cases that were fed inputs stored in half, those first that lose information by it."""
    found = sorted(held.told, key=lambda one: (comes_to(one.found) != LOSSY, one.found.identical is True))
    if not (found or held.untold):
        return None
    return told_part(
        found,
        id="input-storage",
        title="Inputs stored in half",
        said=[*_said(found), *held.strangers_said("Measured")],
        detail=lambda one: detail_of(one.name, storage_section(one.case, one.found, everything=True)),
        sentences=lambda one: sentences_of(storage_section(one.case, one.found)),
        finding=lambda one: next(iter(storage_said(one.case, one.found)), ""),
        overview=_overview(found),
        untold=held.untold,
    )


def _said(found: Sequence[Told[StoragePass]]) -> list[str]:
    """Return how many cases are in each of the two situations; of one, its own sentences say it."""
    if len(found) < 2:
        return []
    said = []
    for which, what in (
        (LOSSY, "an op reads an input that stays in fp32 under autocast, and is given a rounded one"),
        (FREE, "every op that takes an input casts it to half anyway: only a cast is saved"),
    ):
        if own := [one for one in found if comes_to(one.found) == which]:
            said.append(f"In {counted(len(own), 'case')}, {what}: {few(one.name for one in own)}.")
    return said


def _overview(found: Sequence[Told[StoragePass]]) -> Overview:
    rows = []
    for one in found:
        full, low = one.found.full, one.found.low
        ops = few(f"{use.name}: {use.operation.removeprefix('aten.')}" for use in one.found.uses if use.operation)
        cells = [
            comes_to(one.found),
            ops or UNDEFINED,
            low.dtype,
            _change(format_bytes(full.stored_bytes), format_bytes(low.stored_bytes)),
            _change(*(format_whole(each.casts) for each in (full, low))),
            _change(format_error(full.output_rel_l2), format_error(low.output_rel_l2)),
            low.error or BITS[one.found.identical],
        ]
        rows.append((one.name, cells))
    return Overview(
        caption="The two situations told apart: what inputs stored in half come to, those first that lose by it",
        headers=["comes to", "first op", "in", "stored", "casts", "output error", "bits"],
        rows=rows,
        numbers={"stored", "casts", "output error"},
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
