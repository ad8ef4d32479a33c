"""Which kernel runs attention: seen in what a profiler recorded, and fixed by torch's own switches.

torch's scaled_dot_product_attention chooses by dtype, shapes, masks and gradients, inside one op of Python. What it
chose stands in the profiler's record as the op that it called; a dispatch mode sees the parts of some kernels alone.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ampbench.errors import AmpbenchError
from ampbench.records.case import Case
from ampbench.records.measured import NATIVE

BACKENDS: Mapping[str, SDPBackend] = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "overrideable": SDPBackend.OVERRIDEABLE,
}
"""What torch calls the backends of `records.case.SDPA`."""

_OPS: Mapping[str, str] = {
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_attention_math_for_mps": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_flash_attention_forward": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_efficient_attention_forward": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_cudnn_attention_forward": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "overrideable",
    "aten::_native_multi_head_attention": NATIVE,
}
"""The ops of forward passes in which attention is computed (native_functions.yaml of torch 2.15), by their kernel."""

_REFUSALS = ("No available kernel", "No viable backend", "Invalid backend")
"""How torch's errors begin where no kernel that is allowed takes the inputs."""
_ABOUT_OTHERS = re.compile(r"not used because:|disabled")
_PLACE = re.compile(r"\s*\(Triggered internally.*", re.DOTALL)

_fixed: list[bool] = [False]


class NoKernelError(AmpbenchError):
    """The one kernel that is allowed does not take the inputs; the message is torch's reason."""


def kernels_in(threads: Iterable[Sequence[Any]]) -> dict[str, int]:
    """Return how often which kernel of attention ran, by the events of the profiler that keeps no Kineto, by thread.

    Of ops within each other, as where autocast calls an op again, the innermost counts.
    """
    found: Counter[str] = Counter()
    for events in threads:
        open_: list[tuple[str, bool]] = []  # of each op that has begun: its kernel, and whether another is within
        for event in events:
            if event.kind() == "push":
                kernel = _OPS.get(event.name(), "")
                if kernel:
                    open_ = [(name, True) for name, _ in open_]
                open_.append((kernel, False))
            elif event.kind() == "pop" and open_:
                kernel, holds = open_.pop()
                if kernel and not holds:
                    found[kernel] += 1
    return dict(found)


@contextmanager
def sdpa_fixed(case: Case) -> Iterator[None]:
    """Let scaled_dot_product_attention run by the case's `sdpa` alone, if it has one, but in fp64 (`sdpa_free`).

    What torch.compile stores on disk is left aside: it is found again whichever kernel is allowed (torch 2.15).
    Raises `NoKernelError` where torch refuses the inputs.
    """
    if not case.sdpa:
        yield
        return
    said: list[str] = []
    before = torch.compiler.config.force_disable_caches
    with warnings.catch_warnings(), sdpa_kernel(BACKENDS[case.sdpa]):
        show = warnings.showwarning

        def heard(message: Warning | str, *where: Any, **rest: Any) -> None:
            said.append(_PLACE.sub("", str(message)))
            show(message, *where, **rest)

        warnings.showwarning = heard
        torch.compiler.config.force_disable_caches = True
        _fixed[0] = True
        try:
            yield
        except RuntimeError as error:
            if not str(error).startswith(_REFUSALS):
                raise
            reasons = [one for one in dict.fromkeys(said) if one and not _ABOUT_OTHERS.search(one)]
            why = "; ".join(reasons) or str(error).partition(".")[0]
            raise NoKernelError(f"{case.device} has no {case.sdpa} attention for this: {why.rstrip('.')}") from error
        finally:
            _fixed[0] = False
            torch.compiler.config.force_disable_caches = before


@contextmanager
def sdpa_free() -> Iterator[None]:
    """Let torch choose among all kernels, as the reference does: where one is fixed, it may have none in fp64."""
    if not _fixed[0]:
        yield
        return
    with sdpa_kernel(list(BACKENDS.values())):
        yield


def unheeded(case: Case, attention: Mapping[str, int] | None) -> str:
    """Return why the case's `sdpa` says nothing of a step in which these kernels ran; "" where it does.

    Of compiled code, in which a kernel may have been taken apart, nothing is said.
    """
    if not case.sdpa or attention is None or attention.keys() == {case.sdpa}:
        return ""
    if others := sorted(attention.keys() - {case.sdpa, NATIVE}):
        ran = " and ".join(others)
        return f"--sdpa {case.sdpa} is not what ran, but {ran}: the network itself says so (torch.nn.attention)"
    if case.sdpa in attention:
        return ""
    if attention:
        return f"--sdpa {case.sdpa} decides nothing: attention runs in torch's fast path of encoder layers"
    return f"--sdpa {case.sdpa} decides nothing: no step calls scaled_dot_product_attention"
