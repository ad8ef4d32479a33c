"""What a training step changes, remembered and put back: weights, buffers, the optimizer's and GradScaler's state."""

import copy
from collections.abc import Iterable
from typing import Any

import torch


class SavedState:
    """The state of a training as it is when this is made; `stored` are the weights that the optimizer moves.

    Those are the network's own parameters, or master weights beside them.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        stored: Iterable[torch.Tensor] = (),
    ):
        live = list({id(one): one for one in (*module.parameters(), *stored, *module.buffers())}.values())
        self._values: list[tuple[dict[Any, Any], Any, Any]] = []
        for state in optimizer.state.values() if optimizer is not None else ():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    live.append(value)
                else:
                    self._values.append((state, key, copy.deepcopy(value)))
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in live]
        self._scaler = scaler
        self._scaled: dict[str, Any] = {} if scaler is None else scaler.state_dict()

    def put_back(self) -> bool:
        """Put it back, in place; return whether GradScaler had lowered its scale since, that is, skipped a step."""
        with torch.no_grad():
            for tensor, saved in self._tensors:
                tensor.copy_(saved)
        for state, key, value in self._values:
            state[key] = copy.deepcopy(value)
        if self._scaler is None:
            return False
        skipped = bool(self._scaler.get_scale() < self._scaled["scale"])
        self._scaler.load_state_dict(self._scaled)
        return skipped
