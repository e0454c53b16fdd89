"""Transcribes a recording with the stock whisper.cpp of PyPI (pywhispercpp), which ships no command of its own.

Prints the text and a digest of the last logits: two runs that print the same computed the same.
"""

import argparse
import hashlib

import numpy as np
from pywhispercpp import model as binding

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", help="a model in whisper.cpp's format")
parser.add_argument("audio", help="a WAV file of 16 kHz")
parser.add_argument("--audio-context", type=int, default=0, help="encoder positions; 0: all 1500")
parser.add_argument("--max-tokens", type=int, default=0, help="0: any number")
parser.add_argument("--flash", action="store_true", help="with flash attention, as the wheel does by default")
parser.add_argument("--beam", type=int, default=0, help="beam search of so many")
parser.add_argument("--twice", action="store_true", help="the same again")
args = parser.parse_args()

beams = {"params_sampling_strategy": 1, "beam_search": {"beam_size": args.beam, "patience": -1.0}} if args.beam else {}
model = binding.Model(
    args.model,
    context_params={"flash_attn": args.flash, "use_gpu": False},
    n_threads=1,
    language="en",
    no_timestamps=True,
    single_segment=True,
    print_progress=False,
    temperature_inc=0.0,
    audio_ctx=args.audio_context,
    max_tokens=args.max_tokens,
    **beams,
)
if args.twice:
    model.transcribe(args.audio)
text = " ".join(segment.text for segment in model.transcribe(args.audio))
logits = np.asarray(binding.pw.whisper_get_logits(model._ctx), np.float32)
print(text)
print("logits", hashlib.sha256(logits.tobytes()).hexdigest())
