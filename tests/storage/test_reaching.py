"""Writers and readers that are told how to reach a place, and places that tell little."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streaming import CSVWriter, JSONWriter, MDSWriter, Stream, StreamingDataset
from streaming.errors import AccessDeniedError, ConfigError, StoreTimeoutError
from streaming.format.publishing import write_index
from streaming.storage.extra import wait_for
from streaming.util.merging import merge_index
from tests.servers.faulty import FaultyServer, Status
from tests.servers.places import KEYS, Opened

WRITERS = [MDSWriter, JSONWriter, CSVWriter]
COLUMNS = {"number": "int"}


def numbers(remote: str, local: Path, options: Any) -> list[int]:
    stream = Stream(remote=remote, local=str(local), storage_options=options)
    return [sample["number"] for sample in StreamingDataset(streams=[stream], batch_size=1)]


def write(writer: type[Any], out: Any, options: Any, start: int = 0, **more: Any) -> None:
    with writer(out=out, columns=COLUMNS, storage_options=options, **more) as to:
        for number in range(start, start + 5):
            to.write({"number": number})


@pytest.mark.parametrize("writer", WRITERS)
def test_a_writer_is_told_how_to_reach_its_place(
    writer: type[Any], new_bucket: Callable[[], Opened], tmp_path: Path
) -> None:
    place = new_bucket()  # Of which the environment says nothing.
    write(writer, place.url, place.options)
    assert numbers(place.url, tmp_path / "local", place.options) == list(range(5))


def test_a_dataset_of_one_stream_is_told_by_its_stream_config(
    reticent: FaultyServer, tmp_path: Path
) -> None:
    write(MDSWriter, "s3://bkt/data", options(reticent))
    dataset = StreamingDataset(
        remote="s3://bkt/data",
        local=str(tmp_path),
        stream_config={"storage_options": options(reticent)},
        batch_size=1,
    )
    assert [sample["number"] for sample in dataset] == list(range(5))


def test_indexes_are_merged_where_only_options_lead(
    new_bucket: Callable[[], Opened], tmp_path: Path
) -> None:
    place = new_bucket()
    for part in range(2):
        write(MDSWriter, f"{place.url}/{part}", place.options, 5 * part)
    merge_index(place.url, storage_options=place.options)
    assert numbers(place.url, tmp_path / "found", place.options) == list(range(10))
    parts = [f"{place.url}/{part}/index.json" for part in (1, 0)]
    merge_index(parts, place.url, storage_options=place.options)
    expected = [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert numbers(place.url, tmp_path / "listed", place.options) == expected


def test_options_are_names_and_values(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage_options"):
        MDSWriter(out=tmp_path / "x", columns=COLUMNS, storage_options="endpoint")
    with pytest.raises(ConfigError, match="storage_options"):
        merge_index(str(tmp_path), storage_options=3)


@pytest.fixture
def reticent() -> Iterator[FaultyServer]:
    """A bucket that may be read and written, but not listed: what is not there is forbidden."""
    with FaultyServer(lists=False) as server:
        yield server


def options(server: FaultyServer) -> dict[str, Any]:
    return {"endpoint": server.url, **KEYS, "timeout": 5}


@pytest.mark.parametrize("exist_ok", [False, True])
def test_a_writer_needs_no_right_to_list(
    reticent: FaultyServer, exist_ok: bool, tmp_path: Path
) -> None:
    write(MDSWriter, "s3://bkt/data", options(reticent), exist_ok=exist_ok)
    assert sorted(reticent.objects) == ["bkt/data/index.json", "bkt/data/shard.00000.mds"]
    assert numbers("s3://bkt/data", tmp_path / "local", options(reticent)) == list(range(5))


def test_merging_a_list_needs_no_right_to_list(reticent: FaultyServer, tmp_path: Path) -> None:
    reach = options(reticent)
    for part in ("0", "1"):
        out = str(tmp_path / "all" / part), f"s3://bkt/data/{part}"
        write(MDSWriter, out, reach, keep_local=True)
    del reticent.objects["bkt/data/1/index.json"]
    parts = [str(tmp_path / "all" / part / "index.json") for part in ("0", "1")]
    merge_index(parts, (tmp_path / "all", "s3://bkt/data"), keep_local=False, storage_options=reach)
    assert numbers("s3://bkt/data", tmp_path / "local", reach) == [*range(5), *range(5)]
    left = {path.name for path in (tmp_path / "all").rglob("index.json")}
    assert left == {"index.json"}  # The one that is nowhere else.


def test_a_file_by_its_name_needs_no_right_to_list(reticent: FaultyServer, tmp_path: Path) -> None:
    reticent.objects["bkt/data/some.csv"] = b"number\n1\n2\n"
    url, reach = "s3://bkt/data/some.csv", options(reticent)
    assert numbers(url, tmp_path / "local", reach) == [1, 2]
    write_index(url, storage_options=reach)
    assert numbers("s3://bkt/data", tmp_path / "again", reach) == [1, 2]


def test_what_is_not_there_is_told_with_what_a_server_hides(
    reticent: FaultyServer, tmp_path: Path
) -> None:
    with pytest.raises(AccessDeniedError, match=r"index\.json.*Without the right to list"):
        numbers("s3://bkt/nothing", tmp_path / "local", options(reticent))


def test_what_may_not_be_seen_yet_is_waited_for(
    reticent: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", reticent.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    def come(seconds: float) -> None:
        reticent.objects["bkt/late"] = b"123"

    assert wait_for("s3://bkt/late", 60, sleep=come).size == 3
    with pytest.raises(StoreTimeoutError, match="may not be seen"):
        wait_for("s3://bkt/never", 0, sleep=come)


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_wrong_keys_are_told_when_the_writer_is_made(code: str) -> None:
    body = f"<Error><Code>{code}</Code></Error>"
    with (
        FaultyServer(faults=[Status(403, body=body)]) as server,
        pytest.raises(AccessDeniedError, match="Credentials came from"),
    ):
        MDSWriter(out="s3://bkt/data", columns=COLUMNS, storage_options=options(server))


def test_a_place_that_may_not_be_written_is_told_before_the_writer_ends() -> None:
    with (
        FaultyServer(faults=[Status(403)]) as server,
        pytest.raises(AccessDeniedError, match="Credentials came from"),
    ):
        write(MDSWriter, "s3://bkt/data", options(server))
