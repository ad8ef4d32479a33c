"""What an explanation of shapes stores: the output of each module of a case."""

from dataclasses import dataclass, field
from typing import Annotated

from ampbench.records.kinds import Between


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The first tensor that a module at `path` ("": the network itself) gives; `stored_bytes` are those of it."""

    path: str
    module: str
    shape: Annotated[list[int], Between(0, 2**62)]
    dtype: str
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesPass:
    """What each module of a case gives, in the order in which they return."""

    case_id: str
    modules: list[Given] = field(default_factory=list)
