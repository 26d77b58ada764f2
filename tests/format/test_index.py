"""The index, as a document that comes from outside."""

import copy
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming.errors import IndexFormatError, StreamingError, UnknownNameError, UnsafeTypeError
from streaming.format import (
    FileInfo,
    check_types,
    dump_index,
    get_index_basename,
    parse_index,
    reader_from_json,
)

FORMATS = Path(__file__).parents[1] / "golden" / "datasets" / "formats"


def entry(i: int = 0, **changes: Any) -> dict[str, Any]:
    """A shard as an index has it."""
    shard = {
        "column_encodings": ["int", "str"],
        "column_names": ["a", "b"],
        "column_sizes": [8, None],
        "compression": "zstd:7",
        "format": "mds",
        "hashes": ["xxh64"],
        "raw_data": {"basename": f"shard.{i:05}.mds", "bytes": 200 + i, "hashes": {"xxh64": "ab"}},
        "samples": 10,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": {"basename": f"shard.{i:05}.mds.zstd", "bytes": 90 + i, "hashes": {}},
    }
    return {**shard, **changes}


def parse(*shards: dict[str, Any]) -> Any:
    return parse_index(dump_index(shards), "here/index.json")


def named(name: Any) -> dict[str, Any]:
    file = {"basename": name, "bytes": 200, "hashes": {}}
    return entry(compression=None, raw_data=file, zip_data=None)


def test_an_index_is_columns_and_shards() -> None:
    index = parse(entry(0), entry(1, samples=0, compression=None, zip_data=None))
    assert len(index) == 2
    assert index.samples == 10
    assert index.table.samples.tolist() == [10, 0]
    assert index.table.raw_bytes.tolist() == [200, 201]
    assert index.table.zip_bytes.tolist() == [90, 0]
    assert index.table.stream.tolist() == [0, 0]
    first, second = index
    assert first.files == (
        (
            FileInfo("shard.00000.mds", 200, {"xxh64": "ab"}),
            FileInfo("shard.00000.mds.zstd", 90, {}),
        ),
    )
    assert (first.raw_bytes, first.zip_bytes, first.compression) == (200, 90, "zstd:7")
    assert (second.raw_bytes, second.zip_bytes, second.compression) == (201, 0, None)
    assert first.extra == {
        "column_names": ["a", "b"],
        "column_encodings": ["int", "str"],
        "column_sizes": [8, None],
    }


def test_unknown_keys_are_ignored() -> None:
    document = {"version": 2, "shards": [entry(0, later={"x": [1]})], "more": None}
    assert len(parse_index(json.dumps(document).encode(), "here")) == 1


def test_an_index_pickles() -> None:
    index = parse(*(entry(i) for i in range(3)))
    again = pickle.loads(pickle.dumps(index))
    assert list(again) == list(index)
    assert again.samples == index.samples


def test_like_shards_are_checked_once() -> None:
    index = parse(*(entry(i) for i in range(5)), entry(5, compression=None, zip_data=None))
    assert [info.files[0][0].basename for info in index.examples()] == [
        "shard.00000.mds",
        "shard.00005.mds",
    ]
    assert index.shard(0).extra is index.shard(4).extra


def test_a_pickled_index_takes_little_a_shard() -> None:
    index = parse(*(entry(i) for i in range(1000)))
    assert len(pickle.dumps(index)) < 150 * 1000


@pytest.mark.parametrize("data", [b"", b" \n", b"\0" * 100])
def test_case_F4_an_empty_index_says_so(data: bytes) -> None:
    with pytest.raises(IndexFormatError, match="here/index.json"):
        parse_index(data, "here/index.json")


def test_case_F4_half_an_index_says_so() -> None:
    data = dump_index([entry(0), entry(1)])
    for size in range(1, len(data)):
        with pytest.raises(IndexFormatError, match=f"not whole or not JSON.*{size} bytes"):
            parse_index(data[:size], "here/index.json")


def test_case_F4_an_index_without_shards_is_an_empty_one() -> None:
    index = parse_index(b'{"shards": [], "version": 2}', "here")
    assert (len(index), index.samples, list(index), index.examples()) == (0, 0, [], [])


@pytest.mark.parametrize(
    "document",
    [
        *([], None, 5, "x", {}, {"shards": []}, {"version": 2}, {"shards": {}, "version": 2}),
        *({"shards": [5], "version": 2}, {"shards": [], "version": 1}),
        *({"shards": [], "version": "2"}, {"shards": [], "version": None}),
    ],
)
def test_another_document_is_no_index(document: Any) -> None:
    with pytest.raises(IndexFormatError, match="here"):
        parse_index(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "/etc/passwd", "../a", "a/../b", "a/..", "./a", "a/./b", "a//b"),
        *("a/", "C:/a", "c:a", "C:", "\\\\host\\a", "a\\..\\b", "a\0b", "a\nb", "a\tb", "\x1f"),
        *("x" * 256, "a/" + "x" * 300, "index.json", ".streaming", ".streaming/lease", "\ud800"),
    ],
)
def test_a_name_that_may_leave_the_directory_is_refused(name: str) -> None:
    for shard in (named(name), entry(zip_data={"basename": name, "bytes": 1, "hashes": {}})):
        with pytest.raises(IndexFormatError, match="here"):
            parse(entry(1), shard, entry(2))


@pytest.mark.parametrize(
    "name", ["a", "a.b", "..a", "a..", "0/shard.00000.mds", "a b/é/日本", "ab:c", "sub/index.json"]
)
def test_a_name_in_the_directory_is_taken(name: str) -> None:
    assert parse(named(name)).shard(0).files[0][0].basename == name


@pytest.mark.parametrize(
    "changes",
    [
        *({"samples": -1}, {"samples": 1 << 63}, {"samples": 1 << 70}, {"samples": 1.5}),
        *({"samples": "1"}, {"samples": None}, {"samples": True}, {"samples": 49}),
        *({"raw_data": None}, {"raw_data": {}}, {"raw_data": {"basename": "a", "bytes": -1}}),
        *({"raw_data": {"basename": 5, "bytes": 1}}, {"raw_data": {"basename": "a"}}),
        *({"raw_data": {"basename": "a", "bytes": 1 << 60}}, {"version": 1}, {"version": 3}),
        *({"compression": None}, {"compression": 5}, {"format": None}, {"format": ["mds"]}),
        *({"raw_meta": {"basename": "m", "bytes": 1}}, {"zip_meta": {"basename": "m", "bytes": 1}}),
        {"zip_data": {"basename": "shard.00000.mds", "bytes": 1}},
    ],
    ids=str,
)
def test_a_shard_that_can_not_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(IndexFormatError, match="here"):
        parse(entry(1), entry(0, **changes))


def test_the_message_names_the_shard() -> None:
    with pytest.raises(IndexFormatError, match="at shard 2: .*samples"):
        parse(entry(0), entry(1), entry(2, samples=-1))
    with pytest.raises(IndexFormatError, match=r"Shard 1 .* more samples than its bytes hold"):
        parse(entry(0), entry(1, samples=1000))
    with pytest.raises(IndexFormatError, match=r"`raw_data` of shard 1 .*\.\./a"):
        parse(entry(0), named("../a"))


@pytest.mark.parametrize("changes", [{"format": "nope"}, {"compression": "nope:3"}])
def test_an_unknown_name_lists_those_there_are(changes: dict[str, Any]) -> None:
    with pytest.raises(UnknownNameError, match=r"Shard 1 in here.*nope.*(mds|zstd)") as caught:
        parse(entry(0), entry(1, **changes))
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("hashes", [[], {"a": 1}, None, "x", {"a": None}])
def test_broken_digests_are_told_when_they_are_asked_for(hashes: Any) -> None:
    index = parse(entry(raw_data={"basename": "a", "bytes": 200, "hashes": hashes}))
    with pytest.raises(IndexFormatError, match="here"):
        index.shard(0)


@pytest.mark.parametrize(
    "changes",
    [
        *({"column_names": ["a"]}, {"column_names": "ab"}, {"column_names": ["a", "a"]}),
        *({"column_names": [1, 2]}, {"column_encodings": None}, {"column_sizes": [8, "x"]}),
        *({"column_sizes": [7, None]}, {"column_sizes": [8, 3]}, {"column_sizes": [True, None]}),
        *({"column_sizes": [None, None]}, {"column_encodings": {}}, {"column_sizes": []}),
    ],
    ids=str,
)
def test_columns_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    info = parse(entry(0, **changes)).shard(0)
    with pytest.raises(IndexFormatError, match="shard.00000.mds|Column"):
        check_types(info, allow_unsafe_types=False)


@pytest.mark.parametrize("kind", ["nope", "list[nope]", "ndarray:int32:0"])
def test_an_encoding_nobody_knows_is_told(kind: str) -> None:
    info = parse(entry(0, column_encodings=["int", kind])).shard(0)
    with pytest.raises(UnknownNameError, match="newer version"):
        check_types(info, allow_unsafe_types=False)


@pytest.mark.parametrize("kind", ["pkl", "list[pkl]"])
def test_case_F7_an_unsafe_column_is_refused_unless_allowed(kind: str) -> None:
    info = parse(entry(0, column_encodings=["int", kind])).shard(0)
    with pytest.raises(UnsafeTypeError, match=r"'b'.*allow_unsafe_types=True") as caught:
        check_types(info, allow_unsafe_types=False)
    assert isinstance(caught.value, ValueError)
    check_types(info, allow_unsafe_types=True)


def _mutate(value: Any, draw: random.Random) -> Any:
    """Replace one thing somewhere in a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        changed = dict(value)
        if draw.random() < 0.1:
            del changed[key]
        else:
            changed[key] = _mutate(value[key], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        return [*value[:at], _mutate(value[at], draw), *value[at + 1 :]]
    return draw.choice(
        [None, True, -1, 0, 7, 2**31, 2**64, 1e300, "", "mds", "..", "zstd", "\ud800", [], {}, [[]]]
    )


def _use(data: bytes) -> None:
    try:
        for info in parse_index(data, "here"):
            check_types(info, allow_unsafe_types=False)
    except StreamingError:
        pass


def test_a_mutated_index_gives_only_our_errors() -> None:
    draw = random.Random(0)
    names = ("mds_all", "mds_comp_zstd", "merged", "mds_pickle")
    documents = [json.loads((FORMATS / name / "index.json").read_bytes()) for name in names]
    for _ in range(1500):
        document = copy.copy(draw.choice(documents))
        for _ in range(draw.choice([1, 1, 2])):
            document = _mutate(document, draw)
        _use(json.dumps(document).encode())


def test_damaged_bytes_of_an_index_give_only_our_errors() -> None:
    draw = random.Random(0)
    data = dump_index([entry(0), entry(1)])
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 2, 20])):
            damaged[draw.randrange(len(data))] = draw.randrange(256)
        _use(bytes(damaged))
    _use(b"[" * 100_000)
    _use(b'{"shards": ' + b"[" * 100_000)
    _use(b'{"version": 2, "shards": [], "x": ' + b"[" * 100_000)


def test_the_old_function_opens_a_shard_of_an_entry() -> None:
    shard = json.loads((FORMATS / "splits" / "train" / "index.json").read_bytes())["shards"][0]
    reader = reader_from_json(str(FORMATS / "splits"), "train", shard)
    assert reader[0]["id"] == 0
    assert reader.take(np.array([1]))[0]["id"] == 1
    with pytest.raises(KeyError):
        reader_from_json(str(FORMATS / "splits"), "train", {**shard, "format": "nope"})
    with pytest.raises(ValueError, match="version"):
        reader_from_json(str(FORMATS / "splits"), "train", {**shard, "version": 1})


def test_the_index_has_the_old_name() -> None:
    assert get_index_basename() == "index.json"
