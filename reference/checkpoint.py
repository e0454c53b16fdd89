"""Where any model of transformers comes from, and which room runs it.

In this order: a folder with config.json and weights; an installed package that holds such a folder (or a zip of one),
by the package's name; the Hugging Face cache, then the hub. The name of a family (`llama`, `bert`) is one with random
weights: tiny.py. Leaves out Whisper (weights.py) and running anything.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad.arguments import did_you_mean
from firstbad.errors import UsageError
from firstbad.toolchain import cache_folder

from . import mapped
from .weights import _ids_as_text, _ready

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


@dataclass(frozen=True)
class Place:
    """Where a model's files are: `where` is what transformers' from_pretrained takes."""

    where: str
    source: str  # for people
    config: Mapping[str, Any]
    remote: bool = False  # not on this machine yet


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, and what its tokens mean."""

    model: Any
    name: str
    source: str
    ids: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]
    place: Place | None = None  # None: random weights
    minima: Mapping[str, Any] = field(default_factory=dict)  # of quantised weights: see Prepared
    stored: Mapping[str, tuple[str, np.ndarray]] = field(default_factory=dict)  # see Prepared.stored


def room_name(model: str) -> str:
    """`causal` (chooses tokens) or `encoder` (one pass), for the name of a family, a folder, a package or a hub name.

    Raises UsageError where it is none of them, or of a kind that has no room.
    """
    if families(model):
        return _room(model, ())
    config = find(model).config
    return _room(str(config.get("model_type", "")), config.get("architectures") or ())


def _room(kind: str, architectures: Iterable[str]) -> str:
    from transformers.models.auto import modeling_auto as auto

    encoders = (
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )
    if any(re.search(r"For(Causal|Conditional)|LMHead", name) for name in architectures):
        return "causal"
    if any(kind in names for names in encoders):
        return "encoder"
    if kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "causal"
    raise UsageError(
        f"no room for a `{kind}`: give a file of yours that makes it, --model FILE.py:factory --inputs FILE.npz"
    )


def families(name: str = "") -> list[str]:
    """The families that transformers knows; with a name that one alone, if it is one."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return [kind for kind in CONFIG_MAPPING if name in ("", kind)]


@lru_cache(maxsize=8)
def find(model: str) -> Place:
    """The files of a model that is no family's name."""
    folder = Path(model)
    if folder.is_dir():
        return Place(model, f"folder {model}", _config(folder))
    packaged = _in_package(model) if re.fullmatch(r"[A-Za-z0-9._-]+", model) else None
    if packaged is not None:
        return Place(str(packaged), f"package {model}", _config(packaged))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not model.startswith("."):
        return _on_hub(model)
    if families(model):
        raise UsageError(
            f"`{model}` is a family: give --random-weights SEED for a tiny one, or a folder, package or hub name"
        )
    if "/" in model:
        raise UsageError(f"no model in `{model}`: give a folder with config.json and weights, or --random-weights SEED")
    from firstbad.rooms import names

    hint = did_you_mean(model, [*names("reference"), *families()])
    ways = (
        "known: whisper, a folder with config.json and weights, a package, a hub name, a family with --random-weights"
    )
    raise UsageError(f"no model `{model}`: {hint or ways}")


def _config(folder: Path) -> dict[str, Any]:
    try:
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(
            f"no model in `{folder}`: give a folder with config.json and weights, or --random-weights SEED"
        )
    return config


def _in_package(name: str) -> Path | None:
    """The folder of a model in an installed package: as files, or in a zip that is unpacked once."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    for file in files:
        folder = Path(str(file.locate())).parent
        if file.name == "config.json" and any((folder / weights).is_file() for weights in WEIGHTS):
            return folder
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".zip" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if not {"config.json", "model.safetensors"} <= set(archive.namelist()):
                    continue
                folder = cache_folder() / "models" / f"{name}-{path.stat().st_size}"
                if not (folder / "model.safetensors").is_file():
                    archive.extractall(folder)
                return folder
    return None


def _on_hub(name: str) -> Place:
    from huggingface_hub import constants
    from transformers import AutoConfig

    auto: Any = AutoConfig  # untyped
    try:
        return Place(name, "Hugging Face cache", auto.from_pretrained(name, local_files_only=True).to_dict())
    except Exception:  # not there, or not whole: ask the hub
        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"no `{name}` on this machine, and HF_HUB_OFFLINE is set: give a folder with --model"
            ) from None
    try:
        return Place(name, "Hugging Face hub", auto.from_pretrained(name).to_dict(), remote=True)
    except Exception as error:  # no network, no such model, a proxy's page: all are one line for the user
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(
            f"no `{name}` here or on the Hugging Face hub ({reason}): give a folder with --model"
        ) from None


def load(model: str, factory: Callable[[Mapping[str, Any]], Any], *, offload: bool = False) -> Loaded:
    """The model with its weights: float32, eager attention, eval; `factory(config)` is the class of transformers.

    `offload`: the weights stay in their files (mapped.py).
    """
    from transformers.utils import logging

    place = find(model)
    quiet: Any = logging  # untyped
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    if place.remote:
        print(f"downloading {model} from the Hugging Face hub", file=sys.stderr)
    try:
        if offload:
            made = mapped.load(local_folder(place), factory(place.config))
        else:
            made = factory(place.config).from_pretrained(
                place.where, dtype=torch.float32, attn_implementation="eager", local_files_only=not place.remote
            )
    except UsageError:
        raise
    except Exception as error:  # whatever safetensors, torch or JSON say of a spoilt file
        raise UsageError(f"cannot load `{model}`: {first_line(error)}") from None
    known = _tokenizer(place)

    def ids(text: str) -> list[int]:
        if known is None:
            raise UsageError(f"`{model}` has no tokenizer that is known: give the prompt as ids with --tokens 1,2,3")
        return list(known(text).input_ids)

    def words(chosen: Sequence[int]) -> str:
        return _ids_as_text(chosen) if known is None else str(known.decode(list(chosen), skip_special_tokens=True))

    return Loaded(plain(made), model, place.source, ids, words, place)


def local_folder(place: Place) -> Path:
    """The folder of a model that is on this machine."""
    if Path(place.where).is_dir():
        return Path(place.where)
    from transformers.utils.hub import cached_file

    if place.remote:
        raise UsageError(f"`{place.where}` is not on this machine: --offload takes a folder, or a model that is here")
    return Path(str(cached_file(place.where, "config.json", local_files_only=True))).parent


def plain(model: Any) -> Any:
    """Ready to be recorded: no dropout, no gradients, and the rows of all experts in one product (grouped.py), so that
    the graph is the same whichever are chosen."""
    if getattr(model, "_can_set_experts_implementation", bool)():
        model.set_experts_implementation("grouped_mm")
    return _ready(model)


def _tokenizer(place: Place) -> Any:
    from transformers import AutoTokenizer

    if not place.remote and Path(place.where).is_dir() and not any(Path(place.where).glob("*token*")):
        return None  # transformers would make an empty one
    tokenizers: Any = AutoTokenizer  # untyped
    try:
        return tokenizers.from_pretrained(place.where, local_files_only=not place.remote)
    except Exception:  # a spoilt one, or code that is not here: ids can be given
        return None


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return str(error).strip().partition("\n")[0][:160]
