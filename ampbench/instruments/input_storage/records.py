"""What a worker is asked for in a study of how inputs are stored."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAsked:
    """To measure a case fed inputs stored in half for about `seconds`."""

    seconds: float
