"""Phrases as sentences."""

import pytest

from ampbench.present.document import as_sentence


@pytest.mark.parametrize(
    ("phrase", "sentence"),
    [
        ("no kernel for Half", "No kernel for Half."),
        ("fp16 needs loss scaling.", "fp16 needs loss scaling."),
        ("bf16_pure's loss ends higher", "bf16_pure's loss ends higher."),
        ("fp64 matmul: no kernel", "fp64 matmul: no kernel."),
        ("my_net learns", "my_net learns."),
        ("in fp32, the loss falls", "In fp32, the loss falls."),
        ("2 of 3 seeds", "2 of 3 seeds."),
        ("", "."),
    ],
)
def test_a_phrase_begins_with_a_capital_letter_unless_that_is_a_name(phrase: str, sentence: str) -> None:
    assert as_sentence(phrase) == sentence
