"""What a run's rounding may depend on: processor, compiler, BLAS, threads, versions, and the variables that steer them.

Two runs on machines that differ here may round otherwise; the gate then measures the noise floor anew and says what
differed. Leaves out whatever the numbers cannot depend on (paths, the time, the user).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions
from firstbad.toolchain import compiler_version

_PACKAGES = ("torch", "transformers", "numpy")
_ENGINES = {"onnx": ("onnxruntime",)}  # kind of candidate → packages that are its engine
_STEERING = ("OMP_", "MKL_", "OPENBLAS_", "BLIS_", "ATEN_", "GOTO_", "VECLIB_", "KMP_", "DNNL_", "ONEDNN_")
_ALSO = ("CC", "CFLAGS")


def environment(candidate: str, options: CaptureOptions, variables: Mapping[str, str]) -> dict[str, str]:
    """Name → what it is here; `variables` are those that a case sets for its candidate."""
    found = {"processor": _processor(), "cores": str(len(os.sched_getaffinity(0)))}
    try:
        found["compiler"] = compiler_version()
    except UsageError:
        found["compiler"] = "none"
    for package in (*_PACKAGES, *_ENGINES.get(candidate.partition(":")[0], ())):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    found["threads"] = str(options.threads or "all")
    found["cflags"] = " ".join(options.cflags)
    for name, text in sorted({**os.environ, **variables}.items()):
        if name.startswith(_STEERING) or name in _ALSO:
            found[name] = text
    return {name: text for name, text in found.items() if text}


@cache
def _processor() -> str:
    """The name of the processor, and what tells its vector instructions apart."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}".strip()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    words = set(f"{facts.get('flags', '')} {facts.get('Features', '')}".split())
    vectors = [word for word in ("avx2", "fma", "avx512f", "amx_tile", "asimd", "sve") if word in words]
    return " ".join([platform.machine(), facts.get("model name", ""), *vectors]).strip()


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs, for people: "torch 2.12.0 then, 2.13.0 now"."""
    return [
        f"{name}: {then.get(name, 'not set')} then, {now.get(name, 'not set')} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
