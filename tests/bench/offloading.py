"""`diff --offload` with a reference twice as large as all the memory that the process may have of its own.

    python tests/bench/offloading.py MODEL LIMIT   (bytes beyond what the imports take, or =BYTES of all; prints JSON)

The limit is RLIMIT_DATA: it binds heap, stacks and private writable mappings (of the C engine too, which inherits it),
and not the clean pages of files, which the system drops when it needs room. The model is a Llama with random weights
and wide layers, written piece by piece.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from chains import Watch  # the same folder of scripts

PROMPT = (1, 5, 7, 9, 11)
SMALL = {"hidden": 512, "wide": 16384, "layers": 3}
"""318 MB."""
LARGE = {"hidden": 2048, "wide": 8192, "layers": 5}
"""1.3 GB."""


def make(folder: Path, hidden: int, wide: int, layers: int, vocabulary: int = 1000) -> int:
    """A Llama in `folder`; its bytes."""
    heads = hidden // 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "vocab_size": vocabulary,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    half = hidden // 2
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for i in range(layers):
        of_layer = {"q_proj": (hidden, hidden), "k_proj": (half, hidden), "v_proj": (half, hidden)}
        of_layer |= {"o_proj": (hidden, hidden)}
        shapes |= {f"model.layers.{i}.self_attn.{name}.weight": shape for name, shape in of_layer.items()}
        of_mlp = {"gate_proj": (wide, hidden), "up_proj": (wide, hidden), "down_proj": (hidden, wide)}
        shapes |= {f"model.layers.{i}.mlp.{name}.weight": shape for name, shape in of_mlp.items()}
        shapes |= {f"model.layers.{i}.{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            array = rng.standard_normal(shape, np.float32)
            array *= np.float32(0.1 if len(shape) == 1 else shape[-1] ** -0.5)
            file.write(np.add(array, len(shape) == 1, dtype=np.float32).data)
    return at


def child(folder: Path, limit: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`main` in a new process."""
    command = [sys.executable, __file__, str(folder), limit, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def held() -> int:
    """Bytes that RLIMIT_DATA counts, now."""
    with Path("/proc/self/status").open(encoding="utf-8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))


def main(argv: list[str]) -> int:
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401  # counted as what the imports take

    from firstbad import comparison, session  # noqa: F401  # imported to be counted
    from firstbad.run import CaptureOptions, ModelSpec

    torch.set_num_threads(1)
    imports = held()
    limit = int(argv[1][1:]) if argv[1].startswith("=") else imports + int(argv[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    spec = ModelSpec(argv[0], tokens=(PROMPT,), offload="whole" not in argv)
    with Watch() as watch, tempfile.TemporaryDirectory(dir=Path(argv[0]).parent) as scratch:
        started = time.perf_counter()
        options = CaptureOptions(max_tokens=2, threads=1)
        result = session.diff(spec, "c", Path(scratch), options, budget=5.0).result
        seconds = time.perf_counter() - started
    found: Mapping[str, Any] = {
        "verdict": result.verdict,
        "compared": dict(result.coverage.compared),
        "weights compared": result.coverage.weights_compared,
        "seconds": seconds,
        "limit": limit,
        "imports": imports,
        "anonymous": watch.anonymous,
    }
    print(json.dumps(found))
    return 0


def rows(quick: bool = False) -> Iterator[tuple[str, float | None, str, str]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        size = make(folder, **(SMALL if quick else LARGE))
        limit = str(size // 2) if quick else f"={size // 2}"
        done = child(folder, limit)
        name = f"diff --offload of a model of {size / 1e6:.0f} MB"
        if done.returncode:
            yield f"{name}: died ({(done.stderr.strip().splitlines() or ['?'])[-1][:120]})", None, "", ""
            return
        found = json.loads(done.stdout.splitlines()[-1])
        yield name, found["seconds"], "s", ""
        yield f"{name}: limit of its own memory (RLIMIT_DATA)", found["limit"] / 1e6, "MB", ""
        yield f"{name}: size over the limit", size / found["limit"], "x", "" if quick else ">= 2"
        yield f"{name}: peak of its own memory, imports included", found["anonymous"] / 1e6, "MB", ""
        whole = child(folder, limit, "whole")
        yield f"{name}: without --offload it dies under that limit (1: yes)", float(whole.returncode != 0), "", ">= 1"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
