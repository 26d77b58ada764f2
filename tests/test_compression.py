import bz2
import errno
import gzip
import json
import os
import resource
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, integers, sampled_from

from streaming.compression import (
    codecs,
    compress,
    decompress,
    decompress_file,
    get_compression_extension,
    get_compressions,
    is_compression,
)
from streaming.compression import zstd as zstd_module  # type: ignore[attr-defined]  # 3.14 or not
from streaming.errors import ConfigError, ShardCorruptError, StoreError, UnknownNameError
from streaming.hashing import Digest, get_hash

NAMES = ["br", "bz2", "gz", "snappy", "zstd"]
FASTEST = {"br": "br:1", "bz2": "bz2:1", "gz": "gz:1", "snappy": "snappy", "zstd": "zstd:1"}
STREAMS = ["bz2", "gz", "zstd"]
TEXT = b"".join(b"%d bottles of beer, " % i for i in range(2000))
PACKED = {name: compress(name, TEXT[:5000]) for name in NAMES}


def zip_files(golden: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    """Compression, file and what it holds, of all recorded files."""
    for index in sorted(golden.glob("datasets/formats/*/index.json")):
        for shard in json.loads(index.read_text())["shards"]:
            for kind in ("data", "meta"):
                if shard.get(f"zip_{kind}"):
                    path = index.parent / shard[f"zip_{kind}"]["basename"]
                    yield shard["compression"], path, shard[f"raw_{kind}"]


def test_the_names_are_the_predecessors(golden: Path) -> None:
    recorded = set(json.loads((golden / "misc.json").read_text())["compressions"])
    assert get_compressions() == recorded
    assert all(map(is_compression, recorded))
    assert {get_compression_extension(spec) for spec in recorded} == set(NAMES)


def test_every_recorded_file_is_read(golden: Path, tmp_path: Path) -> None:
    count = 0
    for spec, path, raw in zip_files(golden):
        whole = decompress(spec, path.read_bytes(), size=raw["bytes"])
        assert decompress_file(spec, path, tmp_path / "raw", size=raw["bytes"]) == raw["bytes"]
        assert (tmp_path / "raw").read_bytes() == whole
        for algo, digest in raw["hashes"].items():
            assert get_hash(algo, whole) == digest
        count += 1
    assert count == 53


@pytest.mark.parametrize("spec", sorted(get_compressions()))
def test_what_was_compressed_comes_back(spec: str) -> None:
    for data in (b"", b"x", TEXT):
        assert decompress(spec, compress(spec, data), size=len(data)) == data
        assert decompress(spec, compress(spec, data)) == data


@pytest.mark.parametrize("name", NAMES)
def test_any_buffer_is_taken(name: str) -> None:
    packed = compress(name, memoryview(TEXT))
    assert decompress(name, bytearray(packed), size=len(TEXT)) == TEXT


def test_others_read_what_is_written() -> None:
    assert gzip.decompress(compress("gz", TEXT)) == TEXT
    assert bz2.decompress(compress("bz2", TEXT)) == TEXT
    assert zstd_module.decompress(compress("zstd", TEXT)) == TEXT
    assert zstd_module.get_frame_info(compress("zstd", TEXT)).decompressed_size == len(TEXT)
    assert bytes(cramjam.snappy.decompress_raw(compress("snappy", TEXT))) == TEXT


def test_the_level_is_the_one_asked_for_or_the_best() -> None:
    for name in ("br", "bz2", "gz"):
        sizes = [len(compress(f"{name}:{level}", TEXT)) for level in codecs.get(name).levels]
        assert max(sizes) == sizes[0]
        assert compress(name, TEXT) == compress(f"{name}:{codecs.get(name).levels[-1]}", TEXT)
    assert compress("zstd", TEXT) == compress("zstd:3", TEXT) != compress("zstd:19", TEXT)


def test_gzip_files_hold_no_time() -> None:
    assert compress("gz", TEXT)[4:8] == bytes(4)


def test_none_is_no_compression() -> None:
    assert compress(None, TEXT) == decompress(None, TEXT, size=len(TEXT)) == TEXT
    with pytest.raises(ShardCorruptError, match="should be 5 bytes, but there are 4"):
        decompress(None, b"1234", size=5)


@pytest.mark.parametrize(
    "spec", ["", "lzma", "zstd:0", "zstd:23", "zstd:", "zstd:03", "snappy:1", "gz:-1", "ZSTD", ":3"]
)
def test_an_unknown_name_or_level_is_refused(spec: str, tmp_path: Path) -> None:
    assert not is_compression(spec)
    (tmp_path / "x").touch()
    with pytest.raises(UnknownNameError) as caught:
        compress(spec, b"")
    with pytest.raises(ConfigError, match=r"compression|level"):
        decompress(spec, b"")
    with pytest.raises(ValueError, match=r"compression|level"):
        get_compression_extension(spec)
    with pytest.raises(KeyError):
        decompress_file(spec, tmp_path / "x", tmp_path / "y", size=None)
    assert "zstd" in str(caught.value) or "snappy" in str(caught.value) or "gz" in str(caught.value)
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_another_size_are_refused(name: str) -> None:
    packed = compress(name, b"x" * 100)
    with pytest.raises(ShardCorruptError, match="should decompress to 101 bytes, but gives 100"):
        decompress(name, packed, size=101)
    with pytest.raises(ShardCorruptError, match=r"to 99 bytes, but gives (over 99|100)"):
        decompress(name, packed, size=99)
    with pytest.raises(ShardCorruptError, match="to 0 bytes, but gives"):
        decompress(name, packed, size=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_takes_no_more_memory_than_expected(name: str, tmp_path: Path) -> None:
    bomb = compress(FASTEST[name], bytes(1 << 26))
    (tmp_path / "bomb").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(ShardCorruptError, match="1000 bytes"):
            decompress(name, bomb, size=1000)
        with pytest.raises(ShardCorruptError, match="bomb"):
            decompress_file(name, tmp_path / "bomb", tmp_path / "out", size=1000)
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 2 * len(bomb)
    finally:
        tracemalloc.stop()
    assert os.listdir(tmp_path) == ["bomb"]


@pytest.mark.parametrize("name", NAMES)
def test_a_size_beyond_all_memory_is_refused(name: str) -> None:
    with pytest.raises(ShardCorruptError):
        decompress(name, compress(name, b"x"), size=1 << 62)


@pytest.mark.parametrize("name", NAMES)
def test_a_size_that_is_a_lie_takes_no_memory(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ShardCorruptError):  # Too short, or so much can't even be reserved.
        decompress(name, compress(FASTEST[name], b"x"), size=1 << 34)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_a_snappy_block_that_promises_too_much_is_refused() -> None:
    promise = b"\xff\xff\xff\xff\x0f" + b"\x00x"  # 4 GiB
    with pytest.raises(ShardCorruptError, match="can't hold the 4294967295"):
        decompress("snappy", promise, size=(1 << 32) - 1)
    with pytest.raises(ShardCorruptError, match="can't hold"):
        decompress("snappy", promise)


@pytest.mark.parametrize("name", STREAMS)
def test_streams_may_follow_each_other(name: str) -> None:
    packed = compress(name, b"ab" * 1000) + compress(name, b"") + compress(name, b"c")
    assert decompress(name, packed, size=2001) == b"ab" * 1000 + b"c"
    with pytest.raises(ShardCorruptError, match="over 2000"):
        decompress(name, packed, size=2000)


@pytest.mark.parametrize("name", STREAMS)
def test_millions_of_empty_streams_are_no_trap(name: str) -> None:
    packed = compress(name, b"") * 50_000 + compress(name, b"x")
    assert decompress(name, packed, size=1) == b"x"


@pytest.mark.parametrize("name", STREAMS)
def test_a_long_stream_may_follow_another(name: str) -> None:
    data = os.urandom(100_000)
    packed = (compress(name, data) + compress(name, b"ab") + compress(name, b"")) * 3
    assert decompress(name, packed, size=300_006) == (data + b"ab") * 3


@pytest.mark.parametrize("name", [*STREAMS, "snappy"])
@pytest.mark.parametrize("extra", [b"\x00", b"x", b"garbage" * 500])
def test_garbage_after_the_end_is_refused(name: str, extra: bytes) -> None:
    with pytest.raises(ShardCorruptError, match=name):
        decompress(name, compress(name, TEXT) + extra, size=len(TEXT))


@pytest.mark.parametrize("name", NAMES)
def test_no_prefix_passes_for_the_whole(name: str) -> None:
    packed = compress(name, TEXT)
    for cut in [*range(20), *range(20, len(packed), 37), len(packed) - 1]:
        with pytest.raises(ShardCorruptError):
            decompress(name, packed[:cut], size=len(TEXT))


def test_an_output_that_ends_with_the_input_of_a_step_is_whole() -> None:
    # zlib may hold back output when its input is used up: sizes around a step's borders.
    for size in [(1 << 20) - 1, 1 << 20, (1 << 20) + 1]:
        for name in STREAMS:
            for data in (bytes(size), os.urandom(size)):
                assert decompress(name, compress(f"{name}:1", data), size=size) == data


@given(sampled_from(NAMES), binary(max_size=200), integers(0, 1000))
@settings(max_examples=300)
def test_hostile_bytes_are_decompressed_or_refused(name: str, data: bytes, size: int) -> None:
    with suppress(ShardCorruptError):
        assert len(decompress(name, data, size=size)) == size


@given(sampled_from(NAMES), integers(0, 10_000), integers(0, 255))
@settings(max_examples=300)
def test_a_changed_byte_gives_as_many_bytes_or_is_refused(name: str, at: int, value: int) -> None:
    packed = bytearray(PACKED[name])
    packed[at % len(packed)] = value
    with suppress(ShardCorruptError):
        assert len(decompress(name, packed, size=5000)) == 5000


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_decompressed_with_its_digest(name: str, tmp_path: Path) -> None:
    data = TEXT * 40  # Several steps.
    (tmp_path / "zip").write_bytes(compress(FASTEST[name], data))
    (tmp_path / "raw").write_bytes(b"old and longer" * 10)
    digest = Digest("xxh64")
    size = decompress_file(name, tmp_path / "zip", tmp_path / "raw", size=len(data), digest=digest)
    assert size == len(data)
    assert (tmp_path / "raw").read_bytes() == data
    assert digest.hexdigest() == get_hash("xxh64", data)
    assert decompress_file(name, tmp_path / "zip", tmp_path / "raw", size=None) == len(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_file_leaves_nothing_and_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.zip").write_bytes(compress(name, TEXT)[:-5])
    with pytest.raises(ShardCorruptError, match=r"broken\.zip"):
        decompress_file(name, tmp_path / "broken.zip", tmp_path / "raw", size=len(TEXT))
    assert os.listdir(tmp_path) == ["broken.zip"]


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        decompress_file("zstd", tmp_path / "nothing", tmp_path / "raw", size=1)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_told_with_path_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "zip").write_bytes(compress("zstd", TEXT))
    (tmp_path / "raw").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=rf"raw \({len(TEXT)} bytes\): no space left") as caught:
        decompress_file("zstd", tmp_path / "zip", tmp_path / "raw", size=len(TEXT))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("name", NAMES)
def test_other_threads_run_meanwhile(name: str) -> None:
    packed = compress(FASTEST[name], TEXT * 200)
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(1e-4):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # So that who holds the GIL is not asked to let go of it.
    try:
        for _ in range(100):
            before = ticks
            decompress(name, packed, size=len(TEXT) * 200)
            if ticks > before:
                return
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()
    pytest.fail(f"{name} holds the GIL")
