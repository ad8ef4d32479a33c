"""The contract between ampbench and a network to measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network with its inputs, loss and items per step: the return value of a workload function.

    * `module`: on the CPU, with the weights to measure, in fp32, bf16 or fp16.
    * `inputs`: a tensor, a tuple (positional) or a dict (keyword), or a list of such batches.
    * `targets`: None, any nesting of tensors, or a list with an entry for each batch.
    * `loss(output)` or, with targets, `loss(output, targets)` returns a scalar tensor; without it, training is skipped.
    * `optimizer` makes an optimizer from parameters. Without it and `--optimizer`, steps are timed with plain SGD, and
      updates are not measured.
    * `optimizer_state`: the optimizer's `state_dict()` from the training of the weights. The change of an optimizer
      step is measured from this state, else from the state after some fp32 steps.
    * `items_per_step`: the count behind throughput (None: the length of the first input tensor).
    * `schedule(optimizer, steps)` makes the scheduler of a training study, which steps it after each of its `steps`
      (None: a constant learning rate).
    * `step(network, batch, optimizer, scaler)`: an iteration in place of forward, loss, backward and optimizer step,
      for trainings with another structure (two losses, a gradient penalty). It begins with `zero_grad` and ends with
      `optimizer.step()`, or with `scaler.step(optimizer)` and `scaler.update()` where `scaler` is a
      `torch.amp.GradScaler` (else None). It returns the loss, or (output, loss) to have the output compared. `batch`
      is (inputs, targets), or the inputs alone without targets. It runs within autocast. The gradients that it leaves
      are compared.
    * `held_out`: inputs and targets, each as of one batch, by which training studies judge instead of the batches.
    * `outputs`: a function of the output that returns the tensors to compare, or their names in the table of errors
      ("scores", "[1]") (None: every floating tensor).
    * `classes_dim`: the dimension of the classes in a classifier's first compared output or, in a dict, by output
      (None: from integer targets, or from the input of cross_entropy).
    * `cached`: the arguments, by place or keyword, with results of an earlier step (keys and values of a cache).
      Floating ones get the dtype of the computation, autocast's where it is on.
    * `version`: raised when the mathematics changes; records of different versions are not compared in accuracy.
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
