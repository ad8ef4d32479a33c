"""The canary against products that are rounded on purpose, and against errors counted by hand."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from ampbench.base.precisions import PRECISIONS
from ampbench.measure import machine
from ampbench.measure.divergence import References, fp32_products, measure_divergence
from ampbench.measure.machine import Cpu, rounded_products
from ampbench.records.case import Case
from ampbench.workload import Workload


def to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return fp32 numbers cut to the 10 bits of tf32's mantissa."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bf16": lambda tensor: tensor.bfloat16().float(),
    "fp16": lambda tensor: tensor.half().float(),
    "tf32": to_tf32,
}


@pytest.mark.parametrize("dtype", ROUNDED)
@pytest.mark.parametrize("kind", ["matmul", "conv"])
def test_a_product_whose_factors_are_rounded_is_seen_with_the_dtype(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = getattr(machine, f"_{kind}")
    monkeypatch.setattr(machine, f"_{kind}", lambda factors: product(ROUNDED[dtype](factors)))
    assert rounded_products(Cpu()) == {kind: dtype}


def test_fp32_is_fp32_here_and_autocast_around_it_changes_nothing() -> None:
    assert rounded_products(Cpu()) == {}
    with torch.autocast("cpu", torch.bfloat16):
        assert rounded_products(Cpu()) == {}


ERRORS = """
import torch
from ampbench.measure.machine import rounded_products
from ampbench.measure.machine import Cpu
torch.manual_seed(0)
image, kernel = torch.randn(1, 64, 16, 16), torch.randn(64, 64, 1, 1)
exact = torch.nn.functional.conv2d(image.double(), kernel.double())
error = float((torch.nn.functional.conv2d(image, kernel).double() - exact).norm() / exact.norm())
print(rounded_products(Cpu()).get("conv", ""), error)
"""


@pytest.mark.parametrize("mode", ["STRICT", "BF16"])
def test_what_the_canary_says_of_a_mode_of_onednn_is_what_convolutions_err(mode: str) -> None:
    variables = {**os.environ, "ONEDNN_DEFAULT_FPMATH_MODE": mode}
    done = subprocess.run([sys.executable, "-c", ERRORS], capture_output=True, text=True, check=True, env=variables)
    said, _, error = done.stdout.strip().rpartition(" ")
    assert (said == "bf16") == (float(error) > 1e-4)  # this CPU's kernels may not know the mode
    assert mode == "BF16" or not said


def test_the_divergence_pass_records_it_where_weights_are_fp32(
    case: Callable[..., Case], classifier: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = machine._matmul
    monkeypatch.setattr(machine, "_matmul", lambda factors: product(ROUNDED["bf16"](factors)))
    for name, row in PRECISIONS.items():
        expected = {"matmul": "bf16"} if row.storage == "float32" else None
        assert fp32_products(case(name), Cpu()) == expected
    assert measure_divergence(classifier, case("fp32"), Cpu(), References()).fp32_products == {"matmul": "bf16"}
