"""firstbad: git bisect for tensors."""

from firstbad.tapping import step, tap

__all__ = ["__version__", "step", "tap"]

__version__ = "0.1.0"
