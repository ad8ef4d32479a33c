"""What a study of warm-up stores: the first steps of a case, and what a worker is asked for that."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ampbench.records.bounds import Fraction, Steps, StepSeconds


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first steps of a case: `samples` are the seconds of each, in their order.

    Every step from `settled` on, counted from 0, takes at most a `tolerance` (0-1) more than the fastest; None: not
    even the last step does.
    """

    case_id: str
    samples: list[StepSeconds]
    tolerance: Fraction
    settled: Annotated[int, Meta(ge=0, le=1000)] | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` where there is no step, or they settle after the last."""
        if (self.settled or 0) >= len(self.samples):
            raise ValueError("settles after its end")


class WarmUpAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the first `steps` steps of a case, and to call them settled within a `tolerance` (0-1) of the fastest."""

    steps: Steps
    tolerance: Fraction
