"""The callbacks of other programs' trainings, each in the real library."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampbench
from ampbench.core.statement import Severity
from ampbench.studies.watch import Watching
from tests.watching.loops import Net, data, sgd

pytestmark = pytest.mark.filterwarnings("ignore")


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": x[0], "labels": y[0]} for x, y in data(count, 1)]


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # Lightning sets it when it is imported
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from lightning.pytorch.loggers import CSVLogger

    from ampbench.watching.lightning import WatchCallback

    class Module(lightning.LightningModule):
        def __init__(self, steep: float = 1.0) -> None:
            super().__init__()
            self.net = Net()
            self.steep = steep

        def training_step(self, batch: Any, place: int) -> torch.Tensor:
            chances = self.net(batch["x"]).softmax(-1).gather(1, batch["labels"][:, None]).float()
            return -torch.log(chances * self.steep).mean()  # the culprit

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self.parameters())

    def fitted(module: Any, **how: Any) -> Any:
        callback = WatchCallback(every=4)
        trainer = lightning.Trainer(
            max_steps=8, accelerator="cpu", devices=1, callbacks=[callback], logger=CSVLogger(tmp_path),
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1,
            default_root_dir=tmp_path, **how,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows(64), batch_size=8))
        return callback, trainer

    callback, trainer = fitted(Module())
    watch = callback.watch
    assert watch.statements[0].code is Watching.HEALTHY
    assert [look.step for look in watch.record.looks] == [1, 4, 8]
    assert {row.module for row in watch.record.magnitudes} >= {"net.first", "net.last"}
    assert all(look.loss for look in watch.record.looks)
    assert "ampbench/bf16" in (Path(trainer.logger.log_dir) / "metrics.csv").read_text()
    broken = fitted(Module(0.0))[0].watch
    assert broken.statements[0].code is Watching.BROKEN


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    from ampbench.watching.huggingface import WatchCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    callback = WatchCallback(every=4)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=8, per_device_train_batch_size=8, use_cpu=True, bf16=True, report_to=[],
        save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=2,
    )  # fmt: skip
    with warnings.catch_warnings():
        transformers.Trainer(model=Model(), args=args, train_dataset=rows(64), callbacks=[callback]).train()
    watch = callback.watch
    assert watch is not None
    assert not [statement for statement in watch.statements if statement.severity is Severity.PROBLEM]
    assert [look.step for look in watch.record.looks] == [1, 4, 8]
    assert {row.module for row in watch.record.magnitudes} >= {"net.first", "net.last"}


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    module = Net()
    module, optimizer = accelerator.prepare(module, sgd(module.parameters()))
    with ampbench.watch(module, optimizer, scaler=accelerator.scaler, every=2) as watch:
        for x, y in data(4):
            accelerator.backward(F.cross_entropy(module(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert watch.statements[0].code is Watching.HEALTHY
    assert watch.record.steps == 4


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    module = Net()
    optimizer = sgd(module.parameters())
    with SummaryWriter(str(tmp_path)) as writer, ampbench.watch(module, optimizer, every=2).log_to(writer):
        for x, y in data(4):
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("ampbench/loss")] == [1, 2, 4]
