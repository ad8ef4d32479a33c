"""What the numbers and words of stored records may be: types of fields. What lies outside is damage, no measurement.

JSON has no numbers that are not finite, and msgspec refuses what lies outside as it decodes. What must hold between
fields of a record is checked in its `__post_init__`.
"""

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**62)]
"""Also of bytes: JSON's integers are exact up to 64 bits."""
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Change = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""What a change saved, or what is alive after a step and was not before, may be less than nothing."""
Steps = Annotated[int, Meta(ge=0, le=1_000_000)]
"""Of a training, no more than can be asked for."""
RoundCount = Annotated[int, Meta(ge=0, le=100_000)]
"""Servers and rounds are told apart one by one, and a run of the most rounds has hundreds."""
Exponent = Annotated[int, Meta(ge=-2000, le=2000)]
"""Of fp64."""

StepSeconds = Annotated[float, Meta(ge=1e-9, le=1e6)]
"""Calling a Python function that does nothing takes 30 ns, and a time limit of eleven days is set by nobody."""
ShortSeconds = Annotated[float, Meta(ge=0.0, le=1e6)]
"""CPU time of a thread, which the clock may not resolve, or between two readings of a sensor."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
"""Of ops, of rounds, of limits, up to thirty years; an op may take less than the clock resolves."""
Share = Annotated[float, Meta(ge=0.0, le=1 + 1e-9)]
"""Rounding takes sums of shares a little over."""
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
"""As it is given: what running means keep of themselves, or take in."""
Cosine = Annotated[float, Meta(ge=-1 - 1e-6, le=1 + 1e-6)]
ErrorSize = Annotated[float, Meta(ge=0.0, le=1e150)]
"""Errors, whose squares are finite."""
KeptShare = Annotated[float, Meta(ge=-1e150, le=1e150)]
"""What arrives of an update: less than nothing where it goes the other way."""
Magnitude = Annotated[float, Meta(ge=0.0, le=1e300)]
"""Of values in up to fp64, of which sums and differences are finite."""
Signed = Annotated[float, Meta(ge=-1e300, le=1e300)]
Rate = Annotated[float, Meta(ge=0.0, le=1e15)]
"""Clocks in hertz, load."""
Watts = Annotated[float, Meta(ge=0.0, le=1e6)]
"""Of a device; a rack takes a hundred thousand."""
Celsius = Annotated[float, Meta(ge=-273.15, le=1e4)]
Decibels = Annotated[float, Meta(ge=-1e4, le=1e4)]


def one_of(*words: str) -> Meta:
    """Return what a field's text must be: one of these `words`."""
    return Meta(pattern=rf"^({'|'.join(words)})\Z")


def require_parts(record: object, *pairs: tuple[str, str]) -> None:
    """Raise `ValueError` where a field of `record` is more than what it is a part of; each pair names the two."""
    for part, whole in pairs:
        of, all_of = getattr(record, part), getattr(record, whole)
        if of is not None and all_of is not None and of > all_of:
            raise ValueError(f"{part}, {of:,}, are more than {whole}, {all_of:,}")
