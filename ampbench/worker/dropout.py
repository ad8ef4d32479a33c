"""Dropout switched off: two precisions draw different masks, whose distance says nothing about precision."""

import torch

NO_DROPOUT = "dropout layers were switched off: two precisions draw different masks"


def switch_off_dropout(module: torch.nn.Module, notes: list[str]) -> None:
    """Switch off dropout, as a layer or inside attention and recurrent modules, and torchvision's stochastic depth.

    `notes` say so, once, where any was on.
    """
    found = False
    for layer in module.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) or type(layer).__name__ == "StochasticDepth":
            found |= bool(layer.p)
            layer.eval()
        elif isinstance(layer, torch.nn.MultiheadAttention | torch.nn.RNNBase):
            found |= bool(layer.dropout)
            layer.dropout = 0.0
    if found and NO_DROPOUT not in notes:
        notes.append(NO_DROPOUT)
