"""What precisions do over many steps, and what a machine gives: what `ampbench study` and `check` print, as objects.

What is given is what `ampbench.measure` takes: a network with `inputs`, a `loss`, `targets` and an `optimizer`, or a
workload, a function that returns one or a name, which bring theirs; and `precisions`, `device` and `phase`. It is done
in this process, on a copy, and leaves no trace. Other keywords are the options of the verb, with underscores.
"""

from typing import Any

from ampbench.explain import studied
from ampbench.records import kinds
from ampbench.result import Findings

__all__ = ["ceilings", "check", "input_storage", "scope", "training"]


def training(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return whether each precision, or setting of GradScaler, trains as fp32 does, and what keeps it from that.

    `steps` from each of `seeds`; `setting`: of GradScaler by name, "all" or "init_scale=1024", one or a list.
    """
    return studied(kinds.TRAINING, model_or_workload, inputs, loss, options)


def scope(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return what entering autocast around more than forward and loss costs in time, memory and accuracy.

    `steps` of training in each scope; `seconds` of timing per case, as 20 or "2m".
    """
    return studied(kinds.SCOPE, model_or_workload, inputs, loss, options)


def input_storage(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return what storing inputs in half saves, and whether it loses anything.

    `seconds` of timing per case, as 20 or "2m".
    """
    return studied(kinds.INPUT_STORAGE, model_or_workload, inputs, loss, options)


def ceilings(**options: Any) -> Findings:
    """Return what a `device` attains at best: FLOP/s of products, convolutions and attention, memory bandwidth.

    `operation` and `dtype`: names, or lists of them (default: all); `seconds` of timing for each. It is measured in
    processes of its own.
    """
    return studied(kinds.CEILINGS, None, None, None, options)


def check(*names: str, **options: Any) -> Findings:
    """Return which known defects of mixed precision the installed torch has here, each shown by a small program.

    `names` of checks, or `area`, one or a list (default: all fast ones); `device`: one or a list, here or not. Each is
    run by a process of its own.
    """
    return studied(kinds.CHECK, None, None, None, {"names": names, **options})
