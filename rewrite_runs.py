"""Rewrite stored runs of schema 7 as schema 8, whose divergences are nested; run once from the repository's root."""

import gzip
from pathlib import Path
from typing import Any

import msgspec

REFERENCE = {
    "reference_device": "device", "reference_dtype": "dtype", "reference_error": "error", "reference_loss": "loss",
    "output_reference_norm": "output_norm", "output_shapes": "output_shapes", "output_sketch": "output_sketch",
    "grad_reference_norm": "grad_norm", "grad_sketch": "grad_sketch",
}  # fmt: skip
OUTPUT = {name: name for name in ("predictions", "further", "argmax_agreeing", "argmax_decisions")}
OUTPUT["outputs"] = "tensors"


def nested(divergence: dict[str, Any]) -> dict[str, Any]:
    """Return a divergence with its flat fields in groups."""
    found: dict[str, Any] = {}
    reference, output, gradient = {}, {}, {}
    for name, value in divergence.items():
        if name in REFERENCE:
            reference[REFERENCE[name]] = value
        elif name in OUTPUT:
            output[OUTPUT[name]] = value
        elif name.startswith("output_"):
            output[name.removeprefix("output_")] = value
        elif name.startswith("grad_"):
            gradient[name.removeprefix("grad_")] = value
        else:
            found[name] = value
    begins = {name: found.pop(name) for name in ("case_id", "weights_digest", "inputs_digest") if name in found}
    return begins | {"reference": reference, "output": output, "gradient": gradient} | found


def rewritten(line: bytes) -> bytes:
    """Return a line as schema 8 has it; as it is where nothing in it changed."""
    if line.startswith(b'{"header"'):
        assert line.count(b'"schema":7,') == 1
        return line.replace(b'"schema":7,', b'"schema":8,')
    if not line.startswith(b'{"divergence"'):
        return line
    return msgspec.json.encode({"divergence": nested(msgspec.json.decode(line)["divergence"])}) + b"\n"


for path in sorted([*Path("results").rglob("*.jsonl*"), *Path("tests/net/runs").glob("*.jsonl*")]):
    packed = path.suffix == ".gz"
    data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    text = b"".join(map(rewritten, data.splitlines(keepends=True)))
    path.write_bytes(gzip.compress(text, mtime=0) if packed else text)
