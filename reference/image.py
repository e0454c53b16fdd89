"""A picture as a vision model wants it: resized, cropped, normalised, [1, 3, H, W] float32.

By the processor of the checkpoint (transformers', on Pillow); a random model has none and gets what ViT does: the whole
picture resized, numbers from -1 to 1. Leaves out several pictures and films.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from firstbad.errors import UsageError

from .checkpoint import Loaded, first_line


def pixels(path: Path, loaded: Loaded) -> np.ndarray:
    """The picture in `path` for this model."""
    picture = _opened(path)
    if loaded.place is not None:
        return _processed(picture, loaded)
    vision = getattr(loaded.model.config, "vision_config", loaded.model.config)
    size = getattr(vision, "image_size", None)
    if size is None:
        raise UsageError(f"{loaded.name} takes no picture: give --text or --tokens")
    H, W = (size, size) if isinstance(size, int) else size
    array = np.asarray(picture.resize((W, H), resample=2), np.float32)  # 2: bilinear
    return np.ascontiguousarray((array / 127.5 - 1).transpose(2, 0, 1)[None])


def _opened(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("reading a picture needs Pillow: pip install 'firstbad[image]'") from None
    try:
        with Image.open(path) as file:
            return file.convert("RGB")
    except FileNotFoundError:
        raise UsageError(f"no file `{path}`: give a picture with --image") from None
    except Exception as error:  # whatever Pillow says of a file that is none
        raise UsageError(f"cannot read `{path}` as a picture: {first_line(error)}") from None


def _processed(picture: Any, loaded: Loaded) -> np.ndarray:
    from transformers import AutoImageProcessor

    assert loaded.place is not None
    auto: Any = AutoImageProcessor  # untyped
    try:
        processor = auto.from_pretrained(loaded.place.where, backend="pil", local_files_only=not loaded.place.remote)
        return np.asarray(processor(picture, return_tensors="np")["pixel_values"], np.float32)
    except Exception as error:  # no preprocessor_config.json, or a step that is not here
        raise UsageError(
            f"{loaded.name} does not say how a picture is prepared ({first_line(error)}): give --inputs FILE.npz"
        ) from None
