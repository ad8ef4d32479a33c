"""A device that is here or not: where it is absent, fake tensors and autocast's own switches stand in for it.

Every timed step needs this much; so it imports little but torch.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ampbench.precisions import Precision

_FAKE_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


def is_present(device: str) -> bool:
    """Tell whether ops can run on `device` here."""
    if device == "cpu":
        return True
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator is not None and accelerator.type == device


@contextlib.contextmanager
def stood_in(device: str) -> Iterator[None]:
    """Within, tensors on `device` can be made and used: real ones, or fake ones where the device is absent."""
    if is_present(device):
        yield
        return
    silent = _FAKE_LOGGER.disabled
    _FAKE_LOGGER.disabled = True  # it prints a traceback for each op that refuses its inputs, which is what we ask
    try:
        with FakeTensorMode(allow_fallback_kernels=False):
            yield
    finally:
        _FAKE_LOGGER.disabled = silent


def autocast_of(row: Precision, device: str, *, absent: bool = False) -> Callable[[], AbstractContextManager[Any]]:
    """Return what enters autocast as `row` says, anew at each call; with `absent`, on a device that is not here."""
    if row.autocast is None:
        return contextlib.nullcontext
    region = autocast_to if absent else torch.autocast
    return functools.partial(region, device, dtype=getattr(torch, row.autocast))


@contextlib.contextmanager
def autocast_to(device: str, dtype: torch.dtype, enabled: bool = True) -> Iterator[None]:
    """Enter autocast: as users do where the device is present, else by the switches that `torch.autocast` sets.

    `torch.autocast` disables itself for an absent device; the switches below it do not. They are put back.
    """
    if is_present(device):
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            yield
        return
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
