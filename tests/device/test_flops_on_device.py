"""Counts of operations on an accelerator, whose libraries have kernels of their own."""

from pathlib import Path

import pytest
import torch

import ampbench
from ampbench.cli.main import main
from ampbench.judge.notes import CEILING_REACHED
from ampbench.trace.dtypes import short_dtype
from ampbench.worker.memory import count_flops


def networks() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    return {
        "gru": (torch.nn.GRU(32, 64, 2, batch_first=True), torch.randn(4, 10, 32)),
        "lstm": (torch.nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True), torch.randn(4, 10, 32)),
        "convolution": (torch.nn.Conv2d(8, 16, 3, groups=4), torch.randn(2, 8, 12, 12)),
        "attention": (torch.nn.MultiheadAttention(32, 4, batch_first=True), torch.randn(4, 10, 32)),
    }


def counted(name: str, dtype: torch.dtype | None, device: str) -> dict[str, int]:
    module, given = (one.to(device) for one in networks()[name])
    arguments = (given, given, given) if name == "attention" else (given,)

    def run() -> None:
        with torch.no_grad(), torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            module(*arguments)

    return count_flops(run)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", networks())
def test_a_network_asks_for_as_much_on_the_accelerator_as_on_the_cpu(
    device: str, name: str, dtype: torch.dtype | None
) -> None:
    expected = counted(name, None, "cpu")["fp32"]  # in fp32: oneDNN has no LSTM in fp16
    assert expected
    assert counted(name, dtype, device) == {short_dtype(dtype or torch.float32): expected}


def test_no_case_attains_more_than_the_ceilings(device: str, tmp_path: Path) -> None:
    assert main(["study", "ceilings", "--device", device, "--seconds", "1", "--results", str(tmp_path)]) == 0
    workloads = ["simple_conv", "mlp", "transformer_encoder"]
    asked = ["--phase", "inference", "--precision", "fp32,bf16_autocast,fp16_autocast", "--budget", "1"]
    assert main(["run", *workloads, *asked, "--device", device, "--results", str(tmp_path)]) in (0, 3)
    frame = ampbench.load(tmp_path)
    measured = frame[frame.outcome == "ok"]
    assert (measured.flops_per_step > 0).all()
    shares = measured.set_index("case_id").ceiling_share
    assert shares.notna().all()
    assert shares[shares > CEILING_REACHED].to_dict() == {}
