"""Modules of a step that are kept in fp32, by their names."""

from collections.abc import Iterable

import torch

from ampbench.errors import UnknownNameError, UsageError


def keep_named(module: torch.nn.Module, names: Iterable[str], *, cast_back: bool) -> None:
    """Keep the submodules of these names, which are no patterns, in fp32."""
    from ampbench.explain.keep_fp32 import keep_fp32  # no step that is timed for itself needs it

    known = dict(module.named_modules(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise UnknownNameError("submodule", name, [path for path in known if path])
        keep_fp32(known[name], cast_back=cast_back)


def refuse_moved(module: torch.nn.Module, names: Iterable[str], storage: torch.dtype) -> None:
    """Raise `UsageError` where a parameter of a kept submodule was moved to `storage`, with another that shares it."""
    everywhere = list(module.named_parameters(remove_duplicate=False))
    for name in names:
        for parameter in module.get_submodule(name).parameters():
            shared = [path for path, other in everywhere if other is parameter]
            if parameter.dtype is storage and len(shared) > 1:
                raise UsageError(f"{name}: {' and '.join(shared)} are one parameter: keep the modules of all, or none")
