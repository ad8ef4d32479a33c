import random

import torch

from ampbench.measure.timing import Placement


def addresses(seed: int, builds: int) -> list[int]:
    placement, kept, found = Placement(random.Random(seed)), [], []
    for _ in range(builds):
        placement.move()
        kept.append(torch.empty(1 << 16, dtype=torch.uint8))
        found.append(kept[-1].data_ptr())
    return found


def test_every_build_lands_elsewhere() -> None:
    found = addresses(0, 10)
    assert len(set(found)) == 10


def test_spacers_stay_alive_between_builds() -> None:
    placement = Placement(random.Random(1))
    placement.move()
    spacers = len(placement._spacers)
    placement.move()
    assert len(placement._spacers) > spacers
