import pytest

from ampbench.cli.options import make_selection, parse_setting, parse_sweeps, resumed_imports
from ampbench.errors import UsageError
from ampbench.records.case import WorkloadSource
from tests.stored_runs import make_header


def test_settings_and_sweeps_are_read_as_numbers_where_they_are() -> None:
    assert parse_setting("--set", "mlp.width=8") == ("mlp.width", 8)
    assert parse_setting("--set", "rate=1e-3") == ("rate", 1e-3)
    assert parse_setting("--set", "bias=True") == ("bias", True)
    assert parse_setting("--set", "kind=a=b") == ("kind", "a=b")
    assert parse_sweeps(["batch_size=1,2"]) == {"batch_size": [1, 2]}
    with pytest.raises(UsageError):
        parse_setting("--set", "=3")


def test_each_optimizer_is_a_recipe_as_ids_spell_it() -> None:
    assert make_selection().recipes == []
    typed = ["finetune", "adamw-lm:lr=1e-5,clip=0", "adamw:fused,weight_decay=0.1", "lr=3e-4", "finetune:lr=1e-5"]
    assert make_selection(optimizer=typed).recipes == [
        "finetune",
        "adamw-lm,lr=1e-05,clip=0",
        "optimizer=adamw:fused,weight_decay=0.1",
        "lr=0.0003",
    ]
    with pytest.raises(UsageError, match="clip: Expected"):
        make_selection(optimizer=["finetune:clip=-1"])


def test_going_on_with_a_run_says_what_its_file_has_imported() -> None:
    built_in, own = (
        WorkloadSource(name="n", family="user", module=module, function="make", builtin=builtin)
        for module, builtin in (("ampbench.workloads.linear", True), ("/home/me/m.py", False))
    )
    header = make_header(run="20260131T120000Z-a-b", sources=[built_in, own])
    assert resumed_imports(header) == "resuming run 20260131T120000Z-a-b imports /home/me/m.py:make"
    assert resumed_imports(make_header(sources=[built_in])) == ""
