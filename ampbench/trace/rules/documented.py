"""Autocast's rules as documents say them and as the dispatcher has them.

The documents are the vendor's older XPU reference and PyTorch's own page, as data files beside: these hold names as
printed, which here become ops of the dispatcher. The dispatcher's table of which ops have a rule at all is the same on
every build of a torch version.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from ampbench.records.rules import (
    BANNED,
    FLOAT32,
    LOWER,
    PYTORCH_PAGE,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
)

SOURCES = {XPU_REFERENCE: "xpu_amp_op_reference.json", PYTORCH_PAGE: "pytorch_amp_page.json"}
"""Each document's short name and file; its own `source` line tells where it comes from."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "__matmul__": ("aten::matmul",),
    "multi_dot": ("aten::linalg_multi_dot",),
    "GRUCell": ("aten::gru_cell",),
    "LSTMCell": ("aten::lstm_cell",),
    "RNNCell": ("aten::rnn_tanh_cell", "aten::rnn_relu_cell"),
    "__pow__": ("aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor"),
    "__rpow__": ("aten::pow.Scalar",),
    "__rdiv__": ("Tensor.__rtruediv__",),
    "__rtruediv__": ("Tensor.__rtruediv__",),
    "cross_entropy": ("aten::cross_entropy_loss",),
    "grid_sample": ("aten::grid_sampler",),
    "normalize": ("nn.functional.normalize",),
    "softmin": ("nn.functional.softmin",),
    "add": ("aten::add.Tensor",),
}
"""Names of documents that are not the dispatcher's; `__rdiv__` is `__rtruediv__` under an older name."""

_LISTS = {
    "lower_precision": LOWER,
    "float32": FLOAT32,
    "widest": WIDEST,
    "natively_promoting_examples": UNLISTED,
    "banned": BANNED,
}


@cache
def document(source: str) -> Mapping[str, Any]:
    """Return the data file of a document, as it is."""
    text = files(__package__).joinpath(SOURCES[source]).read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


@cache
def documented_ops(source: str, device: str) -> Mapping[str, str] | None:
    """Return each op that `source` names for `device`, with its category; None where it has no lists for the device.

    An op is `aten::name` (all its overloads) or, where the document names one, `aten::name.overload`.
    """
    lists = _lists(source, device)
    if lists is None:
        return None
    return {
        op: category
        for key, category in _LISTS.items()
        for name in lists.get(key, ())
        for op in SPELLINGS.get(name, (f"aten::{name}",))
    }


def documented_category(source: str, device: str, op: str) -> str | None:
    """Return the category that `source` names for an op with its overload, "unlisted" where it does not name the op.

    None where it has no lists for the device.
    """
    named = documented_ops(source, device)
    if named is None:
        return None
    return named.get(op) or named.get(op.partition(".")[0] if op.startswith("aten::") else op) or UNLISTED


def _lists(source: str, device: str) -> Mapping[str, list[str]] | None:
    data = document(source)
    if source == XPU_REFERENCE:
        return data if device == "xpu" else None
    return data["devices"].get(device)  # type: ignore[no-any-return]


NAMESPACE = "aten::"
"""torchvision registers rules of its own when it is imported; a probe must not depend on that."""


def registered_ops(device: str) -> frozenset[str]:
    """Return the names (`aten::conv1d.padding`) of PyTorch's own ops with an autocast kernel for `device`.

    An autocast kernel is a rule: ops without one fall through. Which rule it is, the dispatcher does not tell.
    """
    key = f"Autocast{device.upper()}"
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return frozenset(name for name in _names() if has_kernel(name, key))


def _names() -> list[str]:
    return [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(NAMESPACE)]
