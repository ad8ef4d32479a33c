"""Checkpoints a layer that FSDP2 (one process) casts to bf16; the input has to be cast for the recomputation, too."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

DEVICE = "cpu"


class Noting(torch.nn.Linear):
    """Notes the dtypes of its inputs."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the projected batch."""
        dtypes.append(str(batch.dtype))
        return super().forward(batch)


dtypes: list[str] = []
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
layer = Noting(4, 4, device=DEVICE)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
fully_shard(layer, mesh=init_device_mesh(DEVICE, (1,)), mp_policy=policy)
loss = checkpoint(layer, torch.ones(2, 4, device=DEVICE), use_reentrant=False).float().sum()
failed = ""
try:
    loss.backward()
except RuntimeError as error:
    failed = f", {type(error).__name__}: {str(error).splitlines()[0]}"
dist.destroy_process_group()
expected = "forward torch.bfloat16, again torch.bfloat16"
seen = "forward " + ", again ".join(dtypes) + failed

print("expected:", expected)
print("seen:    ", seen)
