"""A channel that answers as a test says, and the machine that it is on: a CPU, and a GPU that is not there."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ampbench.records import wire
from ampbench.records.case import DeviceDescription, Environment, WorkloadSource
from ampbench.records.kinds import KINDS, named
from ampbench.records.measured import Late, Stop
from ampbench.records.wire import Description, NamedNetwork, Reply, Request, RoundAsked, Task, ask, reply_with
from tests.stored_runs import make_divergence, make_memory, make_round

CPU = DeviceDescription(type="cpu", available=True, arithmetic={"bf16": "native"}, autocast_dtype="bf16")
NO_GPU = DeviceDescription(type="cuda", available=False, reason="no driver", autocast_dtype="fp16", float64=False)

ROUND_ALONE = RoundAsked.__struct_fields__


def _every_task() -> Mapping[str, Task[Any, Any]]:
    """Return all that a worker can be asked to do, by name: those of the core and of every study."""
    studies = [row.study for row in KINDS.values()]
    modules = [importlib.import_module(study.partition(":")[0]) for study in studies]
    found = [one for module in [wire, *modules] for one in vars(module).values() if isinstance(one, Task)]
    return {task.name: task for task in (*found, *(named(study).task for study in studies)) if task}


TASKS = _every_task()


def asked_in(request: Request) -> Any:
    return msgspec.json.decode(request.asked, type=TASKS[request.task].asked)


def user_source(folder: Path, text: str, function: str, file: str = "odd.py") -> WorkloadSource:
    """Return the source of a function of a user's file, which is written."""
    (folder / file).write_text(text)
    module = str(folder / file)
    return WorkloadSource(name=f"{file}:{function}", family="user", module=module, function=function, builtin=False)


def make_request(task: str, **given: Any) -> Request:
    """Return a request for a task, with fields of it and of what is asked; what a round alone has, others pass over."""
    given = {name: value for name, value in given.items() if task == "round" or name not in ROUND_ALONE}
    wanted = {name: given.pop(name) for name in TASKS[task].asked.__struct_fields__ if name in given}
    return ask(TASKS[task], TASKS[task].asked(**wanted), **given)


def got(task: str, reply: Reply) -> Any:
    """Return what a reply to a task found; fails where it says why there is nothing."""
    record = TASKS[task].found(reply)
    assert record is not None, reply
    return record


def machine(*devices: DeviceDescription) -> Environment:
    return Environment(
        host="h", system="s", cpu="c", cpu_count=2, python_version="3.11", torch_version="2.15.0", numpy_version="2",
        threads=1, devices=list(devices),
    )  # fmt: skip


def described(*, has_loss: bool = True) -> Reply:
    """Return the reply to "describe": of a workload without parameters, or of a pattern that names one network."""
    found = Description(
        parameters={}, has_loss=has_loss, items_per_step=1, version=0, channels_last=False,
        networks=(NamedNetwork(name="net", task="features of images"),),
    )  # fmt: skip
    return reply_with(found)


def measured(request: Request) -> Reply:
    """Return the reply of a worker with which all goes well."""
    case = request.case
    if case is None:
        return Reply()
    if request.task == "round":
        asked = asked_in(request)
        return reply_with(make_round(case, number=asked.round, server=asked.server, control=asked.control))
    if request.task == "late":
        return reply_with(Late(case_id=case.case_id, stop=Stop.PASSES, steps=20, batches=1))
    return reply_with(make_memory(case, 1024) if request.task == "memory" else make_divergence(case))


class Scripted:
    """Gives the `environment`, else what `answer` says, and keeps what it was asked and how often it was closed."""

    def __init__(self, answer: Callable[[Request], Reply], environment: Environment | None = None):
        self.answer = answer
        self.environment = environment or machine(CPU, NO_GPU)
        self.asked: list[Request] = []
        self.closed = 0

    def serve(self, request: Request) -> Reply:
        if request.task == "environment":
            return reply_with(self.environment)
        self.asked.append(request)
        return self.answer(request)

    def close(self) -> None:
        self.closed += 1
