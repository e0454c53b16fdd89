"""The picture of a result as SVG, for slides and issues. What is in it: plot.py."""

from __future__ import annotations

from firstbad.material import Material

from .plot import figure

FILE = "report.svg"


def render(material: Material) -> bytes:
    """The file."""
    return figure(material, "svg")
