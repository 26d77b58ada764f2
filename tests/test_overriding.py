"""What users override goes on working, and what nothing calls any more is warned of."""

import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.compression import decompress
from streaming.errors import ConfigError, ShardCorruptError, UnknownNameError
from streaming.format import reader_from_json
from streaming.format.index import FileInfo
from streaming.format.lazy import Reader
from streaming.storage import download, open_store
from streaming.stream import streams_registry
from streaming.util.registries import save_registry
from streaming.world import World
from tests.common.shards import sample, write_dataset

ALL = [sample(shard, place) for shard in range(4) for place in range(5)]


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """A compressed dataset of 4 shards with 5 samples each."""
    return str(write_dataset(tmp_path / "remote", compression="zstd", hashes=["sha1"]))


def read(dataset: Any) -> list[bytes]:
    return [each["x"] for each in dataset]


class Logging(Stream):
    """Notes each step. Defined here, so that it pickles to workers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log = Path(self.local).with_name("log")

    def note(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{what}\n")

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        self.note(f"download {from_basename}")
        return super()._download_file(from_basename, to_basename)

    def _decompress_shard_part(
        self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
    ) -> None:
        self.note(f"decompress {zip_info.basename} {compression}")
        super()._decompress_shard_part(zip_info, zip_filename, raw_filename, compression)

    def _prepare_shard_part(
        self, raw_info: FileInfo, zip_info: FileInfo | None = None, compression: str | None = None
    ) -> int:
        self.note(f"prepare {raw_info.basename}")
        return super()._prepare_shard_part(raw_info, zip_info, compression)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("keep_zip", [False, True])
def test_the_cache_calls_overridden_steps(
    tmp_path: Path, remote: str, num_workers: int, keep_zip: bool
) -> None:
    local = tmp_path / "local"
    stream = Logging(remote=remote, local=str(local), validate_hash="sha1", keep_zip=keep_zip)
    dataset = StreamingDataset(streams=[stream], batch_size=5)
    loader = StreamingDataLoader(dataset, batch_size=5, num_workers=num_workers)
    assert sorted(value for batch in loader for value in batch["x"]) == ALL
    names = [f"shard.{i:05}.mds" for i in range(4)]
    lines = stream.log.read_text().splitlines()
    assert sorted(lines) == sorted(
        ["download index.json"]
        + [f"prepare {name}" for name in names]
        + [f"download {name}.zstd" for name in names]
        + [f"decompress {name}.zstd zstd" for name in names]
    )
    kept = [f"{name}.zstd" for name in names] if keep_zip else []
    found = [name for name in os.listdir(local) if name != ".streaming"]
    assert sorted(found) == sorted(["index.json", *names, *kept])


def test_a_download_of_ones_own_may_put_the_file_anywhere(tmp_path: Path, remote: str) -> None:
    class Elsewhere(Stream):
        def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
            target = tmp_path / "elsewhere" / from_basename
            target.parent.mkdir(exist_ok=True)
            shutil.copy(Path(remote, from_basename), target)
            return str(target)

    # A scheme that nobody knows but the subclass.
    stream = Elsewhere(remote="nobody://knows/it", local=str(tmp_path / "local"))
    assert read(StreamingDataset(streams=[stream], batch_size=5)) == ALL
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_download_of_ones_own_is_checked(tmp_path: Path, remote: str) -> None:
    class Broken(Stream):
        def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
            path = super()._download_file(from_basename, to_basename)
            if from_basename != "index.json":
                data = bytearray(Path(path).read_bytes())
                data[10] ^= 1
                Path(path).write_bytes(data)
            return path

    stream = Broken(remote=remote, local=str(tmp_path / "local"), validate_hash="sha1")
    dataset = StreamingDataset(streams=[stream], batch_size=5)
    with pytest.raises(ShardCorruptError, match="sha1"):
        dataset[0]
    assert not (tmp_path / "local" / "shard.00000.mds").exists()


def test_a_download_that_gives_no_file_is_told_so(tmp_path: Path, remote: str) -> None:
    class Forgetful(Stream):
        def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
            return str(tmp_path / "nothing")

    stream = Forgetful(remote=remote, local=str(tmp_path / "local"))
    with pytest.raises(ConfigError, match="must give the path of the file"):
        StreamingDataset(streams=[stream], batch_size=5)


def test_a_decompression_of_ones_own_has_to_give_the_right_bytes(
    tmp_path: Path, remote: str
) -> None:
    class Odd(Stream):
        def _decompress_shard_part(
            self, zip_info: FileInfo, zip_filename: str, raw_filename: str, compression: str | None
        ) -> None:
            data = decompress(compression, Path(zip_filename).read_bytes())
            Path(raw_filename).write_bytes(data if "00000" in zip_filename else data[:-1])

    stream = Odd(remote=remote, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=5)
    assert dataset[0]["x"] == ALL[0]
    with pytest.raises(ShardCorruptError, match=r"decompressed, has \d+ bytes"):
        dataset[5]


def test_a_patched_step_is_called(tmp_path: Path, remote: str) -> None:
    seen: list[str] = []
    original = Stream._download_file

    def spy(self: Stream, from_basename: str, to_basename: str | None = None) -> str:
        seen.append(from_basename)
        return original(self, from_basename, to_basename)

    with mock.patch.object(Stream, "_download_file", spy):
        dataset = StreamingDataset(remote=remote, local=str(tmp_path / "local"), batch_size=5)
        assert dataset[0]["x"] == ALL[0]
    assert seen == ["index.json", "shard.00000.mds.zstd"]


class Odds(Stream):
    """Every second shard."""

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        assert (world.num_ranks, allow_unsafe_types) == (1, False)
        return super().get_shards(world, allow_unsafe_types)[1::2]


def test_get_shards_may_choose_among_the_shards(tmp_path: Path, remote: str) -> None:
    stream = Odds(remote=remote, local=str(tmp_path / "local"))
    dataset = StreamingDataset(streams=[stream], batch_size=5)
    assert read(dataset) == ALL[5:10] + ALL[15:]
    assert dataset.num_shards == 2
    assert read(pickle.loads(pickle.dumps(dataset)))[0] == ALL[5]


def test_get_shards_may_make_readers(tmp_path: Path, remote: str) -> None:
    import json

    class Made(Stream):
        def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
            index = json.loads(Path(self._download_file("index.json")).read_text())
            return [reader_from_json(self.local, self.split, each) for each in index["shards"]]

    stream = Made(remote=remote, local=str(tmp_path / "local"))
    assert read(StreamingDataset(streams=[stream], batch_size=5)) == ALL


def test_get_shards_that_gives_something_else_is_told_so(tmp_path: Path, remote: str) -> None:
    class Wrong(Stream):
        def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Any]:
            return [object()]

    with pytest.raises(ConfigError, match="must give readers"):
        StreamingDataset(streams=[Wrong(remote=remote, local=str(tmp_path / "l"))], batch_size=5)


def test_a_stream_class_is_found_by_its_name(tmp_path: Path, remote: str) -> None:
    @streams_registry.register("labelled")
    class Labelled(Stream):
        def __init__(self, *, label: str, **kwargs: Any) -> None:
            self.label, self.arguments = label, kwargs
            super().__init__(**kwargs)

    config = {"label": "x"}
    dataset = StreamingDataset(
        remote=remote,
        local=str(tmp_path / "local"),
        stream_name="labelled",
        stream_config=config,
        download_retry=7,
        keep_zip=True,
    )
    (stream,) = dataset.streams
    assert isinstance(stream, Labelled)
    assert (stream.label, stream.download_retry, stream.keep_zip) == ("x", 7, True)
    assert stream.arguments["validate_hash"] is None
    assert config == {"label": "x"}  # The predecessor changes it.


def test_an_unknown_stream_class_lists_those_known(remote: str) -> None:
    with pytest.raises(UnknownNameError, match=r"'nobody'.*Known: .*stream"):
        StreamingDataset(remote=remote, local="x", stream_name="nobody")


def test_what_is_registered_in_a_block_ends_with_it() -> None:
    with pytest.raises(KeyError), save_registry():
        streams_registry.register("for now", func=Odds)
        assert streams_registry.get("for now") is Odds
        raise KeyError
    assert "for now" not in streams_registry


def test_a_downloader_for_a_scheme_of_ones_own(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(download.CloudDownloader):
        @staticmethod
        def _client_identifier() -> str:
            return "mine"

        def clean_up(self) -> None: ...

        def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
            shutil.copy(remote.removeprefix("mine://"), local)

    monkeypatch.setitem(download.DOWNLOADER_MAPPINGS, "mine", Mine)
    url = f"mine://{remote}"
    dataset = StreamingDataset(remote=url, local=str(tmp_path / "local"), batch_size=5)
    assert read(dataset) == ALL
    open_store(url)[0].close()


class Upper(StreamingDataset):
    """The usual subclass."""

    def __init__(self, *args: Any, suffix: bytes, batch_size: int, **kwargs: Any) -> None:
        self.batch_size = batch_size  # Before the base class's constructor, as some have it.
        self.suffix = suffix
        super().__init__(*args, batch_size=batch_size, **kwargs)
        self.batch_size = batch_size
        self.shuffle_seed = kwargs.get("shuffle_seed", 9176)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return super().get_item(sample_id)["x"].upper() + self.suffix


def test_a_subclass_with_get_item_and_a_constructor_of_its_own(tmp_path: Path, remote: str) -> None:
    kwargs: dict[str, Any] = {"local": str(tmp_path / "local"), "remote": remote}
    dataset = Upper(suffix=b"!", batch_size=4, shuffle=True, **kwargs)
    expected = sorted(value.upper() + b"!" for value in ALL)
    samples: list[Any] = list(dataset)
    assert sorted(samples) == expected
    assert dataset[3] == ALL[3].upper() + b"!"
    assert dataset[[3]][0] == dataset[np.int64(3)]
    for loader in (
        StreamingDataLoader(dataset, batch_size=4, num_workers=2),
        DataLoader(dataset, batch_size=4, num_workers=1),
    ):
        assert sorted(value for batch in loader for value in batch) == expected


def test_an_overridden_state_dict_reaches_the_loader(tmp_path: Path, remote: str) -> None:
    class Noted(StreamingDataset):
        def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
            return {**super().state_dict(num_samples, from_beginning), "mine": 1}

    dataset = Noted(remote=remote, local=str(tmp_path / "local"), batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4)
    next(batches := iter(loader))
    state = loader.state_dict()
    assert state is not None
    assert (state["mine"], state["sample_in_epoch"]) == (1, 4)
    batches.close()  # type: ignore[attr-defined]


def test_a_loader_may_count_batches_in_its_own_way(tmp_path: Path, remote: str) -> None:
    class Pairs(StreamingDataLoader):
        def _get_batch_size(self, batch: Any) -> int:
            return int(batch["pairs"])

    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "local"), batch_size=4)
    loader = Pairs(dataset, batch_size=4, collate_fn=lambda samples: {"pairs": len(samples)})
    list(loader)
    assert loader.num_samples_yielded == 20


@pytest.mark.parametrize(
    ("base", "name", "advice"),
    [
        (StreamingDataset, "_prepare_thread", "override `get_item`"),
        (StreamingDataset, "_download_thread", "override `get_item`"),
        (StreamingDataset, "_get_work", "it is computed"),
        (StreamingDataset, "evict_shard", "override the steps of `Stream`"),
        (Stream, "prepare_shard", "override `_prepare_shard_part`"),
        (Stream, "_get_temporary_directory", "TMPDIR"),
    ],
)
def test_an_override_of_what_is_gone_warns_where_the_class_stands(
    base: type, name: str, advice: str
) -> None:
    with pytest.warns(UserWarning, match=f"nothing calls any more: .*{advice}") as caught:
        type(base)("Sub", (base,), {name: lambda self: None, "__module__": __name__})
    assert Path(caught[0].filename) == Path(__file__)


def test_other_overrides_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class Fine(StreamingDataset):
            def get_item(self, sample_id: int, retry: int = 7) -> Any:
                return None

            def __iter__(self) -> Iterator[Any]:
                return iter(())
