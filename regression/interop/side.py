"""One side of the exchange: writes datasets, or reads them and says what is in them.

The same file runs under this library and under mosaicml-streaming, by the API both have.

usage: side.py write ROOT | side.py read ROOT
"""

import decimal
import hashlib
import io
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")

from streaming import MDSWriter, StreamingDataset  # noqa: E402

NUMBERS = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
COMPRESSIONS = [
    None,
    *("br br:0 br:11 bz2 bz2:1 bz2:9 gz gz:0 gz:9 snappy zstd zstd:1 zstd:22".split()),
]
HASHES = sorted(
    "blake2b blake2s md5 sha1 sha224 sha256 sha384 sha512 sha3_224 sha3_256 sha3_384 sha3_512 "
    "xxh32 xxh64 xxh128 xxh3_64 xxh3_128".split()
)
COLUMNS = {
    "text": "str",
    "raw": "bytes",
    "count": "int",
    "big": "str_int",
    "ratio": "str_float",
    "price": "str_decimal",
    "tree": "json",
    "plain": "pil",
    "photo": "jpeg",
    "drawing": "png",
    "plains": "list[pil]",
    "photos": "list[jpeg]",
    "drawings": "list[png]",
    "frames": "jpegarray",
    "frames2": "jpeg_array",
    "any": "ndarray",
    **{f"one_{name}": name for name in NUMBERS},
    **{f"some_{name}": f"ndarray:{name}" for name in NUMBERS},
    **{f"grid_{name}": f"ndarray:{name}:2,3" for name in NUMBERS},
    "objects": "pkl",
}


def image(rng: np.random.Generator, mode: str, width: int, height: int) -> Image.Image:
    pixels = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(rng: np.random.Generator) -> bytes:
    data = io.BytesIO()
    image(rng, "RGB", 9, 7).save(data, format="JPEG")
    return data.getvalue()


def samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        array = rng.standard_normal((i % 3 + 1, 4)).astype(np.float32)
        sample = {
            "text": ["", "naïve 你好 \U0001f600", "line\nbreak\0", "x" * 5000][i % 4],
            "raw": bytes(rng.integers(0, 256, i * 7, dtype=np.uint8)),
            "count": [0, -1, 2**63 - 1, -(2**63), True][i % 5],
            "big": [0, -(10**40), 2**64][i % 3],
            "ratio": [0.1, -0.0, 1e300, float("inf"), float("nan")][i % 5],
            "price": [decimal.Decimal("0.10"), decimal.Decimal("-1E+9")][i % 2],
            "tree": [{"b": [1, 2.5, None], "a": {"é": []}}, [], "text", None, 3][i % 5],
            "plain": image(rng, ["RGB", "L", "RGBA", "CMYK", "1"][i % 5], 5, 4),
            "photo": image(rng, ["RGB", "L"][i % 2], 8, 8),
            "drawing": image(rng, ["RGB", "L", "RGBA"][i % 3], 6, 3),
            "plains": [image(rng, "RGB", 2, 2) for _ in range(i % 3)],
            "photos": [image(rng, "RGB", 8, 8) for _ in range(i % 3)],
            "drawings": [image(rng, "L", 3, 2) for _ in range(i % 3)],
            "frames": [jpeg(rng) for _ in range(i % 3 + 1)],
            "frames2": [jpeg(rng) for _ in range(i % 2 + 1)],
            "any": [array, array.astype(np.int64), np.asfortranarray(array)][i % 3],
            "objects": {"set": {1, 2}, "none": None, "i": i},
        }
        for name in NUMBERS:
            sample[f"one_{name}"] = np.dtype(name).type(i * 3)
            sample[f"some_{name}"] = np.arange(1, 300 * (i % 2) + 3).astype(name)
            sample[f"grid_{name}"] = (np.arange(6).reshape(2, 3) + i).astype(name)
        made.append(sample)
    return made


def datasets() -> dict[str, dict[str, Any]]:
    """Name to arguments of the writer."""
    everything = {
        f"codec-{codec}".replace(":", "-"): {"compression": codec} for codec in COMPRESSIONS
    }
    hashed = {f"hash-{name}": {"hashes": [name], "compression": "zstd"} for name in HASHES}
    limits = {f"limit-{limit}": {"size_limit": limit} for limit in (None, "8kb", 1 << 15)}
    return {**everything, **hashed, **limits, "all-hashes": {"hashes": HASHES}}


def describe(value: Any) -> Any:
    """A value as JSON that is equal just for equal values of equal types."""
    if isinstance(value, Image.Image):
        return ["image", value.mode, value.size, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, value.shape, value.tobytes().hex()[:400]]
    if isinstance(value, np.generic):
        return ["scalar", value.dtype.str, repr(value.item())]
    if isinstance(value, list):
        return ["list", *map(describe, value)]
    if isinstance(value, dict):
        return ["dict", {str(key): describe(each) for key, each in sorted(value.items())}]
    return [type(value).__name__, repr(value)[:400]]


def write(root: Path) -> None:
    made = samples(25)
    for name, arguments in datasets().items():
        options = {"size_limit": 1 << 16, **arguments}
        with MDSWriter(out=str(root / name), columns=COLUMNS, **options) as writer:
            for sample in made:
                writer.write(sample)


def read(root: Path, local: Path) -> None:
    found = {}
    for name, arguments in datasets().items():
        dataset = StreamingDataset(
            remote=str(root / name),
            local=str(local / name),
            batch_size=1,
            allow_unsafe_types=True,
            validate_hash=arguments["hashes"][0] if "hashes" in arguments else None,
        )
        found[name] = [describe(sample) for sample in dataset]
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        read(Path(sys.argv[2]), Path(sys.argv[3]))
