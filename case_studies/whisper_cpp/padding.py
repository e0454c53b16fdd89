"""The fault without firstbad: flash attention against plain attention, by the number of positions of the sound.

Where that number is a multiple of 256 nothing is padded and both agree; elsewhere they do not, and the more padding
there is, the less. Needs only pywhispercpp: python padding.py MODEL.bin CLIP.wav [POSITIONS ...]
"""

import sys

import numpy as np
from pywhispercpp import model as binding


def logits(path: str, audio: str, positions: int, flash: bool) -> tuple[str, np.ndarray]:
    """The text, and the logits of the last token."""
    engine = binding.Model(
        path,
        context_params={"flash_attn": flash, "use_gpu": False},
        n_threads=1,
        language="en",
        no_timestamps=True,
        single_segment=True,
        print_progress=False,
        temperature_inc=0.0,
        audio_ctx=positions,
        max_tokens=1,
    )
    text = " ".join(segment.text for segment in engine.transcribe(audio))
    return text, np.asarray(binding.pw.whisper_get_logits(engine._ctx), np.float64)


path, audio, *wanted = sys.argv[1:]
print("positions  padding  difference of the logits  text without / with flash attention")
for positions in map(int, wanted or ["40", "128", "255", "256", "257", "512", "1000", "1500"]):
    (plain_text, plain), (flash_text, fused) = (logits(path, audio, positions, flash) for flash in (False, True))
    off = np.linalg.norm(fused - plain) / np.linalg.norm(plain)
    print(f"{positions:9}  {-positions % 256:7}  {off:24.2e}  {plain_text!r} / {flash_text!r}", flush=True)
