"""The numbers of `ampbench run` are those of the same step as `arithmetic.py` computes it, to ten digits."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ampbench
from tests.twin import networks
from tests.twin.arithmetic import FORMATS, FP64, infer, late, of_outputs, of_training, of_update, train, update

DIGITS = 1e-10
QUICK = ["--rounds", "1", "--min-run-time", "0.0001", "--threads", "1"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `ampbench run` measures of all networks in every precision and phase: a table with a row a case."""
    results = tmp_path_factory.mktemp("twin")
    names = [f"{networks.__file__}:{make.__name__}" for make in networks.NETWORKS]
    chosen = [*names, "--precision", ",".join(FORMATS), *QUICK, "--results", str(results)]
    command = [sys.executable, "-m", "ampbench", "run", *chosen]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ampbench.load(results)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("make", networks.NETWORKS)
def test_a_twin_has_the_same_numbers(make: networks.Make, measured: Any) -> None:
    cases = measured[measured.workload.str.endswith(f":{make.__name__}") & (measured.outcome == "ok")]
    expected = twin(make(), networks.LOGITS.get(make.__name__))
    assert {(case.phase, case.precision) for case in cases.itertuples()} == expected.keys()
    differing = [
        (case.phase, case.precision, name, getattr(case, name), number)
        for case in cases.itertuples()
        for name, number in expected[case.phase, case.precision].items()
        if not same(getattr(case, name), number)
    ]
    assert not differing


def twin(workload: Any, logits: str | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the columns of every case by phase and precision; `logits` names the output that has classes."""
    found = {}
    exact, fp32 = infer(workload, FP64), infer(workload, FORMATS["fp32"])
    for name, kind in FORMATS.items():
        if not kind.master:
            found["inference", name] = of_outputs(infer(workload, kind), exact, fp32, kind, logits)
    exact, fp32, begin = train(workload, FP64), train(workload, FORMATS["fp32"]), late(workload)
    intended = update(workload, exact.gradients[0], begin, torch.float64)
    parameters = sum(weight.numel() for weight in workload.module.parameters())
    for name, kind in FORMATS.items():
        own = train(workload, kind)
        moved = update(workload, own.gradients[0], begin, torch.float32 if kind.master else kind.storage)
        found["training", name] = {
            **of_outputs(own, exact, fp32, kind, logits),
            **of_training(own, exact),
            **of_update(moved, intended),
            "bytes_per_parameter": own.bytes_kept / parameters,
        }
    return found


def same(stored: Any, number: Any) -> bool:
    """Return whether two cells are the same; a number that is not finite is stored as none."""
    if isinstance(number, str):
        return bool(stored == number)
    if number is None or not math.isfinite(number):
        return stored is None or math.isnan(stored)
    return math.isclose(stored, number, rel_tol=DIGITS)
