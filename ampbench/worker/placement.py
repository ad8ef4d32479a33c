"""Where in memory a build lands: the largest source of luck in small CPU cells, so it is drawn anew for every build.

The idea is Stabilizer's (Curtsinger and Berger, ASPLOS 2013): what cannot be controlled is randomised, so that it shows
up as spread between builds instead of as a difference between runs.
"""

import random

import torch

SPACER_BYTES = 4 << 20
"""Spacers are up to this large: several times a core's L2 cache, so that every offset into it can occur."""
LINE_BYTES = 64
SMALL_SPACERS = 8


class Placement:
    """Holds spacers of random size alive, so that what is allocated next begins at a random place."""

    def __init__(self, draw: random.Random):
        self._draw = draw
        self._spacers: list[torch.Tensor] = []

    def move(self) -> None:
        """Let the next allocations begin somewhere else: small spacers move the heap, a large one the mappings."""
        lines = SPACER_BYTES // LINE_BYTES
        small = [self._draw.randrange(1, 1024) for _ in range(self._draw.randrange(SMALL_SPACERS))]
        sizes = [*small, self._draw.randrange(1, lines)]
        self._spacers += [torch.empty(lines * LINE_BYTES, dtype=torch.uint8) for lines in sizes]
