"""Which rounds were measured on a machine that was not fit for it, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampbench import stats
from ampbench.comparing.runs import Rounds
from ampbench.records.measurements import OTHER_SHARE, STEAL_SHARE

SLOW_CLOCK = 0.8
"""Share of the run's median clock under which a round is unfit: thermal and power throttling lower clocks by more, and
a clock a fifth lower makes a step by up to a quarter slower, many times the threshold."""

LOAD_PER_CPU = 2.0
"""Load average per CPU from which a round is unfit, where the machine does not tell what others used. Torch's own
threads make a load of about one per CPU."""

UNFIT_SHARE = 0.25
"""Share of unfit blocks above which a case gets no verdict: what is left is then no fair sample of the session."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """Which rounds are unfit: the number of the first cause in `CAUSES` that holds, -1 for none, and its value."""

    cause: stats.Integers
    value: stats.Floats


CAUSES = (
    "the hypervisor gave {:.0%} of the CPU time to other machines",
    "other processes used {:.0%} of the CPU",
    "the load was {:.1f} per CPU",
    "the CPU's clock was at {:.0%} of its usual one",
    "the accelerator's clock was at {:.0%} of its usual one",
)
"""What makes a round unfit, in words, around the value."""


def unfit_rounds(rounds: Rounds, devices: Sequence[str], cpu_count: int | None) -> Unfit:
    """Return which rounds are unfit, and why; `devices` are the types of the run's cases, by owner.

    A clock is compared with its median over the run's rounds on that type of device: the CPU's for what runs on it,
    the accelerator's for the rest.
    """
    on_cpu = np.array([device == "cpu" for device in devices], dtype=bool)[rounds.owners]
    load = np.where(np.isnan(rounds.other), rounds.load / (cpu_count or np.nan), np.nan)
    values = np.array(
        [
            rounds.steal,
            rounds.other,
            load,
            _of_median(np.where(on_cpu, rounds.frequency, np.nan)),
            _of_median(np.where(on_cpu, np.nan, rounds.clock)),
        ]
    )
    limits = (STEAL_SHARE, OTHER_SHARE, LOAD_PER_CPU)
    with np.errstate(invalid="ignore"):
        holds = np.array(
            [*(row > limit for row, limit in zip(values, limits, strict=False)), *(values[3:] < SLOW_CLOCK)]
        )
    cause = np.where(holds.any(axis=0), holds.argmax(axis=0), -1)
    value = np.take_along_axis(values, np.maximum(cause, 0)[None], axis=0)[0]
    return Unfit(cause, value)


def said_of(causes: stats.Integers, values: stats.Floats, blocks: int, what: str) -> str:
    """Return the commonest cause among unfit rounds in words: "other processes used 41% of the CPU in 6 of 8 blocks".

    `causes` and `values` are those of the unfit blocks alone.
    """
    commonest = int(np.bincount(causes).argmax())
    chosen = causes == commonest
    text = CAUSES[commonest].format(float(np.median(values[chosen])))
    return f"{text} in {int(chosen.sum())} of {blocks} {what}"


def _of_median(values: stats.Floats) -> stats.Floats:
    known = values[np.isfinite(values) & (values > 0)]
    return values / np.median(known) if known.size else np.full(len(values), np.nan)
