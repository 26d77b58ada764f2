"""A block of samples is decoded to what its samples give one by one, in every encoding."""

import string
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from streaming.errors import ConfigError, SampleError, ShardCorruptError, UnknownNameError
from streaming.format import BytesColumn, Sample, open_reader
from streaming.format.column import Pieces
from streaming.format.mds import MDSWriter
from streaming.format.mds.encodings import encodings
from streaming.format.mds.reader import _FEW
from tests.common.golden import load_index, open_shards
from tests.suites.format import plain, rows_of

MANY = _FEW + 8  # enough that a block is not decoded one by one


def _images(mode: str, format: str | None) -> st.SearchStrategy[Any]:
    image = pytest.importorskip("PIL.Image")

    def make(pixel: int) -> Any:
        made = image.new(mode, (3, 2), pixel)
        if format is None:
            return made
        from io import BytesIO

        out = BytesIO()
        made.save(out, format=format)
        return image.open(BytesIO(out.getvalue()))

    return st.integers(0, 255).map(make)


def _jpeg_bytes(pixel: int) -> bytes:
    from io import BytesIO

    out = BytesIO()
    pytest.importorskip("PIL.Image").new("L", (4, 4), pixel).save(out, format="JPEG")
    return out.getvalue()


def _tensors(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    torch = pytest.importorskip("torch")
    return st_numpy.arrays(np.int32, shape).map(torch.from_numpy)


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return (
        st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if signed
        else st.integers(0, 2**bits - 1)
    )


def _floats(bits: int) -> st.SearchStrategy[float]:
    return st.floats(width=bits, allow_nan=False)  # type: ignore[arg-type]


SHAPES = st_numpy.array_shapes(max_dims=3, max_side=3)

# Encoding, as it stands in an index, to a strategy for its values; made when they are needed.
VALUES: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
    "bool": st.booleans,
    "bytes": st.binary,
    "date": st.dates,
    "datetime": st.datetimes,
    "float": lambda: st.floats(allow_nan=False),
    **{f"float{bits}": (lambda bits=bits: _floats(bits)) for bits in (16, 32, 64)},  # type: ignore[misc]
    "int": lambda: _integers(64, True),
    **{f"int{bits}": (lambda bits=bits: _integers(bits, True)) for bits in (8, 16, 32, 64)},  # type: ignore[misc]
    **{f"uint{bits}": (lambda bits=bits: _integers(bits, False)) for bits in (8, 16, 32, 64)},  # type: ignore[misc]
    "jpeg": lambda: _images("L", "JPEG"),
    "jpeg_array": lambda: st.lists(st.integers(0, 255).map(_jpeg_bytes), min_size=1, max_size=2),
    "jpegarray": lambda: st.lists(st.integers(0, 255).map(_jpeg_bytes), min_size=1, max_size=2),
    "json": lambda: st.recursive(st.none() | st.text(string.ascii_letters), st.lists, max_leaves=4),
    "list[jpeg]": lambda: st.lists(_images("L", "JPEG"), max_size=2),
    "list[pil]": lambda: st.lists(_images("L", None), max_size=2),
    "list[png]": lambda: st.lists(_images("L", "PNG"), max_size=2),
    "list[int]": lambda: st.lists(_integers(64, True)),
    "list[str]": lambda: st.lists(st.text()),
    "list[list[bool]]": lambda: st.lists(st.lists(st.booleans())),
    "ndarray": lambda: st_numpy.arrays(st.sampled_from([np.uint8, np.float32]), SHAPES),
    "ndarray:int16": lambda: st_numpy.arrays(np.int16, SHAPES),
    "ndarray:int32:2,3": lambda: st_numpy.arrays(np.int32, (2, 3)),
    "ndarray:bool:3": lambda: st_numpy.arrays(np.bool_, (3,)),
    "ndarray:float64:200": lambda: st.integers().map(lambda i: np.arange(200.0) + i % 99),
    "pil": lambda: _images("RGB", None),
    "pkl": lambda: st.tuples(st.integers(), st.text()),
    "png": lambda: _images("RGB", "PNG"),
    "str": st.text,
    "str_decimal": lambda: st.decimals(allow_nan=False, allow_infinity=False).map(Decimal),
    "str_float": lambda: st.floats(allow_nan=False),
    "str_int": st.integers,
    "tensor": lambda: _tensors((2, 2)),
    "tensor:int32": lambda: _tensors((3,)),
    "tensor:int32:2,2": lambda: _tensors((2, 2)),
    "timestamp": lambda: st.datetimes(timezones=st.just(UTC)),
}


def test_every_encoding_has_its_values_here() -> None:
    assert set(encodings) <= {name.partition(":")[0] for name in VALUES}


@pytest.fixture(params=["pyarrow", "without pyarrow"])
def arrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are gathered by pyarrow where a program has loaded it; here both ways are tried."""
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    else:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)


def write(out: Path, columns: dict[str, str], samples: list[Sample]) -> Any:
    with MDSWriter(columns=columns, out=out, exist_ok=True) as writer:
        for sample in samples:
            writer.write(sample)
    (info,) = load_index(out)
    return open_reader(info, [out / "shard.00000.mds"], allow_unsafe_types=True)


def comparable(samples: list[Sample]) -> list[dict[str, Any]]:
    return [{name: _plain(value) for name, value in sample.items()} for sample in samples]


def _plain(value: Any) -> Any:
    if isinstance(value, (date, datetime, tuple)):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return plain(value)


def as_arrays(samples: list[dict[str, Any]]) -> str:
    """The same, where a tensor and an array of equal values are alike, and all kinds of numbers."""

    def value_of(value: Any) -> Any:
        if hasattr(value, "numpy"):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            return (value.dtype.str, value.tolist())
        return _plain(value.item() if isinstance(value, np.generic) else value)

    return str([{name: value_of(value) for name, value in row.items()} for row in samples])


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.usefixtures("arrow")
@settings(max_examples=5)
@given(data=st.data())
def test_block_single_and_column_give_the_same(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = data.draw(st.lists(VALUES[kind](), min_size=1, max_size=4))
    texts = data.draw(st.lists(st.text(), min_size=len(values), max_size=len(values)))
    samples: list[Sample] = [
        # Around it, so that it does not always begin at the same place.
        {"a": text, "b": value, "c": i, "d": text.encode()}
        for i, (value, text) in enumerate(zip(values, texts, strict=True))
    ]
    columns = {"a": "str", "b": kind, "c": "uint16", "d": "bytes"}
    reader = write(tmp_path_factory.mktemp("blocks"), columns, samples)
    picks = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=5))
    places = np.resize(np.array([*picks, *range(len(samples))], np.int64), MANY)
    block = comparable(reader.take(places))
    assert len(block) > _FEW
    assert block == comparable([reader.get_item(place) for place in places.tolist()])
    assert block == comparable([reader.decode_sample(reader.read_raw(i)) for i in places.tolist()])
    assert as_arrays(rows_of(reader.take_columns(places))) == as_arrays(reader.take(places))
    check_stacked(reader, places)


def check_stacked(reader: Any, places: Any) -> None:
    """Each stack is what torch's default collate makes one tensor of, or the values themselves."""
    torch_data = pytest.importorskip("torch.utils.data")
    rows, stacks = reader.take(places), reader.take_stacked(places)
    assert list(stacks) == list(rows[0])
    for name, stack in stacks.items():
        values = [row[name] for row in rows]
        if isinstance(stack, list):
            assert comparable([{name: value} for value in stack]) == comparable(
                [{name: value} for value in values]
            )
            continue
        array = stack.to_array() if isinstance(stack, Pieces) else stack
        expected = torch_data.default_collate(values)
        assert (array.dtype, array.shape) == (expected.numpy().dtype, tuple(expected.shape))
        assert np.array_equal(array, expected.numpy(), equal_nan=array.dtype.kind in "fc")


@pytest.mark.parametrize("names", [["a"], ["b", "d"], ["c"], []])
def test_chosen_columns_are_the_same_one_by_one(tmp_path: Path, names: list[str]) -> None:
    columns = {"a": "str", "b": "ndarray:int16:2", "c": "float", "d": "bytes"}
    samples = [
        {"a": "x" * i, "b": np.array([i, 1], np.int16), "c": i / 2, "d": b"y" * i} for i in range(9)
    ]
    write(tmp_path, columns, samples)
    (info,) = load_index(tmp_path)
    reader = open_reader(info, [tmp_path / "shard.00000.mds"], names)
    places = np.arange(MANY) % 9
    block = reader.take(places)
    assert [list(sample) for sample in block] == [names] * MANY
    assert comparable(block) == comparable([reader.get_item(i) for i in places.tolist()])


def test_sizes_that_do_not_add_up_are_found_in_a_block_and_alone(tmp_path: Path) -> None:
    samples = [{"a": "abc", "b": "de"} for _ in range(5)]
    write(tmp_path, {"a": "str", "b": "str"}, samples)
    (info,) = load_index(tmp_path)
    path = tmp_path / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    reader = open_reader(info, [path])
    begin = int.from_bytes(data[4 + 4 * 3 : 8 + 4 * 3], "little")
    for size in (0, 4, 2**31, 2**32 - 1):
        data[begin : begin + 4] = size.to_bytes(4, "little")
        path.write_bytes(bytes(data))
        reader = open_reader(info, [path])
        with pytest.raises(ShardCorruptError, match=r"sample 3 of .*shard\.00000\.mds"):
            reader.get_item(3)
        for take in (reader.take, reader.take_columns, reader.take_parts, reader.take_stacked):
            with pytest.raises(ShardCorruptError, match=r"sample 3 of .*shard\.00000\.mds"):
                take(np.arange(MANY) % 5)


class TestDecoders:
    """Functions that decode columns in place of their encodings."""

    def reader(self, tmp_path: Path) -> Any:
        return write(tmp_path, {"a": "str", "n": "int"}, [{"a": "x" * i, "n": i} for i in range(5)])

    def test_they_get_the_stored_bytes(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        reader.use_decoders({"a": len, "n": lambda data: data.hex()})
        assert reader[2] == {"a": 2, "n": "0200000000000000"} == reader.take(np.array([2]))[0]
        block = reader.take(np.arange(MANY) % 5)
        assert [sample["a"] for sample in block[:5]] == [0, 1, 2, 3, 4]
        assert reader.take_columns(np.arange(3))["a"] == [0, 1, 2]

    def test_what_they_raise_names_the_sample(self, tmp_path: Path) -> None:
        reader = self.reader(tmp_path)
        reader.use_decoders({"a": lambda data: 1 // (len(data) - 3)})
        for count in (5, MANY):
            with pytest.raises(SampleError, match=r"'a' of sample 3 .*ZeroDivisionError"):
                reader.take(np.arange(count) % 5)

    def test_a_column_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownNameError, match="no such column. Known: a, n"):
            self.reader(tmp_path).use_decoders({"b": len})

    def test_a_format_without_stored_values_refuses_them(self, golden: Path) -> None:
        root = golden / "datasets" / "formats" / "json"
        info = load_index(root).shard(0)
        reader = open_reader(info, [root / raw.basename for raw, _ in info.files])
        with pytest.raises(ConfigError, match="'json' does not store"):
            reader.use_decoders({"x": len})


def test_texts_of_a_column_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    write(tmp_path, {"a": "bytes"}, [{"a": b"\xc3"}, {"a": b"\xa9"}])
    (info,) = load_index(tmp_path)
    info.extra["column_encodings"][0] = "str"
    reader = open_reader(info, [tmp_path / "shard.00000.mds"])
    with pytest.raises(SampleError, match="sample 0"):
        reader.take_columns(np.arange(2))
    assert BytesColumn.join([b"\xc3\xa9"], is_text=True)[0] == "é"


def test_recorded_data_are_the_same_in_a_block_and_alone(golden: Path, tmp_path: Path) -> None:
    roots = sorted((golden / "datasets" / "formats").glob("mds_*"))
    assert len(roots) > 10
    for root in roots:
        if not (root / "index.json").exists():
            continue
        for reader in open_shards(root, tmp_path, allow_unsafe_types=True):
            if not len(reader):
                continue
            places = np.resize(np.arange(len(reader)), MANY)
            block = comparable(reader.take(places))
            assert block == comparable([reader.get_item(place) for place in places.tolist()])


TEXTS = ["", "plain", "zwölf", "\u4e2d\u6587", "\U0001f600", "--", "\x01", "a\r\nb", "\ufeff"]


@pytest.mark.parametrize("extra", ["", "\0", "\0----------\0", "x" * 100_000])
@pytest.mark.parametrize("columns", [("s",), ("s", "n"), ("n", "s"), ("s", "n", "t")])
def test_texts_that_are_decoded_together_are_what_each_is_alone(
    tmp_path: Path, columns: tuple[str, ...], extra: str
) -> None:
    kinds = {"s": "str", "n": "int", "t": "str"}
    texts = [*TEXTS * 8, extra]
    rows = [{"s": text, "n": -i, "t": text[::-1]} for i, text in enumerate(texts)]
    rows = [{name: row[name] for name in columns} for row in rows]
    with MDSWriter(columns={name: kinds[name] for name in columns}, out=str(tmp_path)) as writer:
        for row in rows:
            writer.write(row)
    (reader,) = open_shards(tmp_path, tmp_path)
    assert reader.take(np.arange(len(rows))) == rows
    assert reader.take(np.arange(len(rows))[::-1]) == rows[::-1]
    assert reader.take(np.arange(0, len(rows)).repeat(2)) == [row for row in rows for _ in "ab"]


@pytest.mark.parametrize("cut", [b"\xff", b"\xe4\xb8", b"\xf0\x9f\x98"])
def test_a_text_that_is_cut_in_a_character_is_not_mended_by_the_next(
    tmp_path: Path, cut: bytes
) -> None:
    with MDSWriter(columns={"s": "str", "n": "int"}, out=str(tmp_path)) as writer:
        for i in range(MANY):
            writer.write({"s": "#" * len(cut) if i == 7 else "text", "n": i})
    path = tmp_path / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"#" * len(cut), cut))
    (reader,) = open_shards(tmp_path, tmp_path)
    with pytest.raises(SampleError, match=r"'s' of sample 7 of"):
        reader.take(np.arange(MANY))
