"""The contract between ampbench and a network to measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network with its inputs, loss and items per step; what a workload function returns.

    `module` is on the CPU with the weights to measure, in fp32, bf16 or fp16. `inputs` is a tensor, a tuple
    (positional) or a dict (keyword) of inputs, or a list of such batches. `targets` is likewise None, any nesting of
    tensors, or a list as long as that of the batches. `loss(output)` or, with targets, `loss(output, targets)` returns
    a scalar tensor; without one, training is skipped. `optimizer` makes an optimizer from parameters (None: none is
    named, unless `--optimizer` names one; steps are then timed with plain SGD, and updates not measured).
    `optimizer_state` is its state in a training that led to the weights, as its `state_dict()` gives it: what an
    optimizer step changes is then measured from there, and else from where some fp32 steps lead; nothing else asks for
    it. `items_per_step` is what throughput counts (None: the length of the first input tensor). `schedule(optimizer,
    steps)` makes what is stepped after each of so many steps, as `torch.optim.lr_scheduler` does: trainings of a study
    of trainings follow it (None: the learning rate stays). `step(network, batch, optimizer, scaler)` is an iteration
    in place of forward, loss, backward and the optimizer's step, for trainings that are no such thing (two losses, a
    gradient penalty): it begins with `zero_grad`, ends with `optimizer.step()`, or `scaler.step(optimizer)` and
    `scaler.update()` where `scaler` is a `torch.amp.GradScaler` (else None), and returns the loss, or (output, loss) to
    have the output compared, too. `batch` is (inputs, targets), or the inputs alone where there are no targets.
    Autocast is entered around it. Gradients that it leaves are compared; a step that clears them has none. `held_out`
    is a pair of inputs and targets, each as of one batch, that is not trained on: studies of trainings judge by it
    (None: by the batches). `outputs` says what of the network's output is compared (None: every floating tensor): a
    function of the output that returns those tensors, or their names, as the error's table has them ("scores", "[1]").
    `classes_dim` is the dimension of the classes of a classifier, of its first output that is compared or, in a dict,
    by output (None: found by integer targets, or by what the loss gives to cross_entropy). `cached` are the arguments,
    by place or keyword, that hold what the network computed in a step before (keys and values of a cache): floating
    ones are given in the dtype that it computes in, that of autocast where there is autocast. `version` is bumped when
    the mathematics changes: records of different versions are not compared in accuracy.
    """

    module: "torch.nn.Module"
    inputs: Any
    targets: Any = None
    loss: Callable[..., "torch.Tensor"] | None = None
    optimizer: Callable[[Iterable["torch.nn.Parameter"]], "torch.optim.Optimizer"] | None = None
    optimizer_state: Mapping[str, Any] | None = None
    items_per_step: float | None = None
    schedule: "Callable[[torch.optim.Optimizer, int], Any] | None" = None
    step: "Callable[[torch.nn.Module, Any, torch.optim.Optimizer, torch.amp.GradScaler | None], Any] | None" = None
    held_out: tuple[Any, Any] | None = None
    outputs: Callable[[Any], Any] | str | Sequence[str] | None = None
    classes_dim: int | Mapping[str, int] | None = None
    cached: Sequence[int | str] = ()
    version: int = 0
