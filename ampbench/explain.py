"""Why a network does what it does in a precision: what `ampbench explain` prints, as objects.

What is given is what `ampbench.measure` takes: a network with `inputs` and, for training, a `loss`, `targets` and an
`optimizer`, or a workload, a function that returns one or a name, which bring theirs; and `precisions`, `device` and
`phase` (default: training, where there is a loss and an optimizer, else inference). It is done in this process, on a
copy, and leaves no trace. Other keywords are the options of the verb, with underscores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ampbench.records import kinds
from ampbench.result import Findings

if TYPE_CHECKING:
    from ampbench.trace.nonfinite import _Finder

__all__ = ["casts", "headroom", "keep_fp32", "nonfinite", "origin", "rules"]


def casts(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return every cast of a step with its tensor, op, bytes and time, and the casts that could be saved.

    `sources`: find each op's line of code; `check`: make the changes that save casts, and measure what they save.
    """
    return studied(kinds.CASTS, model_or_workload, inputs, loss, options)


def headroom(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return how near a network's values in fp32 are to what fp16 and bf16 hold, and which loss scales fit.

    `steps`: steps that are watched.
    """
    return studied(kinds.HEADROOM, model_or_workload, inputs, loss, options)


def keep_fp32(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return a small set of modules to keep in fp32 so that the errors meet a budget, and what that costs.

    `max_error` and `max_gradient_error` of the budget; `min_update_kept`: least share of an update that arrives, in
    pure half; `max_trials`: most sets to try.
    """
    return studied(kinds.KEEP_FP32, model_or_workload, inputs, loss, options)


def origin(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return where the error of a precision begins: what becomes of it where each module alone is kept in fp32.

    `own`: rank modules by what they err by themselves, which takes no pass for each.
    """
    return studied(kinds.ORIGIN, model_or_workload, inputs, loss, options)


def rules(**options: Any) -> Findings:
    """Return what autocast does to each op, against what documents say of it.

    `device`: one or a list, here or not (default: all). Each is looked at by a process of its own.
    """
    return studied(kinds.RULES, None, None, None, options)


@contextmanager
def nonfinite(model: Any) -> Iterator["_Finder"]:
    """Find the first op of the block that makes NaN or infinity: `first` of what is yielded (None: there is none).

    `model` is the network that the block runs, in a forward pass, a backward pass or an optimizer's step.
    """
    from ampbench.trace.nonfinite import find_nonfinite

    with find_nonfinite(model) as finder:
        yield finder


def studied(kind: str, model_or_workload: Any, inputs: Any, loss: Any, options: dict[str, Any]) -> Findings:
    """Return what a kind of study finds of a network, with the options of its verb; torch is imported here first."""
    from ampbench import live

    return live.study(kind, model_or_workload, inputs, loss, **options)
