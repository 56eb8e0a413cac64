"""SI and binary multiples, so that constants read as they are published (``3.35 * TB``, ``80 * GIB``).

Inside the package every quantity is in base units (bytes, seconds, FLOP); conversion happens at the edges.
"""

KB = 1e3
MB = 1e6
GB = 1e9
TB = 1e12
KIB = 1024
MIB = 1024**2
GIB = 1024**3
TFLOPS = 1e12
US = 1e-6
MS = 1e-3

DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
    "int32": 4.0,
    "int64": 8.0,
}
"""Bytes per element by torch dtype name (without the ``torch.`` prefix)."""


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of ``dtype`` (a torch dtype name such as ``"bfloat16"``).

    Raises:
        KeyError: for a dtype this package does not know.
    """
    return DTYPE_BYTES[dtype]
