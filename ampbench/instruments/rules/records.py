"""What a worker is asked for to see the rules of autocast."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesAsked:
    """To probe autocast to each of `dtypes` ("float16"), for the `ops` as typed or, without any, for all."""

    dtypes: list[str]
    ops: list[str] = field(default_factory=list)
