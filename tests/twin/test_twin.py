"""The numbers of `ampbench run` are those of the same step as `arithmetic.py` computes it, to ten digits."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ampbench
from ampbench.cli.main import main
from tests.twin import networks
from tests.twin.arithmetic import FORMATS, FP64, infer, late, of_outputs, of_training, of_update, train, update

DIGITS = 1e-10
MEASURED = ["--precision", ",".join(FORMATS), "--rounds", "1", "--min-run-time", "0.0001", "--threads", "1"]
QUICK = (networks.convolutions, networks.tokens)
CASES = [make if make in QUICK else pytest.param(make, marks=pytest.mark.slow) for make in networks.NETWORKS]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("make", CASES)
def test_a_twin_has_the_same_numbers(make: networks.Make, tmp_path: Path) -> None:
    assert main(["run", f"{networks.__file__}:{make.__name__}", *MEASURED, "--results", str(tmp_path)]) == 0
    measured = ampbench.load(tmp_path)
    cases = measured[measured.outcome == "ok"]
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
    intended = update(workload, exact.gradients, begin, torch.float64)
    parameters = sum(weight.numel() for weight in workload.module.parameters())
    for name, kind in FORMATS.items():
        own = train(workload, kind)
        moved = update(workload, own.gradients, begin, torch.float32 if kind.master else kind.storage)
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
