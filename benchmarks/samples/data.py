"""The samples that all libraries write and read: made once, the same on every machine."""

import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["KINDS", "load", "make", "rows", "table"]

# Kind to samples: a number and a line of text, token ids, pictures.
KINDS = {"text": 1_000_000, "tokens": 20_000, "jpeg": 2_000}
TOKENS = 2048
SIDE = 256  # pixels


def make(folder: Path, scale: float) -> None:
    """Make the source files of all kinds, unless they are there."""
    for kind, count in KINDS.items():
        path = folder / f"{kind}.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            made = {"text": _text, "tokens": _tokens, "jpeg": _jpeg}[kind](
                max(64, int(scale * count))
            )
            np.savez(path, **made)


def load(folder: Path, kind: str) -> dict[str, Any]:
    """The columns of a kind: lists of Python values, or one array of tokens."""
    found = np.load(folder / f"{kind}.npz")
    if kind == "tokens":
        return {"tokens": found["tokens"]}
    joined, ends = found["joined"].tobytes(), found["ends"].tolist()
    blobs = [joined[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    if kind == "text":
        return {"num": found["num"].tolist(), "txt": [blob.decode() for blob in blobs]}
    return {"image": blobs, "label": found["num"].tolist()}


def rows(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples as dicts."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def table(columns: dict[str, Any]) -> Any:
    """The samples as an Arrow table."""
    arrow = import_module("pyarrow")
    if "tokens" in columns:
        flat = arrow.array(columns["tokens"].reshape(-1))
        return arrow.table({"tokens": arrow.FixedSizeListArray.from_arrays(flat, TOKENS)})
    return arrow.table(columns)


def _text(count: int) -> dict[str, Any]:
    """Lines of 1 to 17 words, 57 bytes on average."""
    draw = np.random.default_rng(0)
    words = [f"w{word:04}" for word in range(1000)]
    picks = iter(draw.integers(0, len(words), 18 * count).tolist())
    lengths = draw.integers(1, 18, count).tolist()
    lines = [" ".join(words[next(picks)] for _ in range(length)).encode() for length in lengths]
    return {"num": draw.integers(-(10**9), 10**9, count), **_join(lines)}


def _tokens(count: int) -> dict[str, Any]:
    draw = np.random.default_rng(1)
    return {"tokens": draw.integers(0, 50_000, (count, TOKENS), dtype=np.int32)}


def _jpeg(count: int) -> dict[str, Any]:
    """Smooth pictures with some noise, 28 kB each."""
    from PIL import Image

    draw = np.random.default_rng(2)
    blobs = []
    for _ in range(count):
        small = Image.fromarray(draw.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
        noise = draw.integers(-10, 11, (SIDE, SIDE, 1), dtype=np.int16)
        out = io.BytesIO()
        Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8)).save(
            out, "JPEG", quality=90
        )
        blobs.append(out.getvalue())
    return {"num": draw.integers(0, 1000, count), **_join(blobs)}


def _join(blobs: list[bytes]) -> dict[str, Any]:
    return {
        "joined": np.frombuffer(b"".join(blobs), np.uint8),
        "ends": np.cumsum([len(blob) for blob in blobs]),
    }
