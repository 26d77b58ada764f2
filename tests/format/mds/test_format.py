from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np

from streaming.format import Sample
from streaming.format.mds import MDSWriter
from tests.suites.format import FormatSuite


class TestNumbersAndTexts(FormatSuite):
    writer = MDSWriter
    columns: ClassVar = {
        "b": "bytes",
        "f": "float32",
        "i": "int",
        "j": "json",
        "s": "str",
        "t": "bool",
    }
    fuzz_rounds = 400

    def samples(self) -> list[Sample]:
        return [
            {
                "b": bytes(range(i)),
                "f": np.float32(i / 7),
                "i": (-3) ** i,
                "j": [i, {"a": None}],
                "s": "ab\N{SNOWMAN}\N{GRINNING FACE}"[i % 5 :] * (i % 4),
                "t": i % 2 == 0,
            }
            for i in range(12)
        ]


class TestFixedSizesOnly(FormatSuite):
    writer = MDSWriter
    columns: ClassVar = {
        "a": "ndarray:int32:2,3",
        "big": "ndarray:uint8:1500",
        "d": "date",
        "dt": "datetime",
        "flag": "ndarray:bool:3",
        "h": "float16",
        "i": "int64",
        "u": "uint8",
        "utc": "timestamp",
        "x": "float",
    }

    def samples(self) -> list[Sample]:
        return [
            {
                "a": np.arange(6, dtype=np.int32).reshape(2, 3) * i,
                "big": np.full(1500, i, np.uint8),
                "d": date(1960 + 9 * i, 2, 28),
                "dt": datetime(1969 + i, 12, 31, 23, 59, 59, 999_999),
                "flag": np.array([i % 2, i % 3, 1], np.bool_),
                "h": np.float16(i / 3),
                "i": np.int64(-i),
                "u": np.uint8(i * 20),
                "utc": datetime(1969 + i, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
                "x": i / 9,
            }
            for i in range(9)
        ]


class TestVariableSizesOnly(FormatSuite):
    writer = MDSWriter
    columns: ClassVar = {
        "any": "ndarray",
        "dec": "str_decimal",
        "float": "str_float",
        "int": "str_int",
        "lists": "list[list[int]]",
        "nd": "ndarray:float64",
        "nums": "list[float]",
        "texts": "list[str]",
    }

    def samples(self) -> list[Sample]:
        return [
            {
                "any": np.ones((i + 1, 2), [np.uint8, np.float16, np.int64][i % 3]),
                "dec": Decimal(i) / 8,
                "float": 0.1 * i,
                "int": 7 ** (20 * i),
                "lists": [[j] * j for j in range(i % 4)],
                "nd": np.linspace(0, 1, 300 * i + 1),
                "nums": [float(j) for j in range(i)],
                "texts": ["é" * j for j in range(i)],
            }
            for i in range(8)
        ]


class TestImages(FormatSuite):
    writer = MDSWriter
    columns: ClassVar = {
        "many": "list[png]",
        "pixels": "pil",
        "png": "png",
        "raw": "list[pil]",
    }
    fuzz_rounds = 200

    def samples(self) -> list[Sample]:
        return [
            {
                "many": [_image("L", i + 1, j + 1) for j in range(i)],
                "pixels": _image(["RGB", "L", "1", "RGBA", "CMYK"][i], 9, i + 1),
                "png": _image("RGB", i + 1, 4),
                "raw": [_image("RGB", 2, j + 1) for j in range(i)],
            }
            for i in range(5)
        ]


def _image(mode: str, width: int, height: int) -> Any:
    from PIL import Image

    pixels = np.arange(width * height * 3).reshape(height, width, 3) % 251
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)
