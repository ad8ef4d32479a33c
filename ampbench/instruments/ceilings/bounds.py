"""How long a step takes at least on a device whose ceilings are known, and what binds it.

time ≥ max(Σ FLOPs of an operation in a dtype / its ceiling, least bytes / bandwidth). The sum is over matrix products,
convolutions and attention, each at the most FLOP/s that it attained in any size; one device does one after the other.
FLOPs are those that no kernel can leave out, bytes those that any step must move (`records.measured.MemoryPass`), at
the bandwidth of the cache that they fit (`findings.bandwidth_of`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ampbench.instruments.ceilings.findings import bandwidth_of, ceiling_rate, highest
from ampbench.instruments.ceilings.records import Ceiling
from ampbench.records.measured import ATTENTION, CONV, MATMUL, MemoryPass

MEMORY = "memory"
BINDING = {MATMUL: "products", CONV: "convolutions", ATTENTION: "attention"}
"""What binds a step, by the operation that takes most of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How long a step takes at least: the `seconds` of each operation and dtype, and those that its bytes take.

    `memory_seconds` is None where nothing is claimed: bytes were not counted, or bandwidth was not measured for so few.
    `lacking` are the operations and dtypes of which there is no ceiling: with any, nothing is bounded.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    memory_seconds: float | None = None
    lacking: list[tuple[str, str]] = field(default_factory=list)
    used: list[Ceiling] = field(default_factory=list)

    @property
    def least(self) -> float | None:
        """The least seconds of a step; None where they are not known."""
        if self.lacking:
            return None
        return max(sum(self.seconds.values()), self.memory_seconds or 0.0) or None

    @property
    def binds(self) -> str | None:
        """What binds, in a word: memory, or the operation that takes most of the arithmetic's time."""
        least = self.least
        if least is None:
            return None
        if self.memory_seconds is not None and self.memory_seconds >= least:
            return MEMORY
        by_operation: dict[str, float] = {}
        for (operation, _), seconds in self.seconds.items():
            by_operation[operation] = by_operation.get(operation, 0.0) + seconds
        return BINDING[max(by_operation, key=lambda operation: by_operation[operation])]


class Bounds:
    """The bounds of the cases of a run, of its `ceilings`: each is looked up once."""

    def __init__(self, ceilings: Iterable[Ceiling]):
        self._ceilings = list(ceilings)
        self._highest: dict[tuple[str, str, str], Ceiling | None] = {}

    def of(self, memory: MemoryPass | None, device: str) -> Bound:
        """Return what bounds a step of which `memory` was measured on a type of device; nothing without work."""
        if memory is None or memory.flops_by_operation is None:
            return Bound()
        seconds: dict[tuple[str, str], float] = {}
        lacking, used = list[tuple[str, str]](), list[Ceiling]()
        for (operation, dtype), flops in work_of(memory).items():
            found = self._ceiling(device, dtype, operation)
            rate = None if found is None else ceiling_rate(found)
            if found is None or not rate:
                lacking.append((operation, dtype))
            else:
                seconds[operation, dtype] = flops / rate
                used.append(found)
        moved = memory.least_bytes
        bandwidth = bandwidth_of(self._ceilings, device, moved) if moved else None
        return Bound(
            seconds=seconds,
            memory_seconds=moved / bandwidth if moved and bandwidth else None,
            lacking=lacking,
            used=used,
        )

    def _ceiling(self, device: str, dtype: str, operation: str) -> Ceiling | None:
        key = device, dtype, operation
        if key not in self._highest:
            self._highest[key] = highest(self._ceilings, device, dtype, operation)
        return self._highest[key]


def work_of(memory: MemoryPass) -> dict[tuple[str, str], int]:
    """Return the FLOPs that a step must do by operation and dtype."""
    by_operation = (memory.flops_by_operation or {}).items()
    return {(operation, dtype): count for operation, counts in by_operation for dtype, count in counts.items()}
