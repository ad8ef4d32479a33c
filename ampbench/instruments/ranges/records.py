"""What a worker is asked for to see how large values are."""

from dataclasses import dataclass, field

from ampbench.records.bounds import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesAsked:
    """To watch `steps` fp32 steps of a case (0: one for each of its batches), then a step in each of `precisions`."""

    steps: Steps = 0
    precisions: list[str] = field(default_factory=list)
