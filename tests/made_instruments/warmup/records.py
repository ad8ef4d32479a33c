"""What a study of warm-up stores: the first steps of a case, and what a worker is asked for that."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from ampbench.records.bounds import Fraction, Steps, StepSeconds
from ampbench.records.kinds import Before


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The first steps of a case: `samples` are the seconds of each, in their order.

    Every step from `settled` on, counted from 0, takes at most a `tolerance` (0-1) more than the fastest; None: not
    even the last step does.
    """

    case_id: str
    samples: list[StepSeconds]
    tolerance: Fraction
    settled: Annotated[int, Meta(ge=0, le=1000)] | None = None


def wrong_warmup(found: WarmUp, _: Before) -> str:
    """Return what of the first steps of a case cannot be: none at all, or to settle after the last."""
    if not found.samples:
        return f"no step in a warmup of {found.case_id}"
    return f"a warmup of {found.case_id} settles after its end" if (found.settled or 0) >= len(found.samples) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpAsked:
    """To run the first `steps` steps of a case, and to call them settled within a `tolerance` (0-1) of the fastest."""

    steps: Steps
    tolerance: Fraction
