"""The room of causal language models: prompts, padding, steps, and that it runs what transformers' generate runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from firstbad.errors import UsageError
from firstbad.reference import causal
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference, room_of
from firstbad.trace import open_trace

SPEC = ModelSpec("causal", random_weights=1, tokens=((5, 6, 7, 8), (9, 10)))


def prepared(spec: ModelSpec = SPEC) -> Prepared:
    return causal.prepare(spec)


def test_prompts_are_padded_on_the_left() -> None:
    made = prepared()
    assert made.inputs["input_ids"].tolist() == [[5, 6, 7, 8], [0, 0, 9, 10]]
    assert made.inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]
    assert causal.step_inputs(made, ())["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    later = causal.step_inputs(made, (1, 2, 3, 4))
    assert later["input_ids"].tolist() == [[3], [4]]
    assert later["position_ids"].tolist() == [[5], [3]]
    assert later["attention_mask"].shape == (2, 6)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_chooses_what_generate_chooses(kind: str, tmp_path: Path) -> None:
    made = prepared(replace(SPEC, model=f"causal:{kind}"))
    output = capture_reference(causal, made, tmp_path / "r.h5", CaptureOptions(max_tokens=4))
    with torch.inference_mode():
        own = made.model_object.generate(
            torch.from_numpy(made.inputs["input_ids"]),
            attention_mask=torch.from_numpy(made.inputs["attention_mask"]),
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
        )
    assert np.array_equal(np.asarray(output.tokens).reshape(4, 2).T, own[:, 4:].numpy())
    with open_trace(tmp_path / "r.h5") as trace:
        assert trace.graph.steps == ("prefill", "decode.0", "decode.1", "decode.2")
        assert any(v.name == "generate.argmax:int64" for v in trace.graph.values)


def test_a_folder_is_found_by_its_config(tmp_path: Path) -> None:
    made = prepared()
    made.model_object.save_pretrained(tmp_path / "m")
    assert room_of(str(tmp_path / "m")).__name__.endswith("causal")
    again = prepared(ModelSpec(str(tmp_path / "m"), tokens=((5, 6),)))
    assert again.weights.keys() == made.weights.keys()
    assert all(np.array_equal(again.weights[name], made.weights[name]) for name in made.weights)
    with pytest.raises(UsageError, match="has no tokenizer"):
        prepared(ModelSpec(str(tmp_path / "m"), text=("hello",)))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (replace(SPEC, tokens=((500,),)), "token 500 is not in the vocabulary of 500"),
        (replace(SPEC, tokens=((),)), "a prompt is empty"),
        (replace(SPEC, model="causal:nonsense"), "no random `nonsense`"),
        (ModelSpec("causal:/nowhere", tokens=((1,),)), "no model in `/nowhere`"),
    ],
)
def test_wrong_wishes_are_one_line(spec: ModelSpec, said: str) -> None:
    with pytest.raises(UsageError) as error:
        prepared(spec)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
