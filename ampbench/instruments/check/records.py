"""What a run of checks stores: what a program saw of a defect, and what a worker is asked for that."""

from hashlib import sha256
from typing import Annotated

import msgspec

from ampbench.records.bounds import Seconds, one_of
from ampbench.records.rules import DEVICE, FAKE, NOT_OBSERVED

GOOD, DEFECTIVE, DIFFERS, NOT_SHOWN = OUTCOMES = "good", "defective", "differs", "not shown here"
"""What a check comes to: as it should be; the defect is there; as designed, but a trap; nobody can say here."""


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What the check called `check` came to on a device type: one of `OUTCOMES`.

    `how` it was seen: on the device, by fake tensors that stand in for it, or not at all. `expected` and `seen` are in
    the program's own words, `said` what it wrote besides, `warned` the warnings that it raised, one line each. `why`
    says why nothing could be shown, `cause` is that of the failure (`CAUSES`) where the worker broke. `program` is a
    digest of its code: what others saw by other code is no change of torch. `seconds` is how long it took.
    """

    device: str
    check: str
    outcome: Annotated[str, one_of(*OUTCOMES)]
    how: Annotated[str, one_of(DEVICE, FAKE, NOT_OBSERVED)]
    program: str
    expected: str = ""
    seen: str = ""
    said: list[str] = []
    warned: list[str] = []
    why: str = ""
    cause: str = ""
    seconds: Seconds | None = None


def digest_of(text: str) -> str:
    """Return what tells a program from another: a digest of its code, without the docstring that it begins with."""
    return sha256(text.split('"""', 2)[-1].encode()).hexdigest()[:16]


class CheckAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the program of the check called `check`, whose `text` this is."""

    check: str
    text: str


class ChecksAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """To run the `checks` of these names (none: all but the slow ones), or all of some `areas`."""

    checks: list[str] = []
    areas: list[str] = []
