"""What a worker is asked for in a study of the scope of autocast."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeAsked:
    """To train a case for `steps` steps in every scope, and to time these for about `seconds`."""

    steps: int
    seconds: float
