import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

import ampbench
from ampbench import errors
from ampbench.errors import UnknownNameError
from ampbench.records.kinds import KINDS

NAMES = """AmpbenchError Comparison Findings NothingComparableError NothingToRunError Precision Result StoreError
UnknownNameError UsageError Workload WorkloadError __version__ check compare explain find_nonfinite keep_fp32 load
measure open release_fp32 study trace_casts watch watch_errors"""


def test_the_public_names_are_these():
    assert ampbench.__all__ == NAMES.split()


def test_every_public_name_is_there_and_listed_and_no_submodule_takes_its_place():
    first = {name: getattr(ampbench, name) for name in ampbench.__all__}
    for name, value in first.items():
        assert value is not None
        assert getattr(ampbench, name) is value
        assert not name.islower() or (find_spec(f"ampbench.{name}") is None) != isinstance(value, ModuleType)
    for group, others in {"explain": set(), "study": {"check"}}.items():
        module, kinds = getattr(ampbench, group), {row.name for row in KINDS.values() if row.group == group}
        named = {name.replace("-", "_") for name in kinds | others}
        assert set(module.__all__) == named, f"ampbench/{group}.py has a function for each row of records/kinds.py"
        assert all(callable(getattr(module, name)) for name in named)
    assert dir(ampbench) == sorted(ampbench.__all__)


def test_every_error_is_public():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes <= set(ampbench.__all__)
    assert all(name in str(errors.__doc__) for name in classes)


def test_importing_ampbench_imports_neither_torch_nor_pandas():
    code = "import sys, ampbench; sys.exit(' '.join({'torch', 'pandas', 'scipy', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"


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
