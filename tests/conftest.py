"""What every test may rely on, and what none may leave behind."""

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ampbench.drive import servers
from ampbench.drive.servers import start_server
from tests.forked_servers import Template, measure_cpu_once

with contextlib.suppress(ModuleNotFoundError):  # of the dev group, without which the tests that need it are skipped
    import hypothesis
    from hypothesis.internal.conjecture import providers

    # An example may be the first to import scipy, or wait for a busy machine: that is no failure.
    hypothesis.settings.register_profile("untimed", deadline=None, max_examples=50)
    hypothesis.settings.load_profile("untimed")
    # Looking for constants in the 500 modules of this repository takes each process three seconds, to no test's gain.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session", autouse=True)
def _forked_servers() -> Iterator[None]:
    """Have the servers of all tests of this process forked, which spares each the import of torch."""
    if environment := sys.modules.get("ampbench.worker.environment"):
        measure_cpu_once(environment)
    template = Template()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "start_server", template.start)
        yield
    template.close()


@pytest.fixture
def started_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the servers of a test started as ampbench starts them."""
    monkeypatch.setattr(servers, "start_server", start_server)


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves this process in another state than it found it, and say what it leaves.

    Being the first fixture of a test, it looks again when all others are undone.
    """
    before = state_of_process()
    yield
    left = left_behind(before, state_of_process())
    assert not left, f"this test leaves behind what others then meet: {'; '.join(left)}"


@pytest.fixture(autouse=True, scope="module")
def _freed_memory_given_back() -> Iterator[None]:
    """Give back to the system what the tests of a file freed, so that a process has not room for all of their peaks.

    glibc keeps freed blocks of up to 32 MiB and, once a test has served requests in this process as a worker does, all.
    """
    yield
    passed_over_by_collections()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


LONGEST = ("tests/net/", "tests/documented/", "tests/twin/", "tests/workloads/")
"""The folders whose files take longest: they come first, so that no process works alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    passed_over_by_collections()


def pytest_unconfigure() -> None:
    """Let this process end as others do: what is kept from collection, libraries report as leaked."""
    gc.unfreeze()


def passed_over_by_collections() -> None:
    """Have collections of garbage, one in every cell, pass over what lives now: of torch, these are 300,000 objects."""
    gc.collect()
    gc.freeze()


FRESH: Mapping[str, Any] = {
    "default dtype": "torch.float32", "default device": "cpu", "gradients": True, "inference mode": False,
    "anomaly mode": False, "deterministic": False, "matrix products": "highest", "autocast": [False, False],
    "autocast's cache": True, "function modes": 0, "dispatch modes": 0, "saved tensors' hooks": False,
}  # fmt: skip
"""What torch begins with, for the test that is the first to import it."""


SET_BY_OTHERS = (
    "PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "RAY_CLIENT_MODE",
)  # fmt: skip
"""Environment variables that pytest and torch's compiler set as they work, scikit-learn and Ray as imported."""


def state_of_process() -> dict[str, Any]:
    """Return what tests share of this process; of torch, only where it is imported."""
    state: dict[str, Any] = {f"variable {name}": value for name, value in os.environ.items()}
    for name in SET_BY_OTHERS:
        state.pop(f"variable {name}", None)
    state |= {f"handler of {number!r}": signal.getsignal(number) for number in signal.valid_signals()}
    try:
        state["current folder"] = os.getcwd()  # noqa: PTH109 - Path.cwd does the same, and imports more
    except OSError:
        state["current folder"] = "one that was removed"
    state["garbage collection"] = gc.isenabled()
    if precisions := sys.modules.get("ampbench.core.precisions"):
        state["users' precisions"] = [name for name in precisions.PRECISIONS if name not in precisions.BUILT_IN]
    torch = sys.modules.get("torch")
    modules = sys.modules.get("torch.nn.modules.module")
    overrides, dispatch = sys.modules.get("torch.overrides"), sys.modules.get("torch.utils._python_dispatch")
    if torch is None or modules is None or overrides is None or dispatch is None:
        return state
    hooks = {name: value for name, value in vars(modules).items() if name.startswith("_global_")}
    state |= {f"hooks of all modules ({name})": repr(value) for name, value in hooks.items() if value}
    return state | {
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matrix products": torch.get_float32_matmul_precision(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "autocast's dtypes": [str(torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")],
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "function modes": len(overrides._get_current_function_mode_stack()),
        "dispatch modes": len(dispatch._get_current_dispatch_mode_stack()),
        "saved tensors' hooks": torch._C._autograd._top_saved_tensors_default_hooks(False) is not None,
    }


def left_behind(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what is no longer as it was before a test, or as torch begins with where the test imported it."""
    imported = "gradients" in after and "gradients" not in before
    was = {**FRESH, **before} if imported else before
    passed_over = {"threads", "autocast's dtypes"} if imported else set()
    was = {"users' precisions": [], **was}
    after = {"users' precisions": [], **after}
    return [
        f"{name}: {was.get(name, 'not there')} became {after.get(name, 'gone')}"
        for name in sorted(was.keys() | after.keys())
        if name not in passed_over and was.get(name) != after.get(name)
    ]
