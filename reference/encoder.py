"""Models of transformers that give vectors in one pass: BERT and its like, ViT, CLIP.

    bert, vit, clip, ...      a tiny one with random weights (--random-weights SEED)
    encoder:FOLDER            a checkpoint; a folder, package or hub name is taken for one by its config.json

One step, `encode`. Texts are padded on the right, as such models are trained. What is not given (--text, --tokens,
--image, --inputs) a random model makes up from its seed. Leaves out pooling and heads that are not in the checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firstbad.errors import UsageError
from firstbad.run import CaptureOptions, ModelSpec, Prepared, RunOutput

from . import onepass, tiny
from .checkpoint import Loaded, load
from .executor import Executor
from .image import pixels
from .piecewise import Piecewise
from .recorder import Recorder, Sink

STEP = "encode"


def prepare(spec: ModelSpec) -> Prepared:
    """The model, and its inputs (none without them: enough to replay)."""
    place = spec.model.removeprefix("encoder:")
    kind = "bert" if place == "encoder" else place
    random = spec.random_weights is not None
    loaded = tiny.random_model(spec, kind, _auto()) if random else load(place, _class_of, offload=spec.offload)
    takes = inspect.signature(loaded.model.forward).parameters
    given, notes = _inputs(spec, loaded, takes)
    for name in given:
        if name not in takes:
            raise UsageError(f"{loaded.name} takes no `{name}`: it takes {', '.join(_main(takes))}")
    return onepass.prepared_of("encoder", STEP, loaded.model, loaded.name, loaded.source, given, spec, notes)


def capture(
    prepared: Prepared,
    writer: Sink,
    *,
    tokens: Sequence[int] | None = None,  # noqa: ARG001  # the face of a room: there are none here
    options: CaptureOptions,
    recording: Any = Recorder,
) -> RunOutput:
    """Runs and records the one pass."""
    if not prepared.inputs:
        raise UsageError("nothing to encode: give --text, --tokens, --image or --inputs FILE.npz")
    return onepass.capture(prepared, writer, options, recording)


def executor(prepared: Prepared) -> Executor:
    return (Piecewise if prepared.spec.offload else Executor)(prepared.weights)


def _auto() -> Any:
    from transformers import AutoModel

    return AutoModel


def _class_of(config: Mapping[str, Any]) -> Any:
    """The class that the checkpoint was saved from, with its head."""
    import transformers

    names = config.get("architectures") or [""]
    return getattr(transformers, str(names[0]), None) or _auto()


def _inputs(spec: ModelSpec, loaded: Loaded, takes: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    if spec.inputs is not None:
        return onepass.arrays_of(spec.inputs), ()
    given: dict[str, np.ndarray] = {}
    notes: tuple[str, ...] = ()
    texts = [*spec.tokens, *(tuple(loaded.ids(text)) for text in spec.text)]
    if texts:
        given, notes = _padded(texts, loaded.model.config)
    if spec.image is not None:
        given["pixel_values"] = pixels(spec.image, loaded)
    if spec.random_weights is not None and loaded.place is None:
        given = {**_made_up(spec.random_weights, loaded.model.config, takes, given), **given}
    return given, notes


def _padded(texts: Sequence[Sequence[int]], config: Any) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    text = getattr(config, "text_config", config)
    T, V = max(map(len, texts)), int(text.vocab_size)
    most = int(getattr(text, "max_position_embeddings", T))
    if min(map(len, texts)) == 0:
        raise UsageError("a text is empty: give one with --text, or ids with --tokens 1,2,3")
    if most < T:
        raise UsageError(f"a text of {T} tokens is too long for this model: {most} are the most")
    for ids in texts:
        bad = [i for i in ids if not 0 <= i < V]
        if bad:
            raise UsageError(
                f"token {bad[0]} is not in the vocabulary of {V}: give ids with --tokens 1,2,3 or a --text"
            )
    pad = text.pad_token_id if isinstance(text.pad_token_id, int) else 0
    ids_ = np.full((len(texts), T), pad, np.int64)
    mask = np.zeros_like(ids_)
    for row, ids in enumerate(texts):
        ids_[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    if mask.all():
        return {"input_ids": ids_}, ()
    note = f"{len(texts)} texts padded on the right to {T} tokens; what is computed at padding is not compared"
    return {"input_ids": ids_, "attention_mask": mask}, (note,)


def _made_up(seed: int, config: Any, takes: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Inputs from the seed for what a random model takes and nobody gave; what was given stays alone where it can."""
    generator = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    both = "input_ids" in takes and "pixel_values" in takes
    if "input_ids" in takes and (both or not given):
        text = getattr(config, "text_config", config)
        made["input_ids"] = generator.integers(1, text.vocab_size, (1, tiny.PROMPT))
    if "pixel_values" in takes and (both or not given):
        vision = getattr(config, "vision_config", config)
        size = vision.image_size
        H, W = (size, size) if isinstance(size, int) else size
        made["pixel_values"] = generator.standard_normal((1, vision.num_channels, H, W), dtype=np.float32)
    return made


def _main(takes: Mapping[str, Any]) -> list[str]:
    return [name for name in takes if name in ("input_ids", "attention_mask", "token_type_ids", "pixel_values")]
