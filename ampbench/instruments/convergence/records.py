"""What a worker is asked for in a study of convergence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAsked:
    """To train a case for `steps` steps, as its own or as another `arm` (see `Training`).

    The learning rate follows a `schedule` ("": the workload's own). A worker that is not fresh knows the fp32 and fp64
    trainings before it.
    """

    steps: int
    schedule: str = ""
    arm: str = ""
