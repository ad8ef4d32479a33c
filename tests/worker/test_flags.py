from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampbench.precisions import PRECISIONS
from ampbench.worker.flags import precision_flags


def switches() -> dict[str, Any]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "conv": cudnn.allow_tf32,
        "fp16": matmul.allow_fp16_reduced_precision_reduction,
        "bf16": matmul.allow_bf16_reduced_precision_reduction,
        "benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
        "enabled": cudnn.enabled,
    }


@pytest.fixture
def unusual() -> Callable[[], None]:
    """Switches set to what no precision would set them to, and put back afterwards."""
    before = switches()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("high")
    yield switches()
    torch.backends.cudnn.benchmark = before["benchmark"]
    torch.backends.cudnn.deterministic = before["deterministic"]
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = before["bf16"]
    torch.set_float32_matmul_precision(before["matmul"])


@pytest.mark.parametrize("name", [*PRECISIONS, None])
def test_only_tf32_allows_tf32_and_everything_is_restored(name: str | None, unusual: dict[str, Any]) -> None:
    row = PRECISIONS[name] if name else None
    with precision_flags(row):
        inside = switches()
    allowed = name == "tf32"
    assert inside["matmul"] == ("high" if allowed else "highest")
    assert inside["conv"] is allowed
    assert not inside["benchmark"]
    assert not inside["deterministic"]
    assert inside["bf16"]
    assert switches() == unusual


@pytest.mark.parametrize("name", PRECISIONS)
def test_switches_are_restored_when_the_case_raises(name: str, unusual: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="within"), precision_flags(PRECISIONS[name]):
        raise RuntimeError("within")
    assert switches() == unusual


def test_the_older_and_newer_views_of_tf32_agree() -> None:
    with precision_flags(PRECISIONS["tf32"]):
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    with precision_flags(PRECISIONS["fp32"]):
        assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
