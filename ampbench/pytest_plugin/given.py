"""What a test gave to `amp_benchmark`, made into a workload that this process, and if possible a server, can build.

PYTEST_DONT_REWRITE
"""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ampbench.errors import WorkloadError
from ampbench.planning import find_sources
from ampbench.records.cases import WorkloadSource

CONTRACT = (
    "amp_benchmark measures a function with defaults for all its parameters that returns (module, inputs), (module, "
    "inputs, loss) or ampbench.Workload, or a workload by its name, as 'ampbench run' takes it"
)
_SERIAL = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A workload to measure.

    `name` finds it in this process, `label` is what cases, and so tables and files, call it: what `ampbench run` would.
    `source` is where another process finds it, None where only this one has it (a closure, a lambda, a method).
    """

    name: str
    label: str
    source: WorkloadSource | None


@contextmanager
def found(workload: Any, item: pytest.Item) -> Iterator[Given]:
    """Find `workload`, what the test `item` gave; a function that only this test has can be found until the end.

    Raises `WorkloadError` for what is no workload, `UnknownNameError` for an unknown name.
    """
    if isinstance(workload, str):
        sources = find_sources(workload)
        if len(sources) != 1:
            raise WorkloadError(
                f"{workload} is {len(sources)} workloads: name one, or mark the test with "
                f"pytest.mark.amp(workloads=[{workload!r}]) and call amp_benchmark() without a workload"
            )
        yield Given(name=workload, label=sources[0].name, source=sources[0])
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(workload, torch.nn.Module):
        raise WorkloadError(f"{type(workload).__name__} is a network without inputs: {CONTRACT}")
    if not callable(workload):
        raise WorkloadError(f"{_shown(workload)} is no workload: {CONTRACT}")
    known = _importable(workload)
    if known is not None:
        yield known
        return
    # no name leads to it: it becomes the one function of a module that lives as long as the test
    function = getattr(workload, "__name__", type(workload).__name__).strip("<>")
    module = ModuleType(f"ampbench_given_{next(_SERIAL)}")
    setattr(module, function, workload)
    sys.modules[module.__name__] = module
    try:
        yield Given(name=f"{module.__name__}:{function}", label=f"{_test(item)}:{function}", source=None)
    finally:
        del sys.modules[module.__name__]


def _importable(function: Any) -> Given | None:
    """Return a function of a module by its name; None for a closure, a lambda, a method, or one that was replaced.

    A package and a module in one are imported by their names, any other by its file, as a test's file is.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if "." in module.__name__ or hasattr(module, "__path__"):
        dotted = f"{module.__name__}:{name}"
        return Given(name=dotted, label=dotted, source=find_sources(dotted)[0])
    path = Path(getattr(module, "__file__", None) or "")
    if path.suffix != ".py" or module.__name__ == "__main__":
        return None
    source = find_sources(f"{path}:{name}")[0]
    return Given(name=f"{module.__name__}:{name}", label=source.name, source=source)


def _test(item: pytest.Item) -> str:
    """Return the test's id without the cell it measures: `a/test_mine.py::TestNets::test_net[big]`.

    The ids of the other parameters stay, whatever their values are: they tell the networks of one test apart.
    """
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    names = ("amp_device", "amp_phase", "amp_precision")
    cell = "-".join(str(parameters[name]) for name in names if name in parameters)
    if item.nodeid.endswith(f"-{cell}]"):
        return f"{item.nodeid.removesuffix(f'-{cell}]')}]"
    return item.nodeid.removesuffix(f"[{cell}]")


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
