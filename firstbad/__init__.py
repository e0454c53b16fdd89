"""firstbad: git bisect for tensors."""

__version__ = "0.1.0"
