"""On what a run was measured: the machine, its devices, the installation."""

from dataclasses import dataclass, field

DEVICES = ("cpu", "cuda", "xpu")
"""The device types that can be measured. A new one comes last: results of asv tell a device by its place."""
AUTOCAST_DEVICES = (*DEVICES, "mps")
"""Those on which a program may switch autocast on, which is seen, and undone, on Apple's as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDescription:
    """One device type of this machine: what it is and what it can do.

    `arithmetic` says per dtype how matrix products run: "native", "emulated" or "unknown" ("unavailable" where the
    dtype is not supported at all). `tf32` and `float64` say whether the device has them. `autocast_dtype` is torch's
    default for this device type ("bf16"). `reason` says why an unavailable device is not available.
    """

    type: str
    available: bool
    name: str = ""
    reason: str = ""
    count: int = 0
    memory_bytes: int | None = None
    arithmetic: dict[str, str] = field(default_factory=dict)
    tf32: bool = False
    float64: bool = True
    autocast_dtype: str = ""
    driver: str | None = None
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The fingerprint of a machine and of the installation a worker runs in.

    `unavailable` names what could not be imported and why (such as torchvision beside a torch it was not built for).
    `variables` are the environment variables that change how torch computes. Of an imported run, None and "" stand for
    what the other program did not tell.
    """

    host: str
    system: str
    cpu: str
    cpu_count: int | None
    cpu_flags: list[str] = field(default_factory=list)
    memory_bytes: int | None = None
    python_version: str
    ampbench_version: str = ""
    torch_version: str
    torch_commit: str = ""
    torchvision_version: str | None = None
    numpy_version: str
    cuda_version: str | None = None
    cudnn_version: str | None = None
    xpu_version: str | None = None
    threads: int | None
    compiler: str | None = None
    devices: list[DeviceDescription] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def device(self, type: str) -> DeviceDescription | None:
        """Return the description of the device `type`, None where this torch does not know it."""
        return next((device for device in self.devices if device.type == type), None)
