"""Files that are damaged, hostile, encrypted or not Parquet at all; and row groups of any size."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
import pyarrow.parquet as pq  # noqa: E402
import pyarrow.parquet.encryption as pe  # noqa: E402

from streaming import StreamingDataset  # noqa: E402
from streaming.errors import DataError, ShardCorruptError, StreamingError  # noqa: E402
from streaming.format.parquet.chunks import ChunkScanner  # noqa: E402
from tests.common.parquet import nested_table, number_table, obtain, open_files  # noqa: E402

REAL = Path(__file__).parents[4] / "shared" / "real" / "parquet" / "bad"


def read(path: Path, cache: Path) -> int:
    """Read all there is in all ways; the number of rows."""
    rows = 0
    for reader in open_files(path, cache):
        rows += len(list(reader))
        for column in reader.take_columns(np.arange(len(reader))).values():
            list(column)
    return rows


def good(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(number_table(0, 40), sink, row_group_size=15, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: b"", r"has 0 bytes, too few"),
        (lambda data: b"PAR1PAR1", r"has 8 bytes, too few"),
        (lambda data: data[:-1], r"not a Parquet file, or was cut: it ends with"),
        (lambda data: data[: len(data) // 2], r"not a Parquet file, or was cut"),
        (lambda data: b"id,text\n1,a\n" * 9, r"not a Parquet file, or was cut"),
        (
            lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1",
            r"damaged: of its \d+ bytes, the footer",
        ),
        (lambda data: data[:-8] + b"\x00\x00\x00\x00PAR1", r"damaged footer"),
        (lambda data: data[:4] + b"\x00" * (len(data) - 12) + data[-8:], r"damaged footer"),
        (lambda data: data[:-4] + b"PARE", r"is an encrypted Parquet file"),
    ],
)
def test_what_is_no_whole_file_is_refused_by_name(
    make: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(make(good()))
    with pytest.raises(DataError, match=rf"a\.parquet.*{message}"):
        obtain(path.parent, tmp_path / "cache")


def test_damaged_pages_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    data = bytearray(good(compression="zstd"))
    data[20:60] = bytes(40)
    path.write_bytes(data)
    dataset = StreamingDataset(remote=str(path.parent), local=str(tmp_path / "cache"), batch_size=2)
    for _ in range(2):
        with pytest.raises(
            ShardCorruptError, match=r"Row groups 0 to 2 of a\.parquet can't be read"
        ):
            list(dataset)


def test_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    pq.write_table(pa.table({"t": text}), path)
    with pytest.raises(ShardCorruptError, match=r"a\.parquet.*UTF8"):
        read(path, tmp_path / "cache")


def test_another_ending_is_read_if_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(good())
    dataset = StreamingDataset(
        remote=str(path), local=str(tmp_path / "cache"), format="parquet", batch_size=2
    )
    assert list(dataset) == number_table(0, 40).to_pylist()


@pytest.mark.skipif(not REAL.exists(), reason=f"needs files in {REAL}")
def test_real_files_with_broken_bytes_are_errors(tmp_path: Path) -> None:
    names = sorted(os.listdir(REAL))
    assert len(names) == 3
    for name in names:
        with pytest.raises(DataError, match=name):
            read(REAL / name, tmp_path / name)


class _Kms(pe.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """Keys that are kept nowhere."""

    def __init__(self, configuration: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return key.hex().encode()

    def unwrap_key(self, key: bytes, name: str) -> bytes:
        return bytes.fromhex(key.decode())


@pytest.mark.parametrize("is_footer_plain", [False, True])
def test_encrypted_files_and_columns_are_refused_by_name(
    is_footer_plain: bool, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    factory = pe.CryptoFactory(_Kms)
    configuration = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["text"]}, plaintext_footer=is_footer_plain
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    table = number_table(0, 40)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"(?i)a\.parquet.*encrypt"):
        read(path, tmp_path / "cache")
    if is_footer_plain:
        # pyarrow would end this process here.
        data = path.read_bytes()
        end = data[-8 - int.from_bytes(data[-8:-4], "little") :]
        with ChunkScanner() as scanner, pytest.raises(DataError, match="encrypted columns"):
            scanner.find(end, 1, "a.parquet")


def damaged(count: int, seed: int) -> Iterator[bytes]:
    """Files in which some bytes are others, more of their footers than of their pages."""
    random_ = random.Random(seed)
    tables = [
        (number_table(0, 60), {"compression": "zstd", "row_group_size": 25}),
        (nested_table(0, 30), {"use_dictionary": False, "data_page_version": "2.0"}),
        (number_table(0, 60), {"compression": "snappy", "write_page_index": True}),
    ]
    files = []
    for table, options in tables:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        files.append(sink.getvalue().to_pybytes())
    for _ in range(count):
        data = bytearray(random_.choice(files))
        footer = int.from_bytes(data[-8:-4], "little") + 8
        for _ in range(random_.choice((1, 1, 2, 5))):
            first = len(data) - footer if random_.random() < 0.6 else 0
            at = random_.randrange(max(first, 0), len(data))
            if random_.random() < 0.8:
                data[at] = random_.randrange(256)
            else:
                del data[at : at + random_.randrange(1, 9)]
        yield bytes(data)


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(count: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for number, data in enumerate(damaged(count, seed=count)):
        path.write_bytes(data)
        try:
            read(path, tmp_path / "cache")
        except StreamingError as error:
            assert "a.parquet" in str(error), number


_SIZE = """
import sys
import numpy as np
from streaming import StreamingDataset

def anonymous():
    status = open("/proc/self/status").read()
    return int(status.partition("RssAnon:")[2].split()[0]) >> 10

dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[2], batch_size=8, shuffle=True)
before, most, count = anonymous(), 0, 0
for sample in dataset:
    count += 1
    if not count % 500:
        most = max(most, anonymous() - before)
print(count, max(most, anonymous() - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_a_worker_takes_no_more_memory_for_a_large_row_group(
    compression: str, tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    rows = 60_000
    schema = pa.schema([("id", pa.int64()), ("data", pa.binary())])
    with pq.ParquetWriter(path, schema, compression=compression, use_dictionary=False) as writer:
        data = [os.urandom(10_000)] * rows
        writer.write_table(pa.table({"id": range(rows), "data": data}, schema), row_group_size=rows)
    assert pq.ParquetFile(path).num_row_groups == 1
    check_size(path, tmp_path / "cache", rows, run_python)


@pytest.mark.slow
def test_rows_that_are_larger_than_the_footer_says_take_no_more_memory(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    path = tmp_path / "data" / "a.parquet"
    path.parent.mkdir()
    rows = 6000
    pq.write_table(pa.table({"id": range(rows), "data": ["x" * 100_000] * rows}), path)
    assert path.stat().st_size < 1_000_000
    check_size(path, tmp_path / "cache", rows, run_python)


def check_size(path: Path, cache: Path, rows: int, run_python: Callable[..., Any]) -> None:
    said = run_python(_SIZE, path.parent, cache, timeout=100).stdout
    count, most = map(int, said.split())
    assert count == rows
    assert most < 250
