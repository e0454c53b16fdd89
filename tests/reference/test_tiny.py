"""Tiny random models of many families: all of it random, the same for a seed, and they run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from firstbad.errors import UsageError
from firstbad.reference import causal, encoder
from firstbad.run import ModelSpec
from firstbad.session import room_of

CAUSAL = ("llama", "qwen2_moe", "gemma2", "gpt2", "mistral", "mixtral", "mamba", "gpt_oss")
ENCODERS = ("bert", "vit", "clip", "siglip")


@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODERS])
def test_every_parameter_is_random_and_the_seeds_own(kind: str) -> None:
    room = room_of(kind)
    assert room.__name__.endswith("causal" if kind in CAUSAL else "encoder")
    made, again, other = (room.prepare(ModelSpec(kind, random_weights=seed)) for seed in (3, 3, 4))
    parameters = {name for name, _ in made.model_object.named_parameters()}
    assert parameters <= made.weights.keys()
    for name in parameters:
        array = made.weights[name]
        assert np.isfinite(array).all(), name
        assert array.size == 1 or array.std() > 0, name
        assert np.array_equal(array, again.weights[name]), name
        assert not np.array_equal(array, other.weights[name]), name
    with torch.inference_mode():
        out = made.model_object(**{name: torch.from_numpy(array) for name, array in made.inputs.items()})
    first = next(t for t in out.values() if isinstance(t, torch.Tensor) and t.numel() > 1)
    assert 0.01 < float(first.std()) < 100, "activations of a usual size"


def test_windows_are_shorter_than_the_prompt_that_is_made_up() -> None:
    for kind in ("mistral", "gemma2", "gpt_oss"):
        made = causal.prepare(ModelSpec(kind, random_weights=1))
        assert made.model_object.config.sliding_window < made.inputs["input_ids"].shape[1]


def test_a_seed_below_zero_and_a_family_without_weights_are_one_line() -> None:
    with pytest.raises(UsageError, match="the seed of random weights is -1"):
        encoder.prepare(ModelSpec("bert", random_weights=-1))
    with pytest.raises(UsageError, match="`bert` is a family: give --random-weights"):
        encoder.prepare(ModelSpec("bert", text=("hello",)))
    with pytest.raises(UsageError, match="no random `nonsense`"):
        encoder.prepare(ModelSpec("nonsense", random_weights=1))
    with pytest.raises(UsageError, match="did you mean `llama`"):
        room_of("lama")
    with pytest.raises(UsageError, match="no room for a `t5`"):
        room_of("t5")
