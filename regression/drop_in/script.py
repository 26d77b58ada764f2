"""A script as users of mosaicml-streaming have them. It runs unchanged with this library.

Nothing in it may be adapted to either: `run.py` runs it with both and compares what it prints.

usage: script.py ROOT STATE_OUT [STATE_IN]
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.array import Array
from streaming.base.format.mds.encodings import get_mds_encodings
from streaming.base.stream import streams_registry
from streaming.base.util import bytes_to_int, clean_stale_shared_memory, merge_index
from streaming.base.world import World


def say(what: str, value: Any) -> None:
    """Print what is to be equal on both sides."""
    print(json.dumps([what, value]), flush=True)


class Tokens(StreamingDataset):
    """The usual subclass: arguments of its own, and samples transformed in `get_item`."""

    def __init__(self, *, length: int, batch_size: int, **kwargs: Any) -> None:
        super().__init__(batch_size=batch_size, **kwargs)
        self.length_of_sample = length
        self.batch_size = batch_size

    def get_item(self, sample_id: int) -> dict[str, Any]:
        sample = super().get_item(sample_id)
        tokens = np.frombuffer(sample["text"].encode(), np.uint8)[: self.length_of_sample]
        return {"id": sample["id"], "tokens": np.resize(tokens, self.length_of_sample)}


class Counted(Stream):
    """A stream that does something for every file."""

    def __init__(self, *, label: str = "", **kwargs: Any) -> None:
        self.label = label
        self.fetched: list[str] = []
        super().__init__(**kwargs)

    def _download_file(self, from_basename: str, to_basename: str | None = None) -> str:
        self.fetched.append(from_basename)
        return super()._download_file(from_basename, to_basename)


streams_registry.register("counted", func=Counted)


def write(root: Path, name: str, first: int, count: int, compression: str | None) -> None:
    columns = {"id": "int", "text": "str"}
    kwargs = {"compression": compression, "hashes": ["sha1"], "size_limit": "2kb"}
    with MDSWriter(out=str(root / name), columns=columns, **kwargs) as out:
        for i in range(first, first + count):
            out.write({"id": i, "text": f"sample {i} " * 5})


def ids(loader: StreamingDataLoader, stop: int | None = None) -> list[list[int]]:
    batches = []
    for batch in loader:
        batches.append(batch["id"].tolist())
        if len(batches) == stop:
            break
    return batches


def five(state: dict[str, Any]) -> dict[str, Any]:
    keys = "epoch sample_in_epoch num_canonical_nodes shuffle_seed initial_physical_nodes"
    return {key: state[key] for key in keys.split()}


def mixed(root: Path, run: str, **kwargs: Any) -> Tokens:
    streams = [
        Stream(remote=str(root / "a"), local=str(root / run / "a"), proportion=3),
        Stream(remote=str(root / "b"), local=str(root / run / "b"), proportion=1),
    ]
    return Tokens(streams=streams, length=8, shuffle=True, validate_hash="sha1", **kwargs)


def main(root: Path, state_out: Path, state_in: Path | None) -> None:
    clean_stale_shared_memory()
    write(root, "a", 0, 300, "zstd:3")
    write(root, "b", 1000, 120, None)
    for part in ("0", "1"):
        write(root, f"c/{part}", 2000 + 100 * int(part), 30, None)
    merge_index(str(root / "c"))

    # Two weighted streams, epochs, workers, a state in the middle of an epoch.
    dataset = mixed(root, "one", batch_size=6, num_canonical_nodes=2, predownload=64)
    say("lengths", [len(dataset), dataset.size, dataset.epoch_size, dataset.num_streams])
    say("choose", [[int(each.choose), round(float(each.repeat), 9)] for each in dataset.streams])
    loader = StreamingDataLoader(dataset, batch_size=6, num_workers=2)
    say("epoch 0", ids(loader))
    say("epoch 1, begun", ids(loader, stop=11))
    state = loader.state_dict()
    say("state", five(state))
    state_out.write_text(json.dumps(five(state)))
    say("next epoch", dataset.next_epoch)
    del loader, dataset

    # Another object goes on, on another number of workers; so does one from the other library.
    for run, source in (("two", state_out), ("three", state_in)):
        if source is not None:
            dataset = mixed(root, run, batch_size=6, num_canonical_nodes=2)
            loader = StreamingDataLoader(dataset, batch_size=6, num_workers=1)
            loader.load_state_dict(json.loads(source.read_text()))
            say(f"epoch 1, the rest, {run}", ids(loader))
            say(f"epoch 2, {run}", ids(loader))
            del loader, dataset

    # Every way to order.
    for i, kwargs in enumerate(
        [
            {"shuffle_algo": "py1s"},
            {"shuffle_algo": "py2s", "num_canonical_nodes": 4},
            {"shuffle_algo": "py1br", "shuffle_block_size": 50},
            {"shuffle_algo": "naive", "epoch_size": "1k"},
            {"batching_method": "stratified"},
            {"batching_method": "per_stream", "shuffle_block_size": 100},
            {"sampling_method": "fixed", "epoch_size": 333, "sampling_granularity": 4},
        ]
    ):
        dataset = mixed(root, f"order{i}", batch_size=8, **kwargs)
        say(f"order {kwargs}", [ids(StreamingDataLoader(dataset, batch_size=8)) for _ in range(2)])
        del dataset

    # One stream by the name of its class, an evaluation set beside it, random access.
    config = {"label": "x"}
    dataset = StreamingDataset(
        remote=str(root / "c"),
        local=str(root / "cache"),
        batch_size=4,
        stream_name="counted",
        stream_config=config,
        cache_limit="1mb",
    )
    evaluation = StreamingDataset(local=str(root / "b"), batch_size=4)
    say("evaluation", [sample["id"] for sample in evaluation])
    picked = [each["id"] for each in dataset[[3, -1]]]
    say("random", [dataset[5]["id"], picked, dataset[2:4][1]["id"]])
    say("fetched", sorted(set(dataset.streams[0].fetched)))
    say("label", dataset.streams[0].label)
    say("shards", [dataset.num_shards, dataset.samples_per_shard.tolist()])
    say("offsets", dataset.sample_offset_per_shard.tolist())
    say("shard 1", [dataset.shards[1].samples, dataset.shards[1].get_raw_size()])
    say("spanner", [int(each) for each in dataset.spanner[31]])
    before = dataset.cache_usage
    dataset.prepare_shard(3)
    dataset.evict_shard(3)
    say("usage", [before == dataset.cache_usage, before])
    units, drawn = dataset.resample_streams(0)
    say("drawn", [units.tolist(), drawn.tolist()])
    dataset.next_epoch = 5
    say("from epoch 5", [sample["id"] for sample in dataset])
    say("next", dataset.next_epoch)

    say("array", isinstance(dataset, Array))
    say("world", World(2, 4, 3, 7).to_json())
    say("bytes", bytes_to_int("1.5gb"))
    say("encodings", len(get_mds_encodings() & {"int", "str", "pil", "ndarray", "json", "pkl"}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
