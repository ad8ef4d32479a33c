"""What `run` and `ab` are asked to measure: options as typed become a `Selection` and `Settings`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ampbench.base.recipes import parse_optimizer
from ampbench.base.units import parse_bytes, parse_seconds, parse_value
from ampbench.errors import UsageError
from ampbench.records.case import ParameterValue
from ampbench.records.run import Header, Selection, Settings
from ampbench.workloads.index import is_users

Value = TypeVar("Value")


def resumed_imports(header: Header) -> str:
    """Say which code going on with a run imports, since its file names it and not the command line; "" for none."""
    own = dict.fromkeys(f"{one.module}:{one.function}" for one in header.sources if is_users(one))
    return f"going on with run {header.run} imports what it names: {', '.join(own)}" if own else ""


def make_selection(
    workloads: list[str],
    precision: list[str] | None,
    device: list[str] | None,
    phase: list[str] | None,
    path: list[str] | None,
    memory_format: list[str] | None,
    sdpa: list[str] | None,
    keyword: str,
    preset: str,
    set_: list[str] | None,
    sweep: list[str] | None,
    scaler: bool,
    recipes: Sequence[str] = (),
    compile_modes: Sequence[str] | None = (),
) -> Selection:
    """Return the selection that the options of these names give; raises `UsageError` for a malformed one.

    `recipes` are those that `chosen_recipes` returned.
    """
    return Selection(
        workloads=workloads,
        precisions=precision or [],
        devices=device or [],
        phases=phase or [],
        paths=path or [],
        memory_formats=memory_format or [],
        sdpa=sdpa or [],
        keyword=keyword,
        preset=preset,
        overrides=dict(parse_setting("--set", text) for text in set_ or []),
        sweeps=parse_sweeps(sweep or []),
        scaler=scaler,
        recipes=list(recipes),
        compile_modes=list(compile_modes or ()),
    )


def chosen_recipes(optimizers: list[str] | None) -> list[str]:
    """Return the recipes that the values of `--optimizer` give, as ids spell them; `UsageError` for a wrong one."""
    return list(dict.fromkeys(parse_optimizer(text).spelling for text in optimizers or []))


def make_settings(
    rounds: int,
    builds: int,
    min_run_time: str,
    max_time: str,
    timeout: str,
    memory_limit: str,
    threads: int,
    seed: int,
    isolation: bool = True,
    keep_flags: bool = False,
    burst: bool = False,
) -> Settings:
    """Return the settings that the options of these names give; raises `UsageError` for what cannot be meant."""
    if seed >= 2**63:
        raise UsageError(f"--seed {seed}: give a whole number below 2**63")
    return Settings(
        rounds=rounds,
        builds=builds,
        min_run_seconds=typed_seconds("--min-run-time", min_run_time) if min_run_time else Settings().min_run_seconds,
        timeout_seconds=typed_seconds("--timeout", timeout),
        memory_limit_bytes=round(_positive("--memory-limit", parse_bytes, memory_limit)) if memory_limit else None,
        max_seconds=typed("--max-time", parse_seconds, max_time) if max_time else None,
        threads=threads,
        seed=seed,
        schedule_seed=seed,
        isolation=isolation,
        keep_flags=keep_flags,
        burst=burst,
    )


def parse_setting(option: str, text: str) -> tuple[str, ParameterValue]:
    """Return (name, value) of NAME=VALUE; the value is a number or a bool where it reads as one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise UsageError(f"{option} {text!r}: expected NAME=VALUE, as in {option} batch_size=8")
    return name.strip(), parse_value(value.strip())


def parse_sweep(text: str) -> tuple[str, list[ParameterValue]]:
    """Return (name, values) of NAME=VALUE,VALUE,..."""
    name, equals, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not equals or not name.strip() or not all(parts):
        raise UsageError(f"--sweep {text!r}: expected NAME=VALUE,VALUE, as in --sweep batch_size=1,2,4")
    return name.strip(), [parse_value(part) for part in parts]


def parse_sweeps(texts: list[str]) -> dict[str, list[ParameterValue]]:
    """Return the values of each parameter swept."""
    sweeps: dict[str, list[ParameterValue]] = {}
    for text in texts:
        name, values = parse_sweep(text)
        if name in sweeps:
            raise UsageError(f"--sweep {name} is given twice: list all its values in one, as in --sweep {name}=1,2,4")
        sweeps[name] = values
    return sweeps


def typed_seconds(option: str, text: str) -> float:
    """Return the seconds, above 0, that `text` given by `option` stands for; `UsageError` for anything else."""
    return _positive(option, parse_seconds, text)


def typed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """Return what `parse` reads in `text`, given by `option`, which its `UsageError` then names."""
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{option} {error}") from None


def _positive(option: str, parse: Callable[[str], float], text: str) -> float:
    value = typed(option, parse, text)
    if value <= 0:
        raise UsageError(f"{option} must be above 0")
    return value
