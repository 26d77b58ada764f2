"""Tables in an object store: cached, from afar, by forked workers, with files that are gone."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streaming import Stream, StreamingDataset
from streaming.errors import ConfigError, ObjectNotFoundError, StreamingError
from streaming.format.tables import TablePlace
from streaming.storage import open_store
from tests.common.tables import (
    as_set,
    make_delta,
    make_lance,
    plain,
    read_delta,
    read_lance,
)
from tests.servers.places import Opened

KINDS = pytest.mark.parametrize("kind", ["delta", "lance"])
WAYS = pytest.mark.parametrize("cache", ["shards", "none"])


@pytest.fixture(scope="module")
def tables(
    tmp_path_factory: pytest.TempPathFactory, new_bucket: Callable[[], Opened]
) -> Callable[[str], tuple[Path, Opened]]:
    """A table of each kind, here and in a bucket."""
    made: dict[str, tuple[Path, Opened]] = {}

    def get(kind: str) -> tuple[Path, Opened]:
        if kind not in made:
            maker = make_delta if kind == "delta" else make_lance
            path = maker(tmp_path_factory.mktemp(kind) / "table")
            made[kind] = path, put(path, new_bucket())
        return made[kind]

    return get


def put(path: Path, place: Opened) -> Opened:
    store, prefix = open_store(place.url, place.options)
    for file in sorted(path.rglob("*")):
        if file.is_file():
            store.put_file(file, f"{prefix}/{file.relative_to(path)}")
    store.close()
    return place


def open_table(place: Opened, tmp_path: Path, **arguments: Any) -> StreamingDataset:
    names = ("version", "columns", "format_options", "format")
    said = {name: arguments.pop(name) for name in names if name in arguments}
    stream = Stream(
        remote=place.url,
        local=str(tmp_path / "cache"),
        storage_options=place.options,
        **said,
    )
    return StreamingDataset(streams=[stream], **{"batch_size": 4, **arguments})


@KINDS
@WAYS
@pytest.mark.parametrize("version", [1, 3, None])
def test_a_version_is_read_as_the_library_reads_it_here(
    kind: str,
    cache: str,
    version: int | None,
    tables: Callable[[str], tuple[Path, Opened]],
    tmp_path: Path,
) -> None:
    path, place = tables(kind)
    dataset = open_table(place, tmp_path, version=version, cache=cache)
    found = list(dataset)
    if kind == "lance":
        assert plain(found) == read_lance(path, version)
    else:
        assert as_set(found) == as_set(read_delta(path, version))
    order = np.random.default_rng(0).permutation(len(found))[:20]
    assert plain(dataset[order]) == plain([found[i] for i in order])
    assert pickle.loads(pickle.dumps(dataset))[3]["id"] == found[3]["id"]


@KINDS
@WAYS
def test_forked_workers_read_after_their_parent_did(
    kind: str, cache: str, tables: Callable[[str], tuple[Path, Opened]], tmp_path: Path
) -> None:
    path, place = tables(kind)
    dataset = open_table(place, tmp_path, cache=cache, shuffle=True, num_canonical_nodes=1)
    before = dataset[0]["id"]
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        timeout=60,
        collate_fn=_ids,
        multiprocessing_context="fork",
    )
    rows = read_lance(path) if kind == "lance" else read_delta(path)
    assert {number for batch in loader for number in batch} == {row["id"] for row in rows}
    assert dataset[0]["id"] == before


def _ids(batch: Any) -> list[int]:
    return [int(row["id"]) for row in batch]


@KINDS
def test_a_small_cache_is_enough(
    kind: str, tables: Callable[[str], tuple[Path, Opened]], tmp_path: Path
) -> None:
    path, place = tables(kind)
    dataset = open_table(place, tmp_path, version=1, cache_limit=20_000, shuffle=True)
    rows = read_lance(path, 1) if kind == "lance" else read_delta(path, 1)
    for _ in range(2):
        assert {row["id"] for row in dataset} == {row["id"] for row in rows}


@KINDS
@WAYS
def test_an_object_that_is_gone_is_named_with_its_version(
    kind: str, cache: str, new_bucket: Callable[[], Opened], tmp_path: Path
) -> None:
    maker = make_delta if kind == "delta" else make_lance
    path = maker(tmp_path / "table")
    place = put(path, new_bucket())
    (tmp_path / "cache").mkdir()
    dataset = open_table(place, tmp_path, version=1, cache=cache)
    store, prefix = open_store(place.url, place.options)
    for info in list(store.list(f"{prefix}/")):
        if info.key.endswith((".parquet", ".lance")):
            store.delete(info.key)
    store.close()
    with pytest.raises(StreamingError, match="version 1 of"):
        list(dataset)


@KINDS
def test_where_there_is_no_table_is_said(
    kind: str, new_bucket: Callable[[], Opened], tmp_path: Path
) -> None:
    with pytest.raises(ObjectNotFoundError, match="There is no (Delta table|Lance dataset) at s3"):
        open_table(new_bucket(), tmp_path, format=kind)


def test_other_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="read from this machine and from s3, gs"):
        TablePlace.at("memory://x/y")


def test_options_become_those_of_the_libraries() -> None:
    place = TablePlace.at(
        "s3://bucket/a b",
        {"endpoint": "http://localhost:1", "region": "x-1", "access_key_id": "k"},
    )
    assert place.uri == "s3://bucket/a b"
    found = dict(place.options)
    assert found["aws_access_key_id"] == "k"
    assert (found["aws_endpoint"], found["allow_http"]) == ("http://localhost:1", "true")
    assert found["aws_region"] == "x-1"
    assert "options" not in repr(place)
    assert dict(TablePlace.at("gs://b/c", {"anonymous": True}).options)["google_skip_signature"]
