"""A channel that answers as a test says, and the machine that it is on: a CPU, and a GPU that is not there."""

from collections.abc import Callable

from ampbench.records.case import DeviceDescription, Environment
from ampbench.records.wire import Reply, Request

CPU = DeviceDescription(type="cpu", available=True, arithmetic={"bf16": "native"}, autocast_dtype="bf16")
NO_GPU = DeviceDescription(type="cuda", available=False, reason="no driver", autocast_dtype="fp16", float64=False)


def machine(*devices: DeviceDescription) -> Environment:
    """Return an environment with `devices`."""
    return Environment(
        host="h", system="s", cpu="c", cpu_count=2, python_version="3.11", torch_version="2.15.0", numpy_version="2",
        threads=1, devices=list(devices),
    )  # fmt: skip


class Scripted:
    """Gives the `environment`, else what `answer` says, and keeps what it was asked and how often it was closed."""

    def __init__(self, answer: Callable[[Request], Reply], environment: Environment | None = None):
        self.answer = answer
        self.environment = environment or machine(CPU, NO_GPU)
        self.asked: list[Request] = []
        self.closed = 0

    def serve(self, request: Request) -> Reply:
        if request.kind == "environment":
            return Reply(environment=self.environment)
        self.asked.append(request)
        return self.answer(request)

    def close(self) -> None:
        self.closed += 1
