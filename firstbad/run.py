"""What passes between the two engines of one run: the prepared input, the wishes of the user, and what came out.

Model rooms (`reference/NAME.py`) make a `Prepared`; every candidate (`probes/NAME.py`) is driven by it alone, so
both engines are given the very same features, prompt and weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from firstbad.replay import Executor
    from firstbad.trace import TraceWriter


@dataclass(frozen=True)
class ModelSpec:
    """What the user asked for: `--model whisper:base --audio clip.wav ...`."""

    model: str  # "whisper", "whisper:base", "openai/whisper-small", a folder, ...
    audio: Path | None = None
    random_weights: int | None = None  # seed; no weights file is needed
    audio_context: int | None = None  # encoder positions (1500 of a full 30 s window); None: all
    size: str = ""  # of a model with random weights: "tiny" (default) or "micro" (2 layers of width 64, for tests)
    text: tuple[str, ...] = ()  # prompts of a language model
    tokens: tuple[tuple[int, ...], ...] = ()  # prompts as ids
    image: Path | None = None  # a picture
    inputs: Path | None = None  # an .npz: the model's inputs by name
    offload: bool = False  # the reference's weights stay in their files, for a model larger than memory


@dataclass(frozen=True)
class Prepared:
    """What both engines are given."""

    family: str  # the model room that made this: "whisper"
    model: str  # for people: "openai/whisper-tiny.en"
    source: str  # for people: where the weights came from
    config: Mapping[str, Any]  # of the model, as plain data
    inputs: Mapping[str, np.ndarray]  # "input_features": float32 [1, M, 2T]
    prompt: tuple[int, ...]
    eos: int
    suppress: tuple[int, ...]  # ids never chosen
    begin_suppress: tuple[int, ...]  # ids not chosen as the first token
    weights: Mapping[str, np.ndarray]  # HF parameter name → float32 array (shared memory with the reference's)
    text: Callable[[Sequence[int]], str]  # token ids → text
    notes: tuple[str, ...] = ()  # decisions the user should see: "clip of 41.0 s cut to 30.0 s"
    spec: ModelSpec = field(default_factory=lambda: ModelSpec("whisper"))
    model_object: Any = None  # the loaded reference module; candidates never touch it
    first_step: str = "prefill"  # where a run begins
    minima: Mapping[str, np.ndarray] = field(default_factory=dict)  # of a quantised weight's blocks, [rows, blocks]
    stored: Mapping[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    """Parameter name → its type in the file and the blocks of each row, uint8 [rows, bytes]; where it has such."""
    vocabulary: Callable[[], Sequence[bytes]] | None = None  # the bytes of each token before the special ones, by id


@dataclass(frozen=True)
class CaptureOptions:
    """The wishes of the user for one capture."""

    max_tokens: int | None = None  # new tokens at most; None: as the model allows
    threads: int | None = None  # None: all cores
    timeout: float | None = None  # seconds until a silent candidate counts as hung
    steps: tuple[str, ...] = ()  # steps whose values are stored; (): all
    cflags: tuple[str, ...] = ()  # further compiler flags for the built-in engine
    kernels: tuple[Path, ...] = ()  # further C files for it: kernels of kinds `kind:variant`, see engine/runtime.h
    unfinished: bool = False  # the run whose tokens are given ended inside the step after its last token: that one too
    want: tuple[str, ...] | None = None  # patterns of the values that are stored (see want.py) instead; None: all
    before: tuple[tuple[int, ...], ...] = ()  # prompts of other requests, run first by the same engine (see BEFORE)
    hash_only: bool = False  # of every value its hash and a sketch are kept, and no array
    stop: tuple[str, ...] = ()  # patterns: the run may end once such a value was written
    sample_from: int | None = 0  # length from which rows of attention are kept (sampling.py); 0: never; None: default
    whole: tuple[str, ...] = ()  # patterns of the values that are kept whole all the same
    dither: str = ""  # a dtype: the last bit that a weight has in it is drawn anew (dither.py); the caller sees to it


@dataclass(frozen=True)
class RunOutput:
    """What an engine answered."""

    tokens: tuple[int, ...]  # chosen by the engine, without the prompt; the end token included if it came
    text: str
    complete: bool = True
    death: str = ""  # "" or "killed by SIGSEGV in op 57 `...` (kernels.c:120)"
    seconds: Mapping[str, float] = field(default_factory=dict)  # "run", "write", ...


@dataclass(frozen=True)
class Launch:
    """How an engine is started again from a folder that holds all it needs."""

    command: Sequence[str]  # words of a shell; a file of the folder by its name alone
    environment: Sequence[str] = ()  # NAME=value, as it stands in a shell


class ModelRoom(Protocol):
    """The face of `reference/NAME.py`."""

    def prepare(self, spec: ModelSpec) -> Prepared: ...

    def capture(
        self,
        prepared: Prepared,
        writer: TraceWriter,
        *,
        tokens: Sequence[int] | None,
        options: CaptureOptions,
    ) -> RunOutput: ...

    def executor(self, prepared: Prepared) -> Executor: ...


class CandidateAdapter(Protocol):
    """The face of `probes/NAME.py`."""

    def capture(self, argument: str, prepared: Prepared, trace_path: Path, options: CaptureOptions) -> RunOutput: ...
