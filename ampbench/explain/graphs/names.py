"""Whose a tensor is that a graph reads: the weights and buffers of a model, by their names."""

from dataclasses import dataclass

import torch

from ampbench.records.casts import BUFFER, WEIGHT


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor that a model stores: `what` is weight or buffer, `name` its name, `module` the path of its owner."""

    what: str
    name: str
    tensor: torch.Tensor

    @property
    def module(self) -> str:
        """The path of the module that holds it."""
        return self.name.rpartition(".")[0]


def stored_tensors(model: torch.nn.Module) -> list[Stored]:
    """Return the parameters and buffers of `model`, each under the first name that it has."""
    return [
        *(Stored(WEIGHT, name, tensor) for name, tensor in model.named_parameters()),
        *(Stored(BUFFER, name, tensor) for name, tensor in model.named_buffers()),
    ]
