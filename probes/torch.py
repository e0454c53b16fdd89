"""The reference's own model, run another way by PyTorch: another device, dtype, attention, compiled, or changed by you.

    torch:device=cuda,dtype=bfloat16,attn=sdpa      any of these; what is not named stays as the reference has it
    torch:compile=inductor                          each block of the model compiled; values at module boundaries
    torch:FILE.py:factory                           factory(model) gets a copy of the reference's model and returns
                                                    the module to be tested; `,dtype=...` may follow

Eager runs are recorded op by op by the reference's recorder. With a file of yours it runs in a process of its own,
since what that file patches must not reach the reference. Leaves out what the model room does: the steps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad.arguments import did_you_mean
from firstbad.errors import FirstbadError, UsageError
from firstbad.graph import Op, Value
from firstbad.run import CaptureOptions, Prepared, RunOutput
from firstbad.sampling import SampledWriter, sampling_of
from firstbad.session import meta_of, room_of

from .apart import bare_apart, capture_apart, inside, words
from .boundaries import Boundaries, Unseen, compile_blocks
from .user import user_file, user_function

KEYS = ("device", "dtype", "attn", "compile")
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


BEFORE = True
"""Requests can be run one after another by the same module: see CaptureOptions.before."""


class _Nobody:
    """A sink that keeps nothing."""

    def value(self, v: Value, _array: Any) -> Value:
        return v

    def op(self, op: Op) -> None:
        pass


@dataclass(frozen=True)
class Wishes:
    """What the argument says."""

    device: str = ""
    dtype: str = ""
    attn: str = ""
    compile: str = ""
    factory: str = ""  # FILE.py:function


def parse(argument: str) -> Wishes:
    given: dict[str, str] = {}
    for word in [w for w in argument.split(",") if w]:
        key, equals, text = word.partition("=")
        if not equals and ".py:" in word:
            key, text = "factory", word
        elif key not in KEYS or not text:
            hint = did_you_mean(key, KEYS) or f"known: {', '.join(KEYS)}, or FILE.py:factory"
            raise UsageError(f"`{word}` in `torch:{argument}` is not understood: {hint}")
        given[key] = text
    if given.get("dtype", "float32") not in DTYPES:
        raise UsageError(f"no dtype `{given['dtype']}` for torch: known: {', '.join(DTYPES)}")
    return Wishes(**given)


def capture(argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput:
    """Runs the model room's steps with the changed model, recorded into `trace_path`."""
    wishes = parse(argument)
    if wishes.factory and not inside():
        user_file(wishes.factory)
        return capture_apart("torch", argument, prepared, trace_path, options)
    model = variant(prepared.model_object, wishes)
    other = replace(prepared, model_object=model)
    meta = {**meta_of(prepared), "candidate": f"torch:{argument}", "torch": torch.__version__}
    extra: dict[str, Any] = {"recording": Boundaries} if wishes.compile else {}
    room = room_of(prepared.spec.model)
    for ids in options.before:
        once = replace(other, inputs={"input_ids": np.array([ids], np.int64)}, prompt=ids, eos=-1)
        room.capture(once, _Nobody(), tokens=None, options=replace(options, before=(), max_tokens=2), **extra)
    with SampledWriter(
        trace_path,
        role="candidate",
        engine="torch",
        meta=meta,
        hash_only=options.hash_only,
        sampling=sampling_of(options, prepared),
    ) as writer:
        try:
            output: RunOutput = room.capture(other, writer, tokens=None, options=options, **extra)
        except FirstbadError:
            raise
        except Exception as error:  # whatever a user's module or a backend may raise
            line = str(error).strip().partition("\n")[0]
            output = RunOutput((), "", complete=False, death=f"{type(error).__name__}: {line}")
        writer.outputs({"tokens": list(output.tokens), "text": output.text, "printed": words(output.tokens)})
        writer.close(complete=output.complete, death=output.death)
    return output


def bare(argument: str, prepared: Prepared, options: CaptureOptions, folder: Path) -> str:
    """The tokens of the same run with no recorder, in words."""
    wishes = parse(argument)
    if wishes.factory and not inside():
        return bare_apart("torch", argument, prepared, options, folder)
    other = replace(prepared, model_object=variant(prepared.model_object, wishes))
    room = room_of(prepared.spec.model)
    return words(room.capture(other, None, tokens=None, options=options, recording=Unseen).tokens)


def variant(model: Any, wishes: Wishes) -> Any:
    """A copy of the reference's model, changed as wished."""
    changed = copy.deepcopy(model)
    if wishes.attn:
        try:
            changed.set_attn_implementation(wishes.attn)
        except (ValueError, ImportError, AttributeError) as error:
            line = str(error).strip().partition("\n")[0]
            raise UsageError(f"attention `{wishes.attn}` is not possible here: {line}") from None
    if wishes.factory:
        changed = user_function(wishes.factory)(changed)
        if not isinstance(changed, torch.nn.Module):
            raise UsageError(f"`{wishes.factory}` returned a {type(changed).__name__}: return the module to be tested")
        changed.eval().requires_grad_(False)
    if wishes.dtype:
        changed.to(DTYPES[wishes.dtype])
    if wishes.device:
        changed.to(_device(wishes.device))
    if wishes.compile:
        compile_blocks(changed, wishes.compile)
    return changed


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        line = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(f"no device `{name}` here: {line}: `firstbad doctor` says what there is") from None
    return device
