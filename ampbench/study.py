"""Studies of precisions over many steps, and of machines: the results of `ampbench study` and `check`, as objects.

Arguments are as of `ampbench.measure`: a network with `inputs`, a `loss`, `targets` and an `optimizer`; or a workload,
a function that returns a workload, or a name; and `precisions`, `device` and `phase`. The study runs in this process,
on a copy, and leaves no trace. Other keywords are the options of the verb, with underscores.
"""

from typing import Any

from ampbench.explain import studied
from ampbench.records import kinds
from ampbench.result import Findings

__all__ = ["ceilings", "check", "input_storage", "scope", "training"]


def training(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return whether each precision, or setting of GradScaler, trains as fp32 does, and the obstacles.

    `steps` from each of `seeds`; `setting`: of GradScaler by name, "all" or "init_scale=1024", one or a list.
    """
    return studied(kinds.TRAINING, model_or_workload, inputs, loss, options)


def scope(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return the cost in time, memory and accuracy of autocast around more than forward and loss.

    `steps` of training in each scope; `seconds` of timing per case, as 20 or "2m".
    """
    return studied(kinds.SCOPE, model_or_workload, inputs, loss, options)


def input_storage(model_or_workload: Any, inputs: Any = None, loss: Any = None, **options: Any) -> Findings:
    """Return the saving of inputs stored in half, and whether anything is lost.

    `seconds` of timing per case, as 20 or "2m".
    """
    return studied(kinds.INPUT_STORAGE, model_or_workload, inputs, loss, options)


def ceilings(**options: Any) -> Findings:
    """Return the peak rates of a `device`: FLOP/s of products, convolutions and attention, memory bandwidth.

    `operation` and `dtype`: names, or lists of them (default: all); `seconds` of timing for each. It has its own
    processes.
    """
    return studied(kinds.CEILINGS, None, None, None, options)


def check(*names: str, **options: Any) -> Findings:
    """Return the known defects of mixed precision in the installed torch, each shown by a small program.

    `names` of checks, or `area`, one or a list (default: all fast ones); `device`: one or a list, present or absent.
    Each check has its own process.
    """
    return studied(kinds.CHECK, None, None, None, {"names": names, **options})
