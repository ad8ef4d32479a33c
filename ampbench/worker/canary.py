"""A canary: products of fp32 numbers whose rounding to tf32, fp16 or bf16 shows, so that fp32 is known to be fp32."""

from collections.abc import Callable

import torch

from ampbench.worker.devices import Device

SIZE = 64
"""Rows, columns and channels: as many as kernels with rounded factors ask for."""
FINE, COARSE, TINY = 1 + 2.0**-12, 1 + 2.0**-9, 2.0**-30
"""Factors that fp32 holds exactly. tf32 and fp16 have 10 bits after the point and lose the first; bf16 has 7 and loses
the second, too; fp16 ends at 2^-24 and loses the third."""


def rounded_products(device: Device) -> dict[str, str]:
    """Return to which dtype factors of fp32 products are rounded here and now, by the kind of product.

    "matmul" and "conv" to "tf32", "fp16" or "bf16"; those that are not rounded are left out. Every sum is of a power of
    two of equal products by 1, which fp32 holds exactly: what is lost is a factor's rounding. Kernels choose by size,
    too; these sizes are small, and a kernel that rounds larger products alone is not seen.
    """
    found = {}
    for name, product, count in (("matmul", _matmul, SIZE), ("conv", _conv, SIZE)):
        if rounded := _rounded(product, count, device):
            found[name] = rounded
    return found


def _rounded(product: Callable[[torch.Tensor], torch.Tensor], count: int, device: Device) -> str:
    def keeps(factor: float) -> bool:
        exact = factor * count
        given = torch.full((SIZE, SIZE), factor, device=device.type)
        return bool((product(given) == exact).all())

    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        if keeps(FINE):
            return ""
        if not keeps(COARSE):
            return "bf16"
        return "tf32" if keeps(TINY) else "fp16"


def _matmul(factors: torch.Tensor) -> torch.Tensor:
    return factors @ torch.ones_like(factors)


def _conv(factors: torch.Tensor) -> torch.Tensor:
    """Return a convolution by a kernel of one pixel, of an image whose pixels are all rows of `factors`."""
    image = factors[0].reshape(1, SIZE, 1, 1).expand(1, SIZE, 16, 16).contiguous()
    return torch.nn.functional.conv2d(image, torch.ones(SIZE, SIZE, 1, 1, device=factors.device))
