"""Ceilings as a frame: a row for each size."""

from collections.abc import Sequence

import pandas as pd

from ampbench.records.environments import Environment
from ampbench.records.studies import COPY, Ceiling
from ampbench.studied.ceilings.datasheets import datasheet_of
from ampbench.studied.ceilings.rates import described, rate, share, top

COLUMNS = (
    "device", "operation", "dtype", "threads", "size", "work", "unit", "samples", "seconds", "per_second", "ceiling",
    "datasheet_share", "reason",
)  # fmt: skip


def ceiling_frame(environment: Environment, ceilings: Sequence[Ceiling]) -> pd.DataFrame:
    """Return a row for each size that was measured, and one for each operation and dtype without any.

    Columns: device, operation, dtype, threads, size, work (FLOPs or bytes of one run) and its unit ("FLOP", "B"),
    samples (how many), seconds (of the fastest), per_second (the rate), ceiling (whether it is the size that counts),
    datasheet_share (of the ceiling in the vendor's peak), reason (why there is none). NaN and None where undefined.
    """
    rows = []
    for found in ceilings:
        known = [found.device, found.operation, found.dtype, found.threads]
        unit = "B" if found.operation == COPY else "FLOP"
        promised = datasheet_of(described(environment, found.device).name)
        for one in found.attained:
            counts = one is top(found)
            reached = share(found, promised) if counts else None
            fastest = min(one.samples, default=None)
            rows.append([*known, one.size, one.work, unit, len(one.samples), fastest, rate(one), counts, reached, None])
        if not found.attained:
            rows.append([*known, None, None, unit, 0, None, None, False, None, found.error])
    frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    return frame.astype(dict.fromkeys(("work", "seconds", "per_second", "datasheet_share"), float))
