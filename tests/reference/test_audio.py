"""Recordings of every kind, and what is said about each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from firstbad.errors import UsageError
from firstbad.reference import audio


def tone(seconds: float, rate: int, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def peak_hertz(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * audio.RATE / len(samples))


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "ogg"])
@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (44100, 2), (8000, 1), (48000, 6)])
def test_formats_rates_and_channels(tmp_path: Path, form: str, rate: int, channels: int) -> None:
    if form == "mp3" and channels > 2:
        pytest.skip("mp3 has two channels at most")
    path = tmp_path / f"x.{form}"
    soundfile.write(path, np.tile(tone(1.0, rate)[:, None], (1, channels)), rate)
    samples, notes = audio.load(path)
    assert samples.dtype == np.float32
    assert abs(len(samples) - audio.RATE) < 0.1 * audio.RATE  # mp3 pads
    assert abs(peak_hertz(samples) - 440) < 2
    assert any("resampled" in n for n in notes) == (rate != audio.RATE)
    assert any(f"{channels} channels" in n for n in notes) == (channels > 1)


def test_channels_are_averaged(tmp_path: Path) -> None:
    left, right = tone(0.5, 16000), tone(0.5, 16000, 880)
    soundfile.write(tmp_path / "x.wav", np.stack([left, right], 1), 16000, subtype="FLOAT")
    samples, _ = audio.load(tmp_path / "x.wav")
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-7)


def test_a_long_clip_is_cut_and_said(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", tone(41.0, 8000), 8000)
    samples, notes = audio.load(tmp_path / "x.wav")
    assert len(samples) == 30 * audio.RATE
    assert "clip of 41.0 s cut to 30.0 s" in notes


def test_silence_is_said(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.zeros(8000, np.float32), 16000)
    samples, notes = audio.load(tmp_path / "x.wav")
    assert not samples.any()
    assert any("silent" in n for n in notes)
    soundfile.write(tmp_path / "y.wav", tone(0.5, 16000) * 0.01, 16000)
    assert audio.load(tmp_path / "y.wav")[1] == []


def test_what_is_no_recording_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("hello " * 100)
    (tmp_path / "empty.wav").write_bytes(b"")
    soundfile.write(tmp_path / "none.wav", np.zeros(0, np.float32), 16000)
    bad = tone(0.1, 16000)
    bad[5], bad[7] = np.nan, np.inf
    soundfile.write(tmp_path / "nan.wav", bad, 16000, subtype="FLOAT")
    whole = tmp_path / "whole.flac"
    soundfile.write(whole, tone(1.0, 16000), 16000)
    (tmp_path / "cut.flac").write_bytes(whole.read_bytes()[:30])
    for name, message in [
        ("missing.wav", "does not exist"),
        (".", "is a folder"),
        ("text.wav", "cannot read"),
        ("empty.wav", "cannot read"),
        ("none.wav", "0 samples"),
        ("nan.wav", "2 samples that are not finite"),
        ("cut.flac", "cannot read"),
    ]:
        with pytest.raises(UsageError, match=message) as raised:
            audio.load(tmp_path / name)
        assert "\n" not in str(raised.value)
