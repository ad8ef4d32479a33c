"""Recipes: what they are spelled as, what each of them says, and what cannot be meant."""

import math

import pytest

from ampbench.core.recipes import RECIPES, SETTINGS, TrainingRecipe, find_recipe, parse_optimizer
from ampbench.errors import UsageError
from tests.stored_runs import make_case


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("adamw-lm", "adamw-lm"),
        ("adamw-lm:lr=3e-4", "adamw-lm"),
        ("adamw-lm: clip=0 ,lr=0.00001", "adamw-lm,lr=1e-05,clip=0"),
        ("sgd-vision:nesterov=false,momentum=0", "sgd-vision,momentum=0,nesterov=false"),
        ("adamw", "optimizer=adamw"),
        ("adamw:lr=3e-4,weight_decay=0.1,clip=1.0", "optimizer=adamw,lr=0.0003,weight_decay=0.1,clip=1"),
        ("adam:eps=1e-6,beta2=0.95,beta1=0.8", "optimizer=adam,beta1=0.8,beta2=0.95,eps=1e-06"),
        ("lr=0.30000000000000004", "lr=0.30000000000000004"),
        ("adamw:betas=0.9/0.95,lr=1e-3", "optimizer=adamw,lr=0.001,beta1=0.9,beta2=0.95"),
        ("lion.py:Lion", "optimizer=lion.py:Lion"),
        (
            "a/lion.py:Lion:lr=1e-4,betas=0.9/0.99,clip=1",
            "optimizer=a/lion.py:Lion,lr=0.0001,beta1=0.9,beta2=0.99,clip=1",
        ),
        ("pkg.optim:Lion:rho=.5,exact=true,lr=1e-4", "optimizer=pkg.optim:Lion,lr=0.0001,exact=true,rho=0.5"),
        ("pkg.optim.Lion:lr=1e-4", "optimizer=pkg.optim:Lion,lr=0.0001"),
    ],
)
def test_what_is_typed_has_one_spelling_in_ids_that_gives_it_back(typed: str, spelled: str) -> None:
    recipe = parse_optimizer(typed)
    assert recipe.spelling == spelled
    assert find_recipe(spelled) == recipe
    case = make_case(phase="training", recipe=recipe.spelling)
    assert case.case_id.endswith(f"/training/eager/in-fp32/recipe-{spelled}")


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_every_recipe_could_be_typed(name: str) -> None:
    row = RECIPES[name]
    kind, *said = [f"{key}={str(value).lower()}" for key in SETTINGS if (value := getattr(row, key)) not in (None, "")]
    found = parse_optimizer(f"{kind.removeprefix('optimizer=')}:{','.join(said)}")
    assert {key: getattr(found, key) for key in SETTINGS} == {key: getattr(row, key) for key in SETTINGS}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("finetun", "unknown optimizer 'finetun': did you mean finetune?"),
        ("adam:fusd", "unknown implementation of adam 'fusd': did you mean fused?"),
        ("nadam:fused", "torch has no fused nadam: it has for-loop or foreach"),
        ("adamw-lm:lr=", "optimizer adamw-lm:lr=: 'lr=' is no setting: expected NAME=VALUE, as in lr=1e-4"),
        ("adamw-lm:wight_decay=0", "unknown setting of adamw 'wight_decay': did you mean weight_decay?"),
        ("adamw:momentum=0.9", "unknown setting of adamw 'momentum': known: lr, weight_decay, beta1, beta2, eps, clip"),
        ("sgd:lr=1,lr=2", "optimizer sgd:lr=1,lr=2: lr is given twice"),
        ("lr=0", "optimizer lr=0: lr: Expected `float` > 0.0"),
        ("clip=-1", "optimizer clip=-1: clip: Expected `float` >= 0.0"),
        ("adamw:betas=0.9", "optimizer adamw:betas=0.9: betas must be two numbers, as in betas=0.9/0.95"),
        ("adamw:betas=0.9/1", "optimizer adamw:betas=0.9/1: beta2: Expected `float` < 1.0"),
        ("lion.py:Lion:rho=1,rho=2", "optimizer lion.py:Lion:rho=1,rho=2: rho is given twice"),
        ("sgd:nesterov=1", "optimizer sgd:nesterov=1: nesterov: Expected `bool`, got `int`"),
        ("sgd:nesterov=true", "optimizer sgd:nesterov=true: nesterov=true needs a momentum, as in momentum=0.9"),
    ],
)
def test_what_cannot_be_meant_is_one_line(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_optimizer(typed)
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_a_rate_rises_and_then_goes_down_to_its_share() -> None:
    recipe = TrainingRecipe(schedule="cosine", warmup=0.1, final=0.2)
    shares = [recipe.rate_share(step, 40) for step in range(40)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4:] == pytest.approx([0.2 + 0.8 * math.cos(math.pi * done / 72) ** 2 for done in range(36)])
    linear = TrainingRecipe(schedule="linear")
    assert [linear.rate_share(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert TrainingRecipe().rate_share(3, 4) == 1.0
