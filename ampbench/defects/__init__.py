"""Known defects of mixed precision: one function each, which shows the defect; a decorator makes it a check."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampbench.records.case import DEVICES

CACHE, RULES, COMPILE, SCALER, KERNELS, SPEED = AREAS = "cache", "rules", "compile", "scaler", "kernels", "speed"
"""What a check is about: autocast's cache of casts; which op runs in which dtype; torch.compile and export; GradScaler
and optimizers; kernels of half precision; what it costs. Each is a module of this package."""
TRAINING, INFERENCE = "training", "inference"
"""The phases that a defect affects."""
CPU_ALONE, CPU_CUDA, ACCELERATORS = ("cpu",), ("cpu", "cuda"), DEVICES[1:]
"""Devices of checks."""

Answer = tuple[str, str] | tuple[str, str, bool]
"""Expected and seen: short texts about the same thing, equal without the defect; optionally, whether all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: `title` is the defect in a sentence, `threads` are its reports, as "owner/repo#number".

    `why` says why what its program expects is right. Where it sees something else, that is a defect or, with
    `by_design`, differs from what one may expect. `matters` says for what, `remedy` what to do about it, `mended` since
    which torch it is ("": it is not, or nobody knows).

    It is for `devices`; `fake`, for those of them that are not here, by fake tensors: only where these are known to
    answer truly. `compiler` says that it needs a C++ compiler, `slow` that it takes more than two seconds, `timed` that
    it goes by times, so that other work on the machine may change its outcome. An error of the type `raises` that ends
    the program is what it sees; any other shows nothing.

    A case that fails with a message in which `error`, a regular expression, is found, or of whose trace an op of `ops`
    ("layer_norm") has a tensor of `dtype` ("": any), is pointed to it.
    """

    name: str
    area: str
    title: str
    why: str
    remedy: str
    threads: tuple[str, ...]
    mended: str = ""
    matters: tuple[str, ...] = (TRAINING, INFERENCE)
    by_design: bool = False
    devices: tuple[str, ...] = DEVICES
    fake: bool = False
    compiler: bool = False
    slow: bool = False
    timed: bool = False
    raises: type[Exception] | None = None
    error: str = ""
    ops: tuple[str, ...] = ()
    dtype: str = ""


def defect(*threads: str, **facts: Any) -> Callable[[Callable[[str], Answer]], Check]:
    """Make a check of a function of a device type; `facts` are fields of `Check`.

    The function's docstring has the title, then remarks on the program if any, then "Why: " and "Remedy: ". A thread
    without a repository ("#112583") is one of PyTorch's.
    """

    def check_of(function: Callable[[str], Answer]) -> Check:
        title, _, text = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        why, _, remedy = text.partition("Why: ")[2].partition("\nRemedy: ")
        title, why, remedy = (" ".join(part.split()).removesuffix(".") for part in (title, why, remedy))
        return Check(
            name=function.__name__.replace("_", "-"),
            area=function.__module__.rpartition(".")[2],
            title=title,
            why=why,
            remedy=remedy,
            threads=tuple(f"pytorch/pytorch{thread}" if thread.startswith("#") else thread for thread in threads),
            **facts,
        )

    return check_of
