"""A small relative error can be all of the signal.

Temperatures around 288 K with a spread of 0.7 K: bf16 has a spacing of 2 at 288. The relative error is below 1%, and
the correlation with the truth is gone. ampbench judges regressions by error over spread for this reason.
Your network: `ampbench run model.py:make`, after subtracting the mean from targets and outputs.

Prints:
relative error 0.2%
error over spread 78%
"""

import torch

truth = torch.distributions.Normal(288.0, 0.7).icdf(torch.linspace(0.001, 0.999, 999, dtype=torch.float64))
error = truth.to(torch.bfloat16).double() - truth
print(f"relative error {error.norm() / truth.norm():.1%}")
print(f"error over spread {error.std() / truth.std():.0%}")
