"""Stored records; this module has the types of their fields with bounds: a value outside them is damage.

JSON has finite numbers only.
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**62)]
"""Counts and bytes: integers of JSON are exact up to 64 bits."""
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Change = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""A difference of counts."""
Steps = Annotated[int, Meta(ge=0, le=1_000_000)]
"""Steps of a training, up to the largest number that can be requested."""
RoundCount = Annotated[int, Meta(ge=0, le=100_000)]
"""Numbers of servers and rounds; the largest runs have hundreds."""
Exponent = Annotated[int, Meta(ge=-2000, le=2000)]
"""An exponent of fp64."""

StepSeconds = Annotated[float, Meta(ge=1e-9, le=1e6)]
"""An empty Python function takes 30 ns, and nobody sets a time limit of eleven days."""
Builds = list[Annotated[list[StepSeconds], Meta(min_length=1)]]
"""The samples of each build of a step."""
Samples = Annotated[Builds, Meta(min_length=1)]
"""The samples of at least one build."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
"""Other times, from 0 (below the clock's resolution) to thirty years."""
Share = Annotated[float, Meta(ge=0.0, le=1 + 1e-9)]
"""A share; rounding may bring a sum of shares slightly above 1."""
Cosine = Annotated[float, Meta(ge=-1 - 1e-6, le=1 + 1e-6)]
ErrorSize = Annotated[float, Meta(ge=0.0, le=1e150)]
"""Errors with finite squares."""
KeptShare = Annotated[float, Meta(ge=-1e150, le=1e150)]
"""The share of an update that arrives: negative if it goes the other way."""
Magnitude = Annotated[float, Meta(ge=0.0, le=1e300)]
"""Values with finite sums and differences in fp64; clocks in hertz, load, watts."""
Signed = Annotated[float, Meta(ge=-1e300, le=1e300)]


def one_of(*words: str) -> Meta:
    """Return the bound of a text that must equal one of `words`."""
    return Meta(pattern=rf"^({'|'.join(words)})\Z")


def check_time(name: str, text: str) -> None:
    """Raise `ValueError` unless the field `name` holds a time in ISO 8601."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is no time: {text!r}") from None
