"""Recipes: what they are spelled as, what each of them says, and what cannot be meant."""

import math

import pytest

from ampbench.base.recipes import OPTIMIZERS, RECIPES, SETTINGS, TrainingRecipe, find_recipe, split_recipes
from ampbench.errors import UsageError


def test_the_recipes_say_what_people_train_with() -> None:
    lm, vision, tuning = (find_recipe(name) for name in ("adamw-lm", "sgd-vision", "finetune"))
    assert (lm.optimizer, lm.lr, lm.weight_decay, lm.beta1, lm.beta2, lm.clip) == ("adamw", 3e-4, 0.1, 0.9, 0.95, 1.0)
    assert (lm.schedule, lm.warmup, lm.final) == ("cosine", 0.01, 0.1)
    assert (vision.optimizer, vision.momentum, vision.weight_decay, vision.nesterov) == ("sgd", 0.9, 5e-4, True)
    assert (tuning.optimizer, tuning.lr) == ("adamw", 1e-5)


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("adamw-lm", "adamw-lm"),
        ("adamw-lm,lr=3e-4", "adamw-lm"),
        ("adamw-lm, clip=0 ,lr=0.00001", "adamw-lm,lr=1e-05,clip=0"),
        ("weight-decay=.1", "weight_decay=0.1"),
        ("sgd-vision,optimizer=adam", "sgd-vision,optimizer=adam"),
        ("optimizer=adamw:fused,clip=1.5", "optimizer=adamw:fused,clip=1.5"),
        ("lr=0.30000000000000004", "lr=0.30000000000000004"),
        ("", ""),
    ],
)
def test_a_recipe_has_one_spelling_that_gives_it_back(typed: str, spelled: str) -> None:
    recipe = find_recipe(typed)
    assert recipe.spelling == spelled
    assert find_recipe(spelled) == recipe


def test_another_optimizer_keeps_what_it_knows_of_a_recipe() -> None:
    recipe = find_recipe("sgd-vision,optimizer=adam")
    assert (recipe.lr, recipe.weight_decay, recipe.schedule) == (0.1, 5e-4, "cosine")
    assert recipe.momentum is recipe.nesterov is None


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_the_table_could_be_typed(name: str) -> None:
    row = RECIPES[name]
    said = {key: value for key in SETTINGS if (value := getattr(row, key)) not in (None, "")}
    typed = ",".join(f"{key}={str(value).lower()}" for key, value in said.items())
    found = find_recipe(typed)
    assert {key: getattr(found, key) for key in SETTINGS} == {key: getattr(row, key) for key in SETTINGS}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("finetun", "unknown recipe 'finetun': did you mean finetune?"),
        ("adamw-lm,lr", "recipe adamw-lm,lr: 'lr' is no setting: expected NAME=VALUE, as in lr=1e-4"),
        ("adamw-lm,wight_decay=0", "unknown setting of a recipe 'wight_decay': did you mean weight_decay?"),
        ("lr=0", "lr=0: must be a number above 0, at most 1e+06"),
        ("lr=fast", "lr=fast: must be a number above 0, at most 1e+06"),
        ("momentum=1", "momentum=1: must be a number from 0 to less than 1"),
        ("clip=-1", "clip=-1: must be a norm above 0, at most 1e+06, or 0, which is no clipping"),
        ("nesterov=1", "nesterov=1: must be true or false"),
        ("optimizer=adamx", "unknown optimizer 'adamx': did you mean adamax, adam or radam?"),
        ("optimizer=adam:fusd", "unknown implementation of adam 'fusd': did you mean fused?"),
        ("optimizer=nadam:fused", "torch has no fused nadam: it has for-loop or foreach"),
        ("adamw-lm,momentum=0.9", "adamw has no momentum: it has lr, weight_decay, beta1, beta2, eps"),
        ("optimizer=sgd,nesterov=true", "nesterov=true needs a momentum, as in momentum=0.9"),
    ],
)
def test_what_cannot_be_meant_is_one_line(typed: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_recipe(typed)
    assert str(raised.value) == said


def test_recipes_with_commas_begin_where_there_is_no_setting() -> None:
    typed = ["adamw-lm,lr=1e-5,finetune", "sgd-vision", "lr=1,clip=2"]
    assert split_recipes(typed) == ["adamw-lm,lr=1e-5", "finetune", "sgd-vision", "lr=1,clip=2"]


def test_a_rate_rises_and_then_goes_down_to_its_share() -> None:
    recipe = TrainingRecipe(schedule="cosine", warmup=0.1, final=0.2)
    shares = [recipe.rate_share(step, 40) for step in range(40)]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4:] == pytest.approx([0.2 + 0.8 * math.cos(math.pi * done / 72) ** 2 for done in range(36)])
    linear = TrainingRecipe(schedule="linear")
    assert [linear.rate_share(step, 4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert TrainingRecipe().rate_share(3, 4) == 1.0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_settings_of_optimizers_are_settings_of_recipes(name: str) -> None:
    assert set(OPTIMIZERS[name].settings) <= SETTINGS.keys()
