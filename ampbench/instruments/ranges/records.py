"""What a worker is asked for to see how large values are."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RangesAsked:
    """To watch `steps` fp32 steps of a case (0: one for each of its batches), then a step in each of `precisions`."""

    steps: int = 0
    precisions: list[str] = field(default_factory=list)
