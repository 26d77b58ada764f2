"""Files of text without an index on each kind of store: found, read, changed, indexed for good."""

import gzip
import json
from pathlib import Path

import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.direct import DirectDataset
from streaming.errors import ShardCorruptError
from streaming.format.publishing import write_index
from streaming.storage import join_key, open_store
from tests.servers.places import Opened

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

ROWS = [{"id": number, "text": f'é, "{number}"\n' * (number % 3)} for number in range(40)]


@pytest.fixture
def url(place: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The URL of a place with four files; the environment says how to reach it."""
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    for number, name in enumerate(["a 0.jsonl", "a 1.jsonl.gz", "b/ü.jsonl", "b/3.jsonl.gz"]):
        put(place.url, name, as_json(number * 10, number * 10 + 10), tmp_path)
    return place.url


def as_json(start: int, stop: int) -> bytes:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS[start:stop]]
    return "".join(lines).encode()


def put(url: str, name: str, data: bytes, tmp_path: Path) -> None:
    store, prefix = open_store(url)
    path = tmp_path / "upload"
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    store.put_file(path, join_key(prefix, name))
    store.close()


def ids(dataset: StreamingDataset) -> list[int]:
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    return sorted(int(number) for batch in loader for number in batch["id"])


def test_a_folder_is_streamed_through_workers(url: str, tmp_path: Path) -> None:
    for _ in range(2):
        dataset = StreamingDataset(
            remote=url, local=str(tmp_path / "local"), batch_size=4, shuffle=True
        )
        assert ids(dataset) == list(range(40))
    kept = sorted(path.name for path in (tmp_path / "local").rglob("*.jsonl"))
    assert kept == ["3.jsonl", "a 0.jsonl", "a 1.jsonl", "ü.jsonl"]


def test_patterns_lists_and_single_files_are_read(url: str, tmp_path: Path) -> None:
    places = {
        f"{url}/a*": range(20),
        f"{url}/**/*.gz": [*range(10, 20), *range(30, 40)],
        f"{url}/b/ü.jsonl": range(20, 30),
    }
    for number, (remote, wanted) in enumerate(places.items()):
        dataset = StreamingDataset(remote=remote, local=str(tmp_path / str(number)), batch_size=4)
        assert sorted(row["id"] for row in dataset) == list(wanted)
    stream = Stream(remote=[f"{url}/b/ü.jsonl", f"{url}/a 0.jsonl"], local=str(tmp_path / "list"))
    assert list(StreamingDataset(streams=[stream], batch_size=4)) == ROWS[20:30] + ROWS[:10]


def test_a_file_that_changed_is_fetched_anew_by_the_next_run(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = str(tmp_path / "local")
    before = StreamingDataset(remote=url, local=local, batch_size=4)
    put(url, "a 0.jsonl", as_json(0, 10).replace(b'"id": 9', b'"id": 99'), tmp_path)
    with pytest.raises(ShardCorruptError, match="a 0.jsonl"):
        list(before)
    caplog.clear()  # Records have errors, and these have frames that hold the dataset.
    dataset = StreamingDataset(remote=url, local=local, batch_size=4)
    assert sorted(row["id"] for row in dataset) == [*range(9), *range(10, 40), 99]


def test_single_lines_are_read_without_a_cache(url: str, tmp_path: Path) -> None:
    dataset = StreamingDataset(
        remote=url, local=str(tmp_path / "local"), batch_size=4, cache="none"
    )
    assert sorted(dataset[number]["id"] for number in range(40)) == list(range(40))
    assert not list((tmp_path / "local").rglob("*.jsonl"))


def test_an_index_is_written_beside_the_files(url: str, tmp_path: Path) -> None:
    report = write_index(url)
    assert (report.files, report.samples) == (4, 40)
    dataset = StreamingDataset(remote=url, local=str(tmp_path / "local"), batch_size=4)
    assert ids(dataset) == list(range(40))
    direct = DirectDataset(url)
    assert sorted(row["id"] for row in direct.__getitems__(range(40))) == list(range(40))
    direct.close()
