"""The whole way over services of which there are only stand-ins, with their real libraries."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming import MDSWriter, Stream, StreamingDataset
from streaming.storage import join_key, open_store
from streaming.util.merging import merge_index
from tests.conftest import RunPython
from tests.servers.alipan import TOKEN, Alipan
from tests.servers.databricks import Workspace
from tests.servers.hub import Hub
from tests.servers.oracle import NAMESPACE, Oracle, write_config
from tests.servers.places import Opened
from tests.storage.test_fork import LIMIT, MATRIX, WAYS, fill

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NUM_SAMPLES = 60
Place = tuple[str, dict[str, Any]]  # URL, and how to reach it


def hub(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Place:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    server = stack.enter_context(Hub("org/data", token="hf_secret"))
    return "hf://datasets/org/data/train", {"endpoint": server.url, "token": "hf_secret"}


def volume(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Place:
    pytest.importorskip("databricks.sdk", reason="needs databricks-sdk")
    server = stack.enter_context(Workspace())
    return "dbfs:/Volumes/catalog/schema/volume/train", {"host": server.url, "token": "t"}


def dbfs(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Place:
    _, options = volume(stack, monkeypatch, folder)
    return "dbfs:/train", options


def oracle(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Place:
    pytest.importorskip("ocifs", reason="needs ocifs")
    server = stack.enter_context(Oracle(page=3))
    config = str(write_config(folder))
    return f"oci://bucket@{NAMESPACE}/train", {"endpoint": server.url, "config": config}


def alipan(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Place:
    pytest.importorskip("alipcs_py", reason="needs AliPCS-Py")
    from alipcs_py.alipcs import pcs

    server = stack.enter_context(Alipan(page=3))
    monkeypatch.setattr(pcs, "ALIYUNDRIVE_COM_API", server.url)
    return "alipan:///train", {"refresh_token": TOKEN}


@pytest.fixture(params=[hub, volume, dbfs, oracle, alipan], ids=lambda opener: opener.__name__)
def service(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Place]:
    opener: Callable[..., Place] = request.param
    with ExitStack() as stack:
        yield opener(stack, monkeypatch, tmp_path_factory.mktemp("service"))


def write(url: str, options: dict[str, Any], start: int = 0, stop: int = NUM_SAMPLES) -> None:
    columns = {"number": "int", "text": "str"}
    with MDSWriter(
        out=url,
        columns=columns,
        size_limit=500,
        hashes=["xxh64"],
        compression="zstd",
        storage_options=options,
    ) as writer:
        for number in range(start, stop):
            writer.write({"number": number, "text": f"sample {number}"})


def opened(url: str, options: dict[str, Any], local: Path) -> StreamingDataset:
    stream = Stream(
        remote=url,
        local=str(local),
        storage_options=options,
        validate_hash="xxh64",
        download_timeout=20,
    )
    return StreamingDataset(streams=[stream], batch_size=4, shuffle=True)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_dataset_is_written_and_streamed_through_workers(
    service: Place, start: str, tmp_path: Path
) -> None:
    url, options = service
    if start == "spawn" and url.startswith("alipan"):
        pytest.skip("the library's address of the service can't be changed in another process")
    write(url, options)
    dataset = opened(url, options, tmp_path / "local")
    assert dataset[7]["text"] == "sample 7"
    loader = DataLoader(
        dataset, batch_size=4, num_workers=2, timeout=60, multiprocessing_context=start
    )
    for _ in range(2 if start == "fork" else 1):
        numbers = [number for batch in loader for number in batch["number"].tolist()]
        assert sorted(numbers) == list(range(NUM_SAMPLES))


def test_datasets_side_by_side_are_merged_listed_and_deleted(
    service: Place, tmp_path: Path
) -> None:
    url, options = service
    write(f"{url}/part 0", options, 0, 20)
    write(f"{url}/part 1", options, 20, 40)
    merge_index(url, storage_options=options)
    dataset = opened(url, options, tmp_path / "local")
    assert sorted(sample["number"] for sample in dataset) == list(range(40))
    store, prefix = open_store(url, options)
    keys = [info.key for info in store.list(join_key(prefix, "") if prefix else "")]
    assert len(keys) > 4 and keys == sorted(keys)
    assert store.read(keys[-1], 1, 4) == store.read(keys[-1])[1:4]
    for key in keys:
        store.delete(key)
    assert list(store.list(join_key(prefix, "") if prefix else "")) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_service_works_in_children_however_they_began(
    service: Place, way: str, tmp_path: Path, run_python: RunPython
) -> None:
    url, options = service
    fill(Opened(url, options, {}), tmp_path)
    script = MATRIX
    if url.startswith("alipan"):  # Every process must be told, as it begins.
        from alipcs_py.alipcs import pcs

        address = pcs.ALIYUNDRIVE_COM_API
        script = (
            f"from alipcs_py.alipcs import pcs\npcs.ALIYUNDRIVE_COM_API = {address!r}\n{MATRIX}"
        )
    done = run_python(script, url, json.dumps(options), way, timeout=LIMIT)
    assert len(done.stdout.splitlines()) == 2
