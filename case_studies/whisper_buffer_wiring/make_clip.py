"""Speaks the recording of this case study anew: python make_clip.py (needs espeak-ng; clip.wav was made with 1.51).

espeak-ng speaks at 22,050 Hz; Whisper hears 16,000 Hz mono.
"""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import soundfile
import soxr

TEXT = "I wanted a transcript of this recording, and I got only one word."
RATE = 16_000


def main() -> None:
    speak = ["espeak-ng", "-v", "en-us", "-s", "150", "--stdout", TEXT]
    spoken, rate = soundfile.read(io.BytesIO(subprocess.run(speak, check=True, capture_output=True).stdout))
    target = Path(__file__).with_name("clip.wav")
    soundfile.write(target, soxr.resample(spoken, rate, RATE), RATE, "PCM_16")
    print(f"{target}: {len(spoken) / rate:.1f} s")


if __name__ == "__main__":
    main()
