"""What passes the screen passes in full: by numbers at random, and on an engine with and without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own habit

from firstbad import screen
from firstbad.alignment import align
from firstbad.judge import Rows, Sums, judge, takes_blocks
from firstbad.local import Local, measure
from firstbad.noise import Pool, excesses, floor
from firstbad.reference.function import executor, record
from firstbad.trace import TraceWriter, open_trace

U = 2.0**-24

pytestmark = pytest.mark.skipif(not takes_blocks(), reason="without a compiler nothing is screened")


def against_twin(c: np.ndarray, t: np.ndarray, s: np.ndarray, heads: int = 1) -> Sums:
    rows = Rows(c.shape, U, heads=heads)
    rows.add(0, c, None, t, s)
    return rows.sums()


def test_sums_against_the_twin_are_those_with_the_twin_as_what_is_expected() -> None:
    rng = np.random.default_rng(1)
    t = rng.standard_normal((2, 70, 300)).astype(np.float32)
    c, s = (t * (1 + 3e-7 * rng.standard_normal(t.shape))).astype(np.float32), np.abs(t) + np.float32(0.1)
    own, plain = against_twin(c, t, s), judge(c, t.astype(np.float64), t, s, u=U)
    for name in ("candidate", "element", "gain", "gain_weight", "offset"):
        assert getattr(own, name) == pytest.approx(getattr(plain, name), rel=1e-5, abs=1e-6), name
    for name in ("rows", "columns", "groups", "gains", "offsets", "last"):
        a, b = getattr(own, name), getattr(plain, name)
        assert (a.index, a.count, a.length) == (b.index, b.count, b.length), name
        assert a.candidate == pytest.approx(b.candidate, rel=1e-4, abs=1e-6), name
    assert own.twin == own.element_twin == own.rows.twin == own.offsets.twin == 0


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_twin_that_is_no_number_leaves_a_doubt(number: float) -> None:
    t = np.ones((4, 50), np.float32)
    t[2, 7] = number
    assert against_twin(t, t, np.ones_like(t)).bad_nonfinite == 1
    t[2, 7] = -np.inf  # a mask, which both have
    assert against_twin(t, t, np.ones_like(t)).bad_nonfinite == 0


def test_heads_beside_each_other_have_gains_of_their_own() -> None:
    rng = np.random.default_rng(2)
    y = rng.standard_normal((90, 6 * 40))
    t, s = y.astype(np.float32), np.abs(y).astype(np.float32)
    c = y.copy()
    c[:, 80:120] *= 1 + 200 * U
    gains = judge(c.astype(np.float32), y, t, s, u=U, heads=6).gains
    assert (gains.count, gains.index) == (6, 2)
    assert gains.candidate == pytest.approx(200, rel=0.01)
    assert gains.length == pytest.approx(90 * 40, abs=1)  # y over its own size: each element counts as one


@pytest.mark.parametrize("seed", range(6))
def test_what_passes_the_screen_passes_in_full(seed: int) -> None:
    """Errors of every shape the tests look for, from far below the limits to far above them."""
    rng = np.random.default_rng(seed)
    passed = failed = 0
    for _ in range(60):
        y = rng.standard_normal((2, 128, 64)) * 10 ** rng.uniform(-2, 2)
        s = (np.abs(y) + rng.uniform(0, 1)).astype(np.float32)
        unit = U * s.astype(np.float64)
        noise = 10 ** rng.uniform(-1.5, 1)
        uneven = np.where(rng.random(64) < 0.1, 10 ** rng.uniform(0, 1), 1.0)  # columns are not alike
        t = (y + unit * noise * uneven * rng.standard_normal(y.shape)).astype(np.float32)
        c = y + unit * noise * uneven * rng.uniform(0.3, 2.5) * rng.standard_normal(y.shape)
        size, kind = 10 ** rng.uniform(-1, 3), rng.integers(6)
        at = tuple(rng.integers(n) for n in y.shape)
        if kind == 0:
            c[at] += size * unit[at]
        elif kind == 1:
            c[at[0], at[1]] += size * unit[at[0], at[1]]
        elif kind == 2:
            c[..., at[2]] += size * unit[..., at[2]]
        elif kind == 3:
            c[at[0]] *= 1 + size * U
        elif kind == 4:
            c[:, -1] += size * unit[:, -1]
        c = c.astype(np.float32)
        full = judge(c, y, t, s, u=U)
        rows = slice(int(rng.integers(2)), None, 2)
        sample = judge(c[:, rows], y[:, rows], t[:, rows], s[:, rows], u=U)
        seen = screen.seen(against_twin(c, t, s), sample)
        doubt = any(x.bad for x in excesses(seen, floor(seen, Pool(), None), exact=False, factor=screen.STRICT))
        bad = any(x.bad for x in excesses(full, floor(full, Pool(), None), exact=False))
        assert doubt or not bad, (seed, kind, size)
        passed += not doubt
        failed += bad
    assert passed > 10, "the screen lets something through"
    assert failed > 10, "and some of it is bad"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.fc(x))
        q = h.view(1, 48, 3, 8).transpose(1, 2).contiguous()
        mixed = torch.matmul(torch.softmax(torch.matmul(q, q.transpose(2, 3) * 0.5), -1), q)
        return F.gelu(h + mixed.transpose(1, 2).reshape(1, 48, 24))


FAULTS: dict[str, tuple[str, Callable[[np.ndarray], None]]] = {
    "none": ("fc", lambda x: None),
    "an element": ("softmax", lambda x: x.__setitem__((0, 2, 33, 5), x[0, 2, 33, 5] * 1.001)),
    "a column": ("fc", lambda x: x.__setitem__((..., 7), 0)),
    "a head": ("matmul_1", lambda x: x.__setitem__((0, 1), x[0, 1] * np.float32(1.0001))),
    "the last row": ("gelu", lambda x: x.__setitem__((0, -1), x[0, -2])),
    "not a number": ("matmul", lambda x: x.__setitem__((0, 0, 3, 3), np.nan)),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Attention, torch.Tensor]:
    torch.manual_seed(4)
    module = Attention()
    path, x = tmp_path_factory.mktemp("screen") / "reference.h5", torch.randn((1, 48, 24))
    with TraceWriter(path, "reference", "torch") as writer:
        record(module, [("x", x)], writer)
    return path, module, x


@pytest.mark.parametrize("name", FAULTS)
def test_the_screen_finds_what_float64_finds(
    name: str, recorded: tuple[Path, Attention, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, module, x = recorded
    weights = {n: t.detach().numpy() for n, t in module.named_parameters()}
    candidate = tmp_path / "candidate.h5"
    with TraceWriter(candidate, "candidate", "torch") as writer:
        record(module, [("x", x)], writer)
    with h5py.File(candidate, "r+") as file:
        value, plant = FAULTS[name]
        data = next(n for key, n in file["values/call"].items() if key == value)
        array = data[()]
        plant(array)
        data[()] = array
    with monkeypatch.context() as patch, open_trace(reference) as ours, open_trace(candidate) as theirs:
        patch.setattr(screen, "LEAST", 100)
        patch.setattr(screen, "ROWS", 24)
        alignment = align(ours.graph, theirs.graph, ours.array, theirs.array)

        def judged(screening: bool) -> Local:
            return measure(ours, theirs, alignment, executor(weights), screening=screening)

        full, quick = judged(False), judged(True)
    assert [j.name for j in quick.values if j.bad] == [j.name for j in full.values if j.bad]
    assert any(j.bad for j in full.values) == (name != "none")
    sampled = [(a, b) for a, b in zip(quick.values, full.values, strict=True) if a.sums.twin != b.sums.twin]
    assert len(sampled) > 3, "some were measured on a sample"
    for a, b in sampled:
        assert a.sums.local_error == pytest.approx(b.sums.local_error, rel=0.6, abs=2 * U), a.name
        assert a.noise_floor == pytest.approx(b.noise_floor, rel=0.6), a.name
        assert a.worst.ratio == pytest.approx(b.worst.ratio, rel=0.6), "not from the twin"
    for a, b in zip(quick.values, full.values, strict=True):
        if b.bad:
            assert a.sums.candidate == pytest.approx(b.sums.candidate, rel=1e-4, nan_ok=True), "and what is bad in full"
            assert a.sums.element_index == b.sums.element_index
