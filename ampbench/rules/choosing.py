"""Which rules are meant: device types, dtypes and ops as people type them, and probes cut down to those."""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from ampbench.errors import UnknownNameError, UsageError
from ampbench.precisions import SHORT_DTYPES
from ampbench.records.environments import DEVICES
from ampbench.records.rules import RuleProbe

DTYPES = ("float16", "bfloat16")
"""What autocast is probed in by default, and all there is to choose from."""


def chosen_devices(given: Sequence[str]) -> list[str]:
    """Return the device types named, each once; all of them if none is. `UnknownNameError` for another."""
    for name in given:
        if name not in DEVICES:
            raise UnknownNameError("device", name, DEVICES)
    return list(dict.fromkeys(given or DEVICES))


def chosen_dtypes(given: Sequence[str]) -> list[str]:
    """Return the dtypes named by their short or long names ("fp16", "float16"), all if none is.

    `UnknownNameError` for another.
    """
    names = {short: dtype for dtype in DTYPES for short in (SHORT_DTYPES[dtype], dtype)}
    for name in given:
        if name not in names:
            raise UnknownNameError("autocast dtype", name, names)
    return list(dict.fromkeys(names[name] for name in given or DTYPES))


def chosen_ops(given: Iterable[str], known: Collection[str]) -> list[str]:
    """Return which of the `known` ops are meant: "softmax" and "aten::softmax" mean all overloads of it.

    `UsageError` for a name that none of them has.
    """
    chosen: list[str] = []
    for name in given:
        meant = [op for op in known if name in _names(op)]
        if not meant:
            near = sorted({short_name(op).partition(".")[0] for op in known})
            if get_close_matches(name, near, n=1, cutoff=0.5):
                raise UnknownNameError("op", name, near)
            raise UsageError(f"unknown op {name!r}: no rule and no document is about it; --all lists the ops there are")
        chosen += meant
    return list(dict.fromkeys(chosen))


def restricted(probe: RuleProbe, dtypes: Collection[str], ops: Collection[str] | None) -> RuleProbe:
    """Return `probe` cut down to `dtypes` and, unless None, to the named `ops`, without which it has its claims."""
    kept = [one for one in probe.observations if one.dtype in dtypes and (ops is None or one.name in ops)]
    return dataclasses.replace(
        probe,
        dtypes=[dtype for dtype in probe.dtypes if dtype in dtypes],
        observations=kept,
        claims=probe.claims if ops is None else [],
        without_sample=[name for name in probe.without_sample if ops is None or name in ops],
    )


def short_name(op: str) -> str:
    """Return an op's name as people write it, `softmax.int`."""
    return op.removeprefix("aten::")


def _names(op: str) -> tuple[str, ...]:
    """Return what an op may be called: with and without namespace and overload."""
    return op, short_name(op), *((op.partition(".")[0], short_name(op).partition(".")[0]) if "::" in op else ())
