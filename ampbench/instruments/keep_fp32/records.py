"""What a worker is asked for in a search for the modules to keep in fp32."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAsked:
    """What a step with the modules `kept` in fp32 errs on the `batch` of this number, as in `Trial`.

    With `updates`, what arrives of an optimizer's step, too. A fresh batch that there is not is a skip.
    """

    kept: list[str] = field(default_factory=list)
    batch: int = 0
    updates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighingAsked:
    """What a step with each set of `kept` modules costs, measured for about `seconds`."""

    kept: list[list[str]]
    seconds: float
