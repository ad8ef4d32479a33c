"""What trains a network, as far as its arithmetic goes: the optimizer's settings, the momenta of running statistics."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerGroup:
    """The settings of one group of an optimizer's parameters, which have `elements`; None: it has no such setting.

    They are those of the first step, before any schedule. `decoupled` tells whether `weight_decay` multiplies the
    weights by themselves instead of being added to the gradient. `beta2` is the decay of a running mean of squares
    (of RMSprop its alpha, None where it is centered), `beta1` that of a running mean, `momentum` SGD's. `foreach` and
    `fused` are as given (None: torch chooses), and `capturable` tells that the step is computed in tensors, as for a
    CUDA graph.
    """

    elements: int
    lr: float | None = None
    weight_decay: float | None = None
    decoupled: bool | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    momentum: float | None = None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What trains a case: the class of its optimizer ("torch.optim.AdamW") with its groups, and running statistics.

    `groups` are in the optimizer's order; those of an optimizer that is not torch's own have a learning rate alone.
    `running_momenta` are the momenta of the modules that keep running statistics of batches, each once, the largest
    first.
    """

    optimizer: str
    groups: list[OptimizerGroup] = field(default_factory=list)
    running_momenta: list[float] = field(default_factory=list)
