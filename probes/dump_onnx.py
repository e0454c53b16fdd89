"""ONNX TensorProtos in files: what ONNX Runtime's debug build writes for its nodes, and test data sets of ONNX models.

The name is the one in the proto, else the file's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firstbad.errors import CompareError, UsageError

from .dumped import Dumped, cut, files, name_of

KNOWN = ".pb and .tensorproto"


def read(folder: Path, taken: frozenset[Path]) -> Iterator[Dumped]:
    for path in files(folder, ".pb", ".tensorproto", without=taken):
        yield tensor(path, path.read_bytes(), name_of(path, folder))


def tensor(path: Path, data: bytes, name: str) -> Dumped:
    """The tensor in a TensorProto's bytes; `name` where it has none of its own."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise UsageError("ONNX tensors need onnx: pip install 'firstbad[onnx]'") from None
    proto = onnx.TensorProto()
    try:
        proto.ParseFromString(data)
        array = np.asarray(numpy_helper.to_array(proto))
    except Exception as error:  # protobuf and onnx have classes of their own for a spoilt file
        raise cut(path, error) from None
    if proto.data_type == onnx.TensorProto.UNDEFINED:
        raise CompareError(f"`{path}` is no ONNX tensor: write the dump again")
    low = proto.data_type == onnx.TensorProto.BFLOAT16
    return Dumped(proto.name or name, array.view(np.uint16) if low else array, path, "bfloat16" if low else "")
