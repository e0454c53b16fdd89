"""A Whisper's weights in whisper.cpp's format, of one type: python quantise.py q5_0 tiny.q5_0.bin [--model whisper]

Both engines of a comparison can then be given the file: firstbad diff --model tiny.q5_0.bin ...
"""

import argparse
from pathlib import Path

from firstbad import whisper_file
from firstbad.probes.ggml import filters
from firstbad.reference import whisper
from firstbad.run import ModelSpec

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("type", choices=sorted(whisper_file.TYPES))
parser.add_argument("path", type=Path)
parser.add_argument("--model", default="whisper", help="as for `firstbad diff`")
args = parser.parse_args()

clip = Path(__file__).parents[1] / "whisper_buffer_wiring/clip.wav"
full = whisper.prepare(ModelSpec(args.model, clip))
words = full.vocabulary() if full.vocabulary is not None else ()
whisper_file.write(args.path, full.weights, full.config, filters=filters(full), vocabulary=words, kind=args.type)
