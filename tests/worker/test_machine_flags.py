from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ampbench.core.precisions import FP64, PRECISIONS, Precision
from ampbench.worker.machine import (
    FP32_PRECISION,
    SWITCHES,
    Products,
    precision_flags,
    users_switches,
)

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def as_shipped() -> Iterator[None]:
    """Switches as torch ships them before and after a test, whatever it does."""
    before, others = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    yield
    for switch, value in others:
        switch.set(value)
    before.set()


def newer_api() -> None:
    MATMUL.fp32_precision = "tf32"
    CUDNN.conv.fp32_precision = "ieee"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def newer_api_for_all() -> None:
    torch.backends.fp32_precision = "tf32"


def older_then_newer() -> None:
    torch.set_float32_matmul_precision("medium")
    CUDNN.allow_tf32 = False
    MATMUL.fp32_precision = "ieee"


def older() -> None:
    torch.set_float32_matmul_precision("high")
    CUDNN.allow_tf32 = False


def others() -> None:
    CUDNN.benchmark = True
    CUDNN.deterministic = True
    MATMUL.allow_fp16_accumulation = True
    MATMUL.allow_bf16_reduced_precision_reduction = False


def split_k() -> None:
    MATMUL.allow_bf16_reduced_precision_reduction = (False, False)
    MATMUL.allow_fp16_reduced_precision_reduction = (False, False)


USERS = (lambda: None, older, newer_api, newer_api_for_all, older_then_newer, others, split_k)


def raw() -> tuple[Any, ...]:
    """Return all that torch tells of its switches, and "raises" where reading one does."""

    def asked(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RuntimeError:
            return "raises"

    return (
        asked(torch.get_float32_matmul_precision),
        asked(lambda: MATMUL.allow_tf32),
        asked(lambda: CUDNN.allow_tf32),
        *(torch._C._get_fp32_precision_getter(*place) for place in FP32_PRECISION),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_fp16_accumulation(),
        CUDNN.benchmark,
        CUDNN.deterministic,
        CUDNN.enabled,
    )


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("row", [*PRECISIONS.values(), FP64], ids=lambda row: row.name)
def test_switches_are_put_back_exactly_whatever_a_user_has_set(row: Precision, users: Callable[[], None]) -> None:
    users()
    before = raw()
    with precision_flags(row):
        pass
    assert raw() == before
    with pytest.raises(RuntimeError, match="within"), precision_flags(row):
        raise RuntimeError("within")
    assert raw() == before


@pytest.mark.parametrize("users", USERS)
def test_what_follows_the_switch_above_it_still_does(users: Callable[[], None]) -> None:
    shipped, rest = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    users()
    torch.backends.fp32_precision = "tf32"
    expected = raw()
    shipped.set()
    for switch, value in rest:
        switch.set(value)
    users()
    with precision_flags(PRECISIONS["fp32"]):
        pass
    torch.backends.fp32_precision = "tf32"
    assert raw() == expected


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("row", [*PRECISIONS.values(), FP64], ids=lambda row: row.name)
def test_a_precision_computes_the_same_whatever_a_user_has_set(row: Precision, users: Callable[[], None]) -> None:
    with precision_flags(row):
        expected = raw()
    users()
    with precision_flags(row):
        assert raw() == expected
        assert "raises" not in expected
    kind = row.fp32_products
    matmul, _, convolutions, *_ = expected
    assert matmul == {"tf32": "high", "bf16": "medium"}.get(kind, "highest")
    assert convolutions is (kind in ("tf32", "shipped"))
    assert expected[-6:] == ((True, True), (True, True), False, False, False, True)


def test_the_users_switches_are_told_as_they_are_written() -> None:
    before = users_switches()
    others()
    older()
    assert [switch for switch in users_switches() if switch not in before] == [
        'torch.set_float32_matmul_precision("high")',
        "torch.backends.cudnn.allow_tf32 = False",
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        'torch.backends.cudnn.conv.fp32_precision = "none"',
        'torch.backends.cudnn.rnn.fp32_precision = "none"',
        'torch.backends.mkldnn.matmul.fp32_precision = "tf32"',
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, True)",
        "torch.backends.cuda.matmul.allow_fp16_accumulation = True",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.deterministic = True",
    ]
