"""What an explanation of shapes stores: the output of each module of a case."""

import msgspec

from ampbench.records.bounds import Count


class Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The first tensor that a module at `path` ("": the network itself) gives; `stored_bytes` are those of it."""

    path: str
    module: str
    shape: list[Count]
    dtype: str
    stored_bytes: Count


class ShapesPass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What each module of a case gives, in the order in which they return."""

    case_id: str
    modules: list[Given] = []
