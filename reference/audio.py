"""A recording from disk as 16 kHz mono float32, at most 30 s of it, with every decision said.

Leaves out mel features (transformers' extractor makes them) and cutting long recordings into windows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firstbad.errors import UsageError

RATE = 16000
SECONDS = 30
"""Whisper's window."""

SILENCE = 1e-4
"""Peak (of 1.0) below which nobody hears anything: three steps of 16-bit audio."""

FORMATS = "wav, flac, mp3 or ogg"


def load(path: Path) -> tuple[np.ndarray, list[str]]:
    """(samples, notes for the user)."""
    import soundfile
    import soxr

    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"audio file `{path}` {what}: give a {FORMATS} file with --audio")
    try:
        with soundfile.SoundFile(path) as file:
            rate, channels = file.samplerate, file.channels
            whole = file.frames / rate
            samples = file.read((SECONDS + 1) * rate, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(f"cannot read `{path}` as audio: {reason}; give a {FORMATS} file") from None
    if len(samples) == 0:
        raise UsageError(f"`{path}` holds no sound: it has 0 samples")
    if not np.isfinite(samples).all():
        bad = int((~np.isfinite(samples)).any(1).sum())
        raise UsageError(f"`{path}` holds {bad} samples that are not finite (NaN or infinite): write it again")
    notes = []
    mono = samples.mean(1, dtype=np.float32)
    if channels > 1:
        notes.append(f"{channels} channels of the clip averaged to one")
    if rate != RATE:
        mono = np.asarray(soxr.resample(mono, rate, RATE), np.float32)
        notes.append(f"clip resampled from {rate} Hz to {RATE} Hz")
    if whole > SECONDS:
        notes.append(f"clip of {whole:.1f} s cut to {SECONDS}.0 s")
        mono = mono[: SECONDS * RATE]
    if np.abs(mono).max(initial=0.0) < SILENCE:
        notes.append("the clip is silent: the text is what the model makes of silence")
    return mono, notes


def made(seed: int, seconds: float) -> np.ndarray:
    """A sound made from a seed, the same on every machine: voiced syllables with pauses, over a little noise."""
    count = int(min(seconds, SECONDS) * RATE)
    random = np.random.Generator(np.random.PCG64(seed))
    t = np.arange(count) / RATE
    sound = np.zeros(count)
    start = 0.0
    while start < t[-1]:
        length, pitch, glide = random.uniform(0.08, 0.3), random.uniform(90, 260), random.uniform(-0.3, 0.3)
        here = (t >= start) & (t < start + length)
        x = t[here] - start
        swell = np.sin(np.pi * x / length) ** 2
        for harmonic in range(1, 9):
            tone = np.sin(2 * np.pi * harmonic * pitch * (x + glide * x**2))
            sound[here] += random.uniform(0.1, 1.0) / harmonic * swell * tone
        start += length + random.uniform(0.0, 0.15)
    sound += 0.01 * random.uniform(-1, 1, count)
    # Sines differ between maths libraries in their last bits: steps of 16-bit sound do not.
    return np.asarray(np.round(sound / np.abs(sound).max() * 20000) / 32768, np.float32)
