"""Networks trained on data from a package: digits, and characters of a text.

Their inputs are lists of batches. The seed decides weights and the order of the examples, never which are held out.
"""

import numpy as np
import torch
from torch import Tensor, device, nn, optim

from ampbench.worker.data import Generator
from ampbench.workload import Workload
from ampbench.workloads.sequence import Decoder, decoder_weights
from ampbench.workloads.weights import HE, class_loss, fill

CYCLE, TRAINED = 9, 5
"""Of every nine digits the first five are trained on: 1000 of 1797."""

PRINTABLE = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = 1 + len(PRINTABLE)
"""Tokens of `characters`: 0 is whatever is not `PRINTABLE`."""

BATCHES = 100
"""So many batches of characters at most."""

HELD_OUT_SHARE = 10
"""The last tenth of a text is held out."""

HELD_OUT_WINDOWS = 64


def digits(generator: Generator, *, width: int, batch_size: int) -> Workload:
    """Two convolutions and a classifier on scikit-learn's digits; cross entropy, SGD with lr 0.03 and momentum 0.9.

    Inputs are 1000 // batch_size batches (batch_size, 1, 8, 8), multiples of 1/16 that every dtype holds exactly;
    outputs logits (batch_size, 10). 797 images are held out. Source of the data: Alpaydin and Kaynak, "Optical
    Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
    """
    from sklearn.datasets import load_digits

    with device("meta"):
        module = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8 * width, 10),
        )  # fmt: skip
    fill(generator, module, gains={"0": 1.0, "7": 0.25, "*": HE}, centred=False)
    data = load_digits()
    images = torch.from_numpy(data.images.astype(np.float32)).sub_(4.5).div_(8).unsqueeze(1)
    classes = torch.from_numpy(data.target.astype(np.int64))
    trained = torch.arange(len(images)) % CYCLE < TRAINED
    batches = _batches(generator, int(trained.sum()), batch_size)
    return Workload(
        module=module,
        inputs=[images[trained][batch] for batch in batches],
        targets=[classes[trained][batch] for batch in batches],
        loss=class_loss,
        optimizer=lambda parameters: optim.SGD(parameters, lr=0.03, momentum=0.9),
        held_out=(images[~trained], classes[~trained]),
    )


def characters(generator: Generator, *, batch_size: int, **sizes: int) -> Workload:
    """The causal language model of `decoder_lm` on the characters of Python's own help texts; AdamW with lr 0.003.

    Inputs are at most 100 batches of tokens (batch_size, sequence_length), outputs logits (batch_size, sequence_length,
    97). Windows of the last tenth of the text are held out. The text comes from `pydoc_data.topics`, which differs
    between Python versions.
    """
    from pydoc_data.topics import topics

    sizes["vocabulary"], sequence_length = VOCABULARY, sizes["sequence_length"]
    with device("meta"):
        module = Decoder(sizes)
    decoder_weights(generator, module, sizes)
    # the help texts that come with Python, in the order of their names
    codes = {character: code for code, character in enumerate(PRINTABLE, start=1)}
    text = "\n".join(topics[name] for name in sorted(topics))
    tokens = torch.tensor([codes.get(character, 0) for character in text])
    kept = len(tokens) - len(tokens) // HELD_OUT_SHARE
    # rows of sequence_length + 1 tokens, each overlapping the next by one
    windows, held_out = (
        part.unfold(0, sequence_length + 1, sequence_length) for part in (tokens[:kept], tokens[kept:])
    )
    held_out = held_out[:: max(1, len(held_out) // HELD_OUT_WINDOWS)][:HELD_OUT_WINDOWS]
    batches = [windows[batch] for batch in _batches(generator, len(windows), batch_size)[:BATCHES]]
    return Workload(
        module=module,
        inputs=[batch[:, :-1].contiguous() for batch in batches],
        targets=[batch[:, 1:].contiguous() for batch in batches],
        loss=class_loss,
        optimizer=lambda parameters: optim.AdamW(parameters, lr=0.003),
        items_per_step=batch_size * sequence_length,
        held_out=(held_out[:, :-1].contiguous(), held_out[:, 1:].contiguous()),
    )


def _batches(generator: Generator, count: int, batch_size: int) -> list[Tensor]:
    """Return the places of `count` examples in the seed's order, in whole batches; the remainder is dropped."""
    order = torch.argsort(generator.integers("order", (count,), 2**31), stable=True)
    return [order[at : at + batch_size] for at in range(0, count // batch_size * batch_size, batch_size)]
