"""Autocast's rules as documents say them and as the dispatcher has them, and the documents' other claims, each tried.

The documents are the vendor's older XPU reference and PyTorch's own page, as data files beside: these hold names as
printed, which here become ops of the dispatcher. The dispatcher's table of which ops have a rule at all is the same on
every build of a torch version. The other claims are of spelling, default dtypes, what inference and training support.
"""

import json
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from ampbench.errors import first_line
from ampbench.records.rules import (
    BANNED,
    DEVICE,
    FAKE,
    FLOAT32,
    LOWER,
    NOT_OBSERVED,
    PYTORCH_PAGE,
    UNLISTED,
    WIDEST,
    XPU_REFERENCE,
    RuleClaim,
)
from ampbench.trace.dtypes import autocast_to, is_present, stood_in

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


DEFAULT_DTYPES = {"cpu": "bfloat16", "cuda": "float16", "xpu": "float16"}
"""What the lists of PyTorch's page are headed with, per device type: "Ops that can autocast to …"."""


def probe_claims(device: str) -> list[RuleClaim]:
    """Return the claims about `device`; nothing raises out of this."""
    claims = [_default_dtype(device, PYTORCH_PAGE, DEFAULT_DTYPES[device])]
    if device == "xpu":
        reference = document(XPU_REFERENCE)
        claims += [
            _default_dtype(device, XPU_REFERENCE, reference["default_dtype"]),
            old_spelling(),
            *(_inference(device, XPU_REFERENCE, dtype) for dtype in reference["inference_dtypes"]),
            *(_training(device, dtype, dtype in reference["training_dtypes"]) for dtype in ("bfloat16", "float16")),
        ]
    return [*claims, new_spelling(device), gradient_scaler(device)]


def _claim(device: str, source: str, name: str, said: str, found: str, holds: bool | None, how: str) -> RuleClaim:
    return RuleClaim(name=name, device=device, source=source, said=said, found=found, holds=holds, how=how)


def _default_dtype(device: str, source: str, said: str) -> RuleClaim:
    found = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return _claim(device, source, "default dtype", said, found, found == said, DEVICE)


def old_spelling() -> RuleClaim:
    """Return whether `torch.xpu.amp.autocast`, the older document's spelling, is there."""
    there = hasattr(getattr(torch.xpu, "amp", None), "autocast")
    found = "there" if there else "not there"
    return _claim("xpu", XPU_REFERENCE, "old spelling", "torch.xpu.amp.autocast", found, there, DEVICE)


def new_spelling(device: str) -> RuleClaim:
    """Return what `torch.autocast(device)` does here: enters autocast, disables itself with a warning, or raises."""
    entered = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autocast(device):
                entered = torch.is_autocast_enabled(device)
                found = "entered" if entered else "disables itself"
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            found = f"raises {first_line(error)}"
    if caught:
        found += f", with a warning ({caught[0].category.__name__})"
    return _claim(device, PYTORCH_PAGE, "spelling", f'torch.autocast("{device}")', found, *_where(device, entered))


def gradient_scaler(device: str) -> RuleClaim:
    """Return whether `torch.amp.GradScaler(device)` can be constructed here, and whether it is enabled."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            scaler = torch.amp.GradScaler(device)
            found = "constructs" + ("" if scaler.is_enabled() else ", disabled")
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            found = f"raises {first_line(error)}"
    said = f'torch.amp.GradScaler("{device}")'
    return _claim(device, PYTORCH_PAGE, "GradScaler", said, found, *_where(device, found == "constructs"))


def _where(device: str, holds: bool) -> tuple[bool | None, str]:
    """Return whether a claim holds, and how that was seen: not without its device."""
    return (holds, DEVICE) if is_present(device) else (None, NOT_OBSERVED)


def _inference(device: str, source: str, dtype: str) -> RuleClaim:
    """Return whether a convolution under autocast gives `dtype`, as documented for inference."""
    with stood_in(device), torch.no_grad():
        try:
            image = torch.empty(1, 2, 8, 8, device=device)
            weight = torch.empty(2, 2, 3, 3, device=device)
            with autocast_to(device, getattr(torch, dtype)):
                result = torch.nn.functional.conv2d(image, weight)
            found = f"conv2d gives {str(result.dtype).removeprefix('torch.')}"
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            found = f"raises {first_line(error)}"
    said, how = f"{dtype} is supported for inference", DEVICE if is_present(device) else FAKE
    return _claim(device, source, f"inference {dtype}", said, found, found == f"conv2d gives {dtype}", how)


def _training(device: str, dtype: str, supported: bool) -> RuleClaim:
    """Return whether one training step works in `dtype` on `device`, and so whether the document is right about it.

    Backward fails on fake tensors of an absent device, so that only a present device can tell.
    """
    said = f"{dtype} is supported for training" if supported else f"{dtype} is not supported for training"
    found, works = _train(device, dtype) if is_present(device) else (f"no {device} here to train on", False)
    return _claim(device, XPU_REFERENCE, f"training {dtype}", said, found, *_where(device, works == supported))


def _train(device: str, dtype: str) -> tuple[str, bool]:
    """Take one SGD step of a small convolution; fp16 with GradScaler, whose unscaling needs fp64 on some devices."""
    try:
        network = torch.nn.Conv2d(2, 2, 3, bias=False).to(device)
        before = network.weight.detach().clone()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler(device, enabled=dtype == "float16", init_scale=128.0)
        image = torch.ones(1, 2, 8, 8, device=device)
        with torch.autocast(device, dtype=getattr(torch, dtype)):
            loss = network(image).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        moved = bool(network.weight.isfinite().all()) and not torch.equal(network.weight, before)
    except Exception as error:  # noqa: BLE001 - that it raises is the finding
        return f"raises {first_line(error)}", False
    return ("a step changes the weights" if moved else "a step leaves the weights as they were"), moved
