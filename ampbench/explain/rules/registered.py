"""Which ops have an autocast rule at all: the dispatcher's table, the same on every build of a torch version."""

import torch

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
