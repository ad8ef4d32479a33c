"""The verbs of `ampbench study`: each is the module of this package with its name, like the verbs themselves."""

SUBVERBS = {
    "convergence": "Whether training converges in each precision as in fp32: real data, several seeds, a verdict.",
    "scaler": "What GradScaler does: its scale, skipped steps, gradients that flush to zero without and with it.",
    "scope": "What entering autocast around more than forward and loss costs in time, memory and accuracy.",
    "input-storage": "What storing inputs in half saves, and whether it loses anything.",
    "ceilings": "What this device attains at best: FLOP/s of matrix products and convolutions, copy bandwidth.",
}
HELP = """Study what training in mixed precision comes to, and what this machine can do at best.

\b
Examples:
  ampbench study convergence digits
  ampbench study scaler model.py:make
  ampbench study scope model.py:make --precision bf16_autocast
  ampbench study input-storage mlp transformer_encoder
  ampbench study ceilings
"""
