"""The picture of a result as PNG, for slides and issues. What is in it: plot.py."""

from __future__ import annotations

from firstbad.material import Material

from .plot import figure

FILE = "report.png"


def render(material: Material) -> bytes:
    """The file."""
    return figure(material, "png")
