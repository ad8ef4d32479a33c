"""A callback of Transformers' Trainer: `Trainer(..., callbacks=[WatchCallback()])`.

A loop of Accelerate needs none: `ampbench.watch(model, optimizer, scaler=accelerator.scaler)` takes what it prepared.
"""

from typing import Any

from transformers import TrainerCallback

from ampbench.watching import Watch


class WatchCallback(TrainerCallback):
    """Watches the model that a Trainer trains, with its optimizer and scaler; `watch` is there from the first step on.

    The first step and each `every`-th are looked at.
    """

    def __init__(self, every: int = 100):
        self.every = every
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin to watch."""
        optimizer = kwargs.get("optimizer")
        self.watch = Watch(kwargs["model"], optimizer, getattr(optimizer, "scaler", None), self.every)
        self.watch.__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the watch."""
        if self.watch is not None:
            self.watch.__exit__(None, None, None)
