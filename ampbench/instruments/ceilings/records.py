"""What a worker is asked for in a study of ceilings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingAsked:
    """What a device attains with an `operation` in a `dtype`, as in `Ceiling`, measured for about `seconds`."""

    operation: str
    dtype: str
    seconds: float
