"""Hand-made magnitudes, errors and passes, without torch."""

import math
from collections import Counter
from typing import Any

from ampbench.records.ranges import ACTIVATION, LowRun, Magnitudes, ModuleError, RangePass


def values(module: str, *numbers: float, what: str = ACTIVATION, kind: str = "Linear", name: str = "") -> Magnitudes:
    """The magnitudes of `numbers`."""
    finite = [abs(number) for number in numbers if math.isfinite(number)]
    exponents = Counter(math.frexp(number)[1] - 1 for number in finite if number)
    lowest, highest = min(exponents, default=0), max(exponents, default=-1)
    return Magnitudes(
        module=module,
        kind=kind,
        what=what,
        name=name,
        elements=len(numbers),
        zeros=finite.count(0.0),
        nonfinite=len(numbers) - len(finite),
        largest=max(finite, default=None),
        lowest=lowest,
        counts=[exponents[place] for place in range(lowest, highest + 1)],
    )


def error(module: str, own: float | None = 1e-3, elements: int = 100, **fields: Any) -> ModuleError:
    """The error of a module."""
    return ModuleError(module=module, kind=fields.pop("kind", "Linear"), elements=elements, own_rel_l2=own, **fields)


def passed(*magnitudes: Magnitudes, low: LowRun | None = None, **fields: Any) -> RangePass:
    """A pass over one step."""
    low_runs = fields.pop("low_runs", [low] if low is not None else [])
    return RangePass(case_id="case", steps=1, magnitudes=list(magnitudes), low_runs=low_runs, **fields)
