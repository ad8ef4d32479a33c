"""The checks: a row each, beside whose name `programs/` has a file with the program.

A program is what a person could paste: it needs torch alone, says what it `expected` and what was `seen`, and prints
both. Where they are equal, or it sets `good`, all is well; where it sets `lacks`, it says why nothing can be shown.
"""

from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from ampbench.instruments.check.row import Check
from ampbench.instruments.check.rows import cache, compile, kernels, rules, scaler, speed

_AREAS = (cache, rules, compile, scaler, kernels, speed)
CHECKS: Mapping[str, Check] = MappingProxyType({row.name: row for area in _AREAS for row in area.ROWS})
"""Every check by its name, in the order in which they are shown."""


def program_of(check: Check, device: str = "cpu") -> str:
    """Return the program of a check for a device, as it can be pasted."""
    file = files("ampbench.instruments.check.programs") / f"{check.name.replace('-', '_')}.py"
    return file.read_text(encoding="utf-8").replace('DEVICE = "cpu"', f'DEVICE = "{device}"', 1)
