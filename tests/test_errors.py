import pytest

from ampbench.errors import UnknownNameError


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        (["resnet18", "resnet50", "vit_b_16"], "did you mean resnet18 or resnet50?"),
        (["vit_b_16", "lstm"], "known: vit_b_16, lstm"),
        ([], "there is none"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_known_ones(known, hint):
    message = str(UnknownNameError("workload", "resnet15", known))
    assert message.startswith("unknown workload 'resnet15': ")
    assert hint.split()[0] in message
    assert all(name in message for name in known if name in hint)


def test_a_name_cut_short_means_those_that_begin_with_it():
    assert str(UnknownNameError("verb", "re", ["gate", "report", "red"])).endswith("did you mean report or red?")
    assert str(UnknownNameError("verb", "", ["gate"])).endswith("known: gate")


def test_of_many_names_some_are_said_or_the_command_that_lists_them():
    known = [f"layer.{number}" for number in range(1020)]
    said = str(UnknownNameError("submodule", "wxyz", known))
    assert said.endswith(f"known: {', '.join(known[:20])} and 1,000 more")
    listed = UnknownNameError("network of timm", "wxyz", known, instead="ampbench list workloads timm: lists them")
    assert str(listed) == "unknown network of timm 'wxyz': ampbench list workloads timm: lists them"
