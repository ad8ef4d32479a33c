"""A region of autocast is entered in one thread, and the model is called in another that is started within it."""

from concurrent.futures import ThreadPoolExecutor

import torch

DEVICE = "cpu"


def product() -> torch.dtype:
    """Return the dtype of a product."""
    return torch.mm(torch.ones(2, 2, device=DEVICE), torch.ones(2, 2, device=DEVICE)).dtype


with torch.autocast(DEVICE, dtype=torch.bfloat16), ThreadPoolExecutor(1) as threads:
    expected = f"the product gives {product()}"
    seen = f"the product gives {threads.submit(product).result()}"

print("expected:", expected)
print("seen:    ", seen)
