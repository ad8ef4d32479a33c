"""Global switches of torch that decide how a precision computes: set for a case, put back afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ampbench.precisions import Precision


def _switches(tf32: bool) -> list[tuple[Any, str, bool]]:
    """Return what a case needs, (owner, attribute, value).

    Reduced-precision reductions and cuDNN's choices are at torch's documented defaults: what a user gets who changes
    nothing. `cudnn.benchmark` stays off, because it would choose other kernels from one process to the next.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    onednn = [(torch.backends.mkldnn, "allow_tf32", tf32)] if torch.xpu.is_available() else []
    return [
        *onednn,
        (cudnn, "allow_tf32", tf32),
        (matmul, "allow_fp16_reduced_precision_reduction", True),
        (matmul, "allow_bf16_reduced_precision_reduction", True),
        (matmul, "allow_fp16_accumulation", False),
        (cudnn, "enabled", True),
        (cudnn, "benchmark", False),
        (cudnn, "deterministic", False),
    ]


@contextmanager
def precision_flags(precision: Precision | None) -> Iterator[None]:
    """Hold torch's switches at what `precision` needs (None: the reference) and restore them, also after an error.

    tf32 is switched by `set_float32_matmul_precision` and `cudnn.allow_tf32`, the pair that leaves torch's older and
    newer views of the same switches in agreement (setting the newer `fp32_precision` makes reading the older raise).
    """
    tf32 = precision is not None and precision.tf32
    switches = _switches(tf32)
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in switches]
    matmul_before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for owner, name, value in switches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        torch.set_float32_matmul_precision(matmul_before)
