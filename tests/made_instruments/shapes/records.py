"""What an explanation of shapes stores: the output of each module of a case."""

from dataclasses import dataclass, field

from ampbench.records.bounds import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The first tensor that a module at `path` ("": the network itself) gives; `stored_bytes` are those of it."""

    path: str
    module: str
    shape: list[Count]
    dtype: str
    stored_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesPass:
    """What each module of a case gives, in the order in which they return."""

    case_id: str
    modules: list[Given] = field(default_factory=list)
