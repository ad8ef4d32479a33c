"""A repository of somebody who has nothing of this one but ampbench installed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

MODEL = """
import torch


def make(batch_size: int = 8):
    return torch.nn.Linear(16, 4), torch.randn(batch_size, 16), lambda output: output.square().mean()
"""


def repository(folder: Path, files: Mapping[str, str]) -> Path:
    """Return a git repository in `folder` with `files` and model.py, committed."""
    root = folder / "mine"
    for name, text in {"model.py": MODEL, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    person = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*person, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root
