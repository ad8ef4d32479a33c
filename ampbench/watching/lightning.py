"""A callback of Lightning: `Trainer(callbacks=[WatchCallback()])`."""

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from ampbench.watching import Watch


class WatchCallback(Callback):
    """Watches the module that a Trainer fits, with its optimizers and scaler; `watch` is there from the first step on.

    Each look is also given to the Trainer's logger. The first step and each `every`-th are looked at.
    """

    def __init__(self, every: int = 100):
        self.every = every
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.watch = Watch(pl_module, trainer.optimizers, scaler, self.every)
        if trainer.logger is not None:
            self.watch.log_to(trainer.logger)
        self.watch.__enter__()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Let the watch know of a step: Lightning calls `training_step`, not the module."""
        if self.watch is not None:
            self.watch.begins()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the watch."""
        if self.watch is not None:
            self.watch.__exit__(None, None, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the watch, which then has the error."""
        if self.watch is not None:
            self.watch.__exit__(type(exception), exception, None)
