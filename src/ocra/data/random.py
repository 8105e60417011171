"""Random numbers that are a pure function of (seed, split, index, draw): no state, no order, no sharing.

Each number is a 64-bit hash (the finaliser of SplitMix64) of its coordinates, so the image of index i is
the same in whatever batch, order or process it is made.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = (1 << 64) - 1


def mix(words: Bits) -> Bits:
    """Scramble 64-bit words so that every input bit affects every output bit; any shape."""
    words = words ^ (words >> np.uint64(30))
    words = words * np.uint64(0xBF58476D1CE4E5B9)
    words = words ^ (words >> np.uint64(27))
    words = words * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def random_bits(seed: int, stream: str, indices: NDArray[np.integer], draws: int) -> Bits:
    """Random words [indices, draws]; `stream` names what they are for (a task and its split)."""
    key = mix(np.array([(seed ^ (name_number(stream) << 32)) & _WORD], dtype=np.uint64) + _GOLDEN)
    per_index = mix(key + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    steps = np.arange(1, draws + 1, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    return mix(per_index[:, None] + steps)


def name_number(name: str) -> int:
    """A number for a name, the same on every machine."""
    return zlib.crc32(name.encode())


def integers(bits: Bits, limit: int | NDArray[np.integer]) -> Ints:
    """Whole numbers 0 … limit − 1, equally likely to one part in 2³²/limit; `limit` broadcasts."""
    return (((bits >> np.uint64(32)) * np.asarray(limit).astype(np.uint64)) >> np.uint64(32)).astype(np.int64)


def uniforms(bits: Bits) -> NDArray[np.float64]:
    """Real numbers in [0, 1)."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, stream: str, length: int) -> Ints:
    """A fixed shuffle of 0 … length − 1 that no library version can change."""
    return np.argsort(random_bits(seed, stream, np.arange(length), 1)[:, 0], kind="stable").astype(np.int64)
