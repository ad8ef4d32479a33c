"""Explanations of a network in a precision: the results of `ampbench explain`, as objects.

Arguments are as of `ampbench.measure`: a network with `inputs` and, for training, a `loss`, `targets` and an
`optimizer`; or a workload, a function that returns a workload, or a name; and `precisions`, `device` and `phase`
(default: training with a loss and an optimizer, else inference). The study runs in this process, on a copy, and leaves
no trace. Other keywords are the options of the verb, with underscores.
"""

from typing import Any

from ampbench.records import kinds
from ampbench.result import Findings

__all__ = ["casts", "headroom", "keep_fp32", "nonfinite", "origin", "rules"]


def casts(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return every cast of a step with its tensor, op, bytes and time, and the casts that could be saved.

    `sources`: find each op's line of code.
    """
    return studied(kinds.CASTS, model_or_workload, inputs, loss, options)


def headroom(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return the headroom of a network's fp32 values in fp16 and bf16, and the loss scales that fit.

    `steps`: watched steps.
    """
    return studied(kinds.HEADROOM, model_or_workload, inputs, loss, options)


def keep_fp32(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return a small set of modules to keep in fp32 so that the errors meet a budget, with its cost.

    `max_error` and `max_gradient_error` of the budget; `min_update_kept`: least share of an update that arrives, in
    pure half; `max_trials`: most sets to try.
    """
    return studied(kinds.KEEP_FP32, model_or_workload, inputs, loss, options)


def nonfinite(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return the op that makes the first NaN or infinity of a step, with its module and line of code.

    `state`: file of the weights to begin from; `steps`: most steps. In a loop of your own: `ampbench.find_nonfinite`.
    """
    return studied(kinds.NONFINITE, model_or_workload, inputs, loss, options)


def origin(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return the origin of a precision's error: the error with each module alone kept in fp32.

    `own`: rank modules by their own errors, which saves a pass for each.
    """
    return studied(kinds.ORIGIN, model_or_workload, inputs, loss, options)


def rules(**options: Any) -> Findings:
    """Return autocast's behaviour on each op, against its documents.

    `device`: one or a list, present or absent (default: all). Each has its own process.
    """
    return studied(kinds.RULES, None, None, None, options)


def studied(kind: str, model_or_workload: Any, inputs: Any, loss: Any, options: dict[str, Any]) -> Findings:
    """Return the result of a study of a network, with the options of its verb; torch is first imported here."""
    from ampbench import live

    return live.study(kind, model_or_workload, inputs, loss, **options)
