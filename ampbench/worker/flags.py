"""Global switches of torch that decide how a precision computes: set for a case, put back exactly afterwards."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ampbench.precisions import Precision

Place = tuple[str, str]
"""A backend and a kind of product, as torch's own functions for `fp32_precision` take them."""

FP32_PRECISION: dict[Place, str] = {
    ("generic", "all"): "torch.backends.fp32_precision",
    ("cuda", "all"): "torch.backends.cudnn.fp32_precision",
    ("mkldnn", "all"): "torch.backends.mkldnn.fp32_precision",
    ("cuda", "matmul"): "torch.backends.cuda.matmul.fp32_precision",
    ("cuda", "conv"): "torch.backends.cudnn.conv.fp32_precision",
    ("cuda", "rnn"): "torch.backends.cudnn.rnn.fp32_precision",
    ("mkldnn", "matmul"): "torch.backends.mkldnn.matmul.fp32_precision",
    ("mkldnn", "conv"): "torch.backends.mkldnn.conv.fp32_precision",
    ("mkldnn", "rnn"): "torch.backends.mkldnn.rnn.fp32_precision",
}
"""torch's newer switches of the precision of fp32 products, by what a user calls them; "none" asks the one above."""

IMPLIED = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
"""What `torch.set_float32_matmul_precision` sets of these, for matrix products: cuda's and mkldnn's."""


@dataclass(frozen=True, slots=True)
class Products:
    """How products of fp32 numbers are rounded: torch's older switches, and the newer beside them.

    `matmul` is that of `torch.set_float32_matmul_precision`, `cudnn` and `onednn` (None: not in this torch) are the
    backends' `allow_tf32`; `newer` are those of `FP32_PRECISION`.
    """

    matmul: str
    cudnn: bool
    onednn: bool | None
    newer: dict[Place, str]

    @staticmethod
    def now() -> "Products":
        """Return how it is now.

        Each newer switch is read while those above it say "none", so that it tells its own. Reading an older one raises
        where a newer contradicts it: the newer ones are brought into agreement for as long as it is read.
        """
        newer = {}
        for place in FP32_PRECISION:
            newer[place] = torch._C._get_fp32_precision_getter(*place)
            torch._C._set_fp32_precision_setter(*place, "none")
        matmul = torch.get_float32_matmul_precision()
        for op in ("conv", "rnn"):
            torch._C._set_fp32_precision_setter("cuda", op, "tf32")
        cudnn = False
        with contextlib.suppress(RuntimeError):  # it raises where it is off, for they are not
            cudnn = torch.backends.cudnn.allow_tf32
        onednn = bool(torch.backends.mkldnn.allow_tf32) if torch.xpu.is_available() else None
        found = Products(matmul, cudnn, onednn, newer)
        found.set()
        return found

    def set(self) -> None:
        """Make it so: the older switches first, for they set newer ones."""
        torch.set_float32_matmul_precision(self.matmul)
        torch.backends.cudnn.allow_tf32 = self.cudnn
        if self.onednn is not None:
            torch._C._set_onednn_allow_tf32(self.onednn)
        for place, value in self.newer.items():
            torch._C._set_fp32_precision_setter(*place, value)

    def told(self) -> dict[str, str]:
        """Return what is not as torch ships it, by what a user calls it."""
        found = {}
        if self.matmul != "highest":
            found["torch.set_float32_matmul_precision"] = self.matmul
        if not self.cudnn:
            found["torch.backends.cudnn.allow_tf32"] = "False"
        if self.onednn:
            found["torch.backends.mkldnn.allow_tf32"] = "True"
        implied: dict[Place, tuple[str, ...]] = dict.fromkeys(FP32_PRECISION, ("none",))
        for backend, value in zip(("cuda", "mkldnn"), IMPLIED[self.matmul], strict=True):
            implied[backend, "matmul"] = (value, "none") if value == "ieee" else (value,)
        implied["cuda", "conv"] = implied["cuda", "rnn"] = ("tf32",) if self.cudnn else ("none", "ieee")
        return found | {
            FP32_PRECISION[place]: value for place, value in self.newer.items() if value not in implied[place]
        }


def _products(kind: str) -> Products:
    """Return how products are rounded in a precision whose `fp32_products` are of this kind.

    tf32 is switched by `set_float32_matmul_precision` and `cudnn.allow_tf32`, the pair that leaves torch's older and
    newer views of the same switches in agreement.
    """
    matmul = {"tf32": "high", "bf16": "medium"}.get(kind, "highest")
    convolutions = "tf32" if kind in ("tf32", "shipped") else "none"
    newer = dict.fromkeys(FP32_PRECISION, "none")
    newer["cuda", "matmul"], newer["mkldnn", "matmul"] = IMPLIED[matmul]
    newer["cuda", "conv"] = newer["cuda", "rnn"] = convolutions
    if kind == "bf16":
        newer["mkldnn", "conv"] = newer["mkldnn", "rnn"] = "bf16"
    onednn = kind == "tf32" if torch.xpu.is_available() else None
    return Products(matmul, convolutions == "tf32", onednn, newer)


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that says nothing about a precision: `owner` of it, its `name` there, and how torch `ships` it."""

    owner: Any
    called: str
    name: str
    ships: bool

    def now(self) -> Any:
        """Return its value: of reduced-precision reductions with that of split-k, which a bare bool would reset."""
        value = getattr(self.owner, self.name)
        split = getattr(self.owner, f"{self.name}_split_k", None) if self.name.endswith("_reduction") else None
        return value if split is None else (value, split)

    def set(self, value: Any) -> None:
        """Give it a value of `now`."""
        setattr(self.owner, self.name, value)


_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
SWITCHES = (
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_fp16_reduced_precision_reduction", True),
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_bf16_reduced_precision_reduction", True),
    Switch(_MATMUL, "torch.backends.cuda.matmul", "allow_fp16_accumulation", False),
    Switch(_CUDNN, "torch.backends.cudnn", "enabled", True),
    Switch(_CUDNN, "torch.backends.cudnn", "benchmark", False),
    Switch(_CUDNN, "torch.backends.cudnn", "deterministic", False),
)
"""Those that hold in every precision as torch ships them: what a user gets who changes nothing.

`cudnn.benchmark` stays off, because it would choose other kernels from one process to the next.
"""

_kept: list[bool] = [False]


def keep_users_switches(keep: bool) -> None:
    """Let `precision_flags`, from now on in this process, leave to the user what does not define a precision.

    That is all of `SWITCHES`, and in the precision `default` how fp32 products are rounded, too.
    """
    _kept[0] = keep


def users_switches() -> dict[str, str]:
    """Return the switches that are not as torch ships them, with their values, by what a user calls them."""
    found = Products.now().told()
    for switch in SWITCHES:
        value = switch.now()
        if value not in (switch.ships, (switch.ships, True)):
            found[f"{switch.called}.{switch.name}"] = str(value)
    return found


def written(name: str, value: str) -> str:
    """Return a switch of `users_switches` as a user writes it."""
    text = value if value in ("True", "False") or value.startswith("(") else f'"{value}"'
    return f"{name}({text})" if name == "torch.set_float32_matmul_precision" else f"{name} = {text}"


@contextmanager
def precision_flags(precision: Precision | None) -> Iterator[None]:
    """Hold torch's switches at what `precision` needs (None: the reference), and put them back exactly, also after an
    error.

    With `keep_users_switches` only those are held that define the precision.
    """
    kind = "ieee" if precision is None else precision.fp32_products
    products, before = Products.now(), [(switch, switch.now()) for switch in SWITCHES]
    try:
        if not (_kept[0] and kind == "shipped"):
            _products(kind).set()
        for switch in () if _kept[0] else SWITCHES:
            switch.set(switch.ships)
        yield
    finally:
        for switch, value in before:
            switch.set(value)
        products.set()
