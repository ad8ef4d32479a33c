"""What is the same in every graph reader: whose tensor it is, and the first line of what went wrong."""

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


def first_line(error: BaseException) -> str:
    """Return "RuntimeError: what it says", the first line only; of TorchScript's interpreter the last, which tells."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        lines = lines[-1:]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
