"""A row of the catalogue of checks: what there is to say of a check besides its program."""

from dataclasses import dataclass

from ampbench.instruments.check.records import DEFECTIVE, DIFFERS
from ampbench.records.case import DEVICES

CACHE, RULES, COMPILE, SCALER, KERNELS, SPEED = AREAS = "cache", "rules", "compile", "scaler", "kernels", "speed"
"""What a check is about: autocast's cache of casts; which op runs in which dtype; torch.compile and export; GradScaler
and optimizers; kernels of half precision; what it costs."""
TRAINING, INFERENCE = "training", "inference"
"""What a defect matters for."""
ANY, CPU_ALONE, CPU_CUDA, ACCELERATORS = DEVICES, ("cpu",), ("cpu", "cuda"), DEVICES[1:]
"""Devices of checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check: `title` is the defect in a sentence, `threads` are where it was told of, as "owner/repo#number".

    `why` says why what the program expects is right. Where it sees something else, that is a defect or, with
    `by_design`, differs from what one may expect. `matters` says for what, `remedy` what to do about it, `mended` since
    when it is ("": it is not, or nobody knows).

    It is for `devices`; `fake`, for those of them that are not here, by fake tensors: only where these are known to
    answer truly. `compiler` says that it needs a C++ compiler, `slow` that it takes more than two seconds, `timed` that
    it goes by times, so that other work on the machine may change what it comes to.

    A case that fails with a message in which `error`, a regular expression, is found, or of whose trace an op of `ops`
    ("layer_norm") has a tensor of `dtype` ("": any), is pointed to it.
    """

    name: str
    area: str
    title: str
    threads: tuple[str, ...]
    why: str
    remedy: str
    mended: str = ""
    matters: tuple[str, ...] = (TRAINING, INFERENCE)
    by_design: bool = False
    devices: tuple[str, ...] = ANY
    fake: bool = False
    compiler: bool = False
    slow: bool = False
    timed: bool = False
    error: str = ""
    ops: tuple[str, ...] = ()
    dtype: str = ""

    @property
    def otherwise(self) -> str:
        """What it comes to where what is seen is not what is expected."""
        return DIFFERS if self.by_design else DEFECTIVE
