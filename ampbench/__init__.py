"""Benchmark and accuracy-regression harness for PyTorch mixed precision.

Importing this imports neither torch nor pandas: `load`, `Workload` and what needs torch are fetched when first used.

PYTEST_DONT_REWRITE: its plug-in asserts nothing, and pytest would warn where ampbench was imported before it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampbench.errors import (
    AmpbenchError,
    NothingComparableError,
    NothingToRunError,
    StoreError,
    UnknownNameError,
    UsageError,
    WorkloadError,
)

if TYPE_CHECKING:
    from ampbench import explain, study
    from ampbench.comparison import Comparison, compare
    from ampbench.core.precisions import Precision
    from ampbench.judge.frame import load
    from ampbench.live import measure
    from ampbench.result import Findings, Result, open
    from ampbench.study import check
    from ampbench.trace.errors import watch_errors
    from ampbench.trace.keep_fp32 import keep_fp32, release_fp32
    from ampbench.trace.ledger import trace_casts
    from ampbench.trace.nonfinite import find_nonfinite
    from ampbench.watching import watch
    from ampbench.workload import Workload

__version__ = "1.0.0rc1"

__all__ = [
    "AmpbenchError",
    "Comparison",
    "Findings",
    "NothingComparableError",
    "NothingToRunError",
    "Precision",
    "Result",
    "StoreError",
    "UnknownNameError",
    "UsageError",
    "Workload",
    "WorkloadError",
    "__version__",
    "check",
    "compare",
    "explain",
    "find_nonfinite",
    "keep_fp32",
    "load",
    "measure",
    "open",
    "release_fp32",
    "study",
    "trace_casts",
    "watch",
    "watch_errors",
]

_LAZY = {
    "check": "ampbench.study",
    "compare": "ampbench.comparison",
    "Comparison": "ampbench.comparison",
    "Findings": "ampbench.result",
    "find_nonfinite": "ampbench.trace.nonfinite",
    "keep_fp32": "ampbench.trace.keep_fp32",
    "load": "ampbench.judge.frame",
    "measure": "ampbench.live",
    "open": "ampbench.result",
    "Precision": "ampbench.core.precisions",
    "Result": "ampbench.result",
    "release_fp32": "ampbench.trace.keep_fp32",
    "trace_casts": "ampbench.trace.ledger",
    "watch": "ampbench.watching",
    "watch_errors": "ampbench.trace.errors",
    "Workload": "ampbench.workload",
}
_MODULES = ("explain", "study")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"ampbench.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
