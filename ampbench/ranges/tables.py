"""Passes as frames: magnitudes with what they leave of each low format, predictions against what was seen, errors."""

from typing import Any

import pandas as pd

from ampbench.ranges.formats import FORMATS
from ampbench.ranges.headroom import headroom
from ampbench.ranges.profile import layer_profile
from ampbench.ranges.seen import predicted_and_seen
from ampbench.records.ranges import UPDATE, OriginPass, RangePass

_SHARES = ("reach", "overflow", "flushed", "subnormal", "swallowed")
_FITS = [f"{dtype}_{share}" for dtype in FORMATS for share in _SHARES]
HEADROOM_COLUMNS = ["module", "kind", "what", "name", "elements", "zeros", "nonfinite", "largest", *_FITS]
ORIGIN_COLUMNS = [
    "place", "module", "kind", "elements", "own_rel_l2", "total_rel_l2", "inherited", "overflowed", "flushed",
    "inputs_overflowed", "sampled", "note",
]  # fmt: skip


def headroom_frame(found: RangePass) -> pd.DataFrame:
    """Return a row per record of magnitudes: what an fp32 run had, and how it fits into each low format.

    Columns: module, kind, what, name, elements, zeros, nonfinite, largest; then for each dtype, "fp16" and "bf16":
    `fp16_reach` (the largest value over the format's), `fp16_overflow`, `fp16_flushed`, `fp16_subnormal` (shares of
    the finite values) and, of updates, `fp16_swallowed` (the share that changes nothing where the parameter is stored
    in the dtype). NaN where undefined.
    """
    kept = [row for row in found.swallowed if row.moved and row.on_grid]
    lost = {(row.parameter, row.dtype): row.swallowed / row.moved for row in kept}
    rows: list[list[Any]] = []
    for values in found.magnitudes:
        row: list[Any] = [values.module, values.kind, values.what, values.name, values.elements, values.zeros]
        row += [values.nonfinite, values.largest]
        for dtype in FORMATS:
            fits = headroom(values, dtype)
            swallowed = lost.get((values.name, dtype)) if values.what == UPDATE else None
            row += [fits.reach, fits.overflow, fits.flushed, fits.subnormal, swallowed]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=HEADROOM_COLUMNS)
    return frame.astype({"largest": float} | dict.fromkeys(_FITS, float))


def seen_frame(found: RangePass) -> pd.DataFrame:
    """Return a row per low precision and module: what was predicted of it, what was seen.

    Columns: precision, then those of `Outcome` without the shares. `overflow_seen` and `flush_seen` are True,
    False or None.
    """
    rows = [
        [low.precision, one.module, one.kind, one.overflow_predicted, one.overflow_seen, one.flush_predicted,
         one.flush_seen, one.overflow_near, one.flush_near, one.own_rel_l2, one.note]
        for low in found.low_runs
        for one in predicted_and_seen(found, low)
    ]  # fmt: skip
    columns = ["precision", "module", "kind", "overflow_predicted", "overflow_seen", "flush_predicted", "flush_seen"]
    frame = pd.DataFrame(rows, columns=[*columns, "overflow_near", "flush_near", "own_rel_l2", "note"], dtype=object)
    return frame.astype({"own_rel_l2": float})


def origin_frame(found: OriginPass) -> pd.DataFrame:
    """Return a row per module in the order of running: its own, total and inherited error, and what is beside these.

    Columns: place, module, kind, elements, own_rel_l2, total_rel_l2, inherited, overflowed, flushed,
    inputs_overflowed, sampled, note. NaN where an error is undefined.
    """
    rows = [
        [place.place, row.module, row.kind, row.elements, place.own, place.total, place.inherited, row.overflowed,
         row.flushed, row.inputs_overflowed, row.sampled, row.note]
        for place, row in zip(layer_profile(found.modules), found.modules, strict=True)
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=ORIGIN_COLUMNS)
    return frame.astype(dict.fromkeys(["own_rel_l2", "total_rel_l2", "inherited"], float))
