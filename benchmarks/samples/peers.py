"""How each library writes and reads, as its own documentation would have it."""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import data  # type: ignore[import-not-found]  # It lies beside this file.
import numpy as np

__all__ = ["PEERS", "Peer"]

COLUMNS = {
    "text": {"num": "int", "txt": "str"},
    "tokens": {"tokens": f"ndarray:int32:{data.TOKENS}"},
    "jpeg": {"image": "bytes", "label": "int"},
}
BATCH = {"text": 256, "tokens": 32, "jpeg": 64}
CROP = 224  # pixels


class Peer:
    """What can be measured; a library leaves out what it does not have."""

    write: Callable[[str, Iterable[dict[str, Any]], Path], None]
    write_table: Callable[[str, Any, Path], None]
    rows: Callable[[str, Path], Iterable[Any]]
    columns: Callable[[str, Path], Iterator[int]]  # samples of each batch
    get: Callable[[str, Path], tuple[Callable[[int], Any], int]]
    loader: Callable[[str, Path, int], Iterable[Any]]
    loader_columns: Callable[[str, Path, int], Iterable[Any]]
    many_shards: Callable[[Path, Path, int], None]  # a dataset of one shard to one of as many
    start: Callable[[Path], Any]  # construct, and the first batch


def crop(pixels: Any) -> Any:
    """The middle of a picture as a tensor."""
    import torch

    top, left = (pixels.shape[0] - CROP) // 2, (pixels.shape[1] - CROP) // 2
    return torch.from_numpy(pixels[top : top + CROP, left : left + CROP]).permute(2, 0, 1)


def decode(blob: bytes) -> Any:
    """The same from a file, by Pillow."""
    from PIL import Image

    return crop(np.array(Image.open(io.BytesIO(blob)).convert("RGB")))


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with its picture as a tensor."""
    return {**sample, "image": decode(sample["image"])}


class MDS(Peer):
    """What this library and its predecessor have in common."""

    def write(self, kind: str, rows: Iterable[dict[str, Any]], out: Path) -> None:
        with import_module("streaming").MDSWriter(columns=COLUMNS[kind], out=str(out)) as writer:
            for row in rows:
                writer.write(row)

    def open(self, kind: str, out: Path, **options: Any) -> Any:
        streaming = import_module("streaming")
        return streaming.StreamingDataset(local=str(out), batch_size=BATCH[kind], **options)

    def rows(self, kind: str, out: Path) -> Any:
        return self.open(kind, out, shuffle=False)

    def get(self, kind: str, out: Path) -> tuple[Callable[[int], Any], int]:
        dataset = self.open(kind, out, shuffle=False)
        return dataset.__getitem__, dataset.size

    def loader(self, kind: str, out: Path, workers: int) -> Any:
        return import_module("streaming").StreamingDataLoader(
            self.shuffled(kind, out), batch_size=BATCH[kind], num_workers=workers
        )

    def shuffled(self, kind: str, out: Path) -> Any:
        raise NotImplementedError

    def many_shards(self, out: Path, many: Path, count: int) -> None:
        index = json.loads((out / "index.json").read_text())
        (shard,) = index["shards"][:1]
        name = shard["raw_data"]["basename"]
        index["shards"] = []
        for i in range(count):
            file = {**shard["raw_data"], "basename": f"shard.{i:05}.mds"}
            index["shards"].append({**shard, "raw_data": file})
            os.link(out / name, many / file["basename"])
        (many / "index.json").write_text(json.dumps(index))

    def start(self, out: Path) -> Any:
        loader = import_module("streaming").StreamingDataLoader
        return next(iter(loader(self.open("text", out, shuffle=False), batch_size=256)))


class Ours(MDS):
    """This library."""

    def write_table(self, kind: str, table: Any, out: Path) -> None:
        with import_module("streaming").MDSWriter(columns=COLUMNS[kind], out=str(out)) as writer:
            writer.write_batch(table)

    def columns(self, kind: str, out: Path) -> Iterator[int]:
        import_module("pyarrow.compute")
        dataset = self.open(kind, out, shuffle=False, batched=True)
        return (len(batch["txt"].to_arrow()) for batch in dataset)

    def shuffled(self, kind: str, out: Path) -> Any:
        decoders = {"image": _crop_of_file} if kind == "jpeg" else None
        return self.open(kind, out, shuffle=True, decoders=decoders)

    def loader_columns(self, kind: str, out: Path, workers: int) -> Any:
        dataset = self.open(kind, out, shuffle=True, batched=True)
        return import_module("streaming").StreamingDataLoader(dataset, num_workers=workers)


def _crop_of_file(blob: bytes) -> Any:
    return crop(import_module("streaming").ImageToArray()(blob))


class Mosaic(MDS):
    """MosaicML Streaming."""

    def open(self, kind: str, out: Path, **options: Any) -> Any:
        import_module("streaming.base.util").clean_stale_shared_memory()
        return super().open(kind, out, **options)

    def write_table(self, kind: str, table: Any, out: Path) -> None:
        self.write(kind, data.rows(table), out)

    def columns(self, kind: str, out: Path) -> Iterator[int]:
        return (1 for _ in self.rows(kind, out))

    def shuffled(self, kind: str, out: Path) -> Any:
        if kind != "jpeg":
            return self.open(kind, out, shuffle=True)
        import_module("streaming.base.util").clean_stale_shared_memory()

        class Decoded(import_module("streaming").StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, at: Any) -> Any:
                return decoded(super().__getitem__(at))

        return Decoded(local=str(out), batch_size=BATCH[kind], shuffle=True)


class LitData(Peer):
    """LitData."""

    def write(self, kind: str, rows: Iterable[dict[str, Any]], out: Path) -> None:
        writer = import_module("litdata.streaming.writer").BinaryWriter(
            str(out), chunk_bytes=1 << 26
        )
        for i, row in enumerate(rows):
            writer[i] = row
        writer.done()
        writer.merge()

    def open(self, out: Path, **options: Any) -> Any:
        return import_module("litdata").StreamingDataset(str(out), **options)

    def rows(self, kind: str, out: Path) -> Iterable[Any]:
        return (row for row in self.open(out))  # It begins anew on a second `iter`.

    def get(self, kind: str, out: Path) -> tuple[Callable[[int], Any], int]:
        dataset = self.open(out)
        return dataset.__getitem__, len(dataset)

    def loader(self, kind: str, out: Path, workers: int) -> Any:
        options = {"transform": decoded} if kind == "jpeg" else {}
        return import_module("litdata").StreamingDataLoader(
            self.open(out, shuffle=True, **options), batch_size=BATCH[kind], num_workers=workers
        )

    def many_shards(self, out: Path, many: Path, count: int) -> None:
        index = json.loads((out / "index.json").read_text())
        chunk = index["chunks"][0]
        index["chunks"] = []
        for i in range(count):
            index["chunks"].append({**chunk, "filename": f"chunk-0-{i}.bin"})
            os.link(out / chunk["filename"], many / f"chunk-0-{i}.bin")
        (many / "index.json").write_text(json.dumps(index))

    def start(self, out: Path) -> Any:
        loader = import_module("litdata").StreamingDataLoader(self.open(out), batch_size=256)
        return next(iter(loader))


class Copies(Peer):
    """No library: rows of a mapped file are copied into batches, at random. No reader does less."""

    def write(self, kind: str, rows: Iterable[dict[str, Any]], out: Path) -> None:
        out.mkdir(parents=True)
        if kind == "tokens":
            np.save(out / "rows.npy", np.stack([row["tokens"] for row in rows]))

    def loader(self, kind: str, out: Path, workers: int) -> Iterator[Any]:
        import torch

        rows = np.load(out / "rows.npy", mmap_mode="r")
        order = np.random.default_rng(1).permutation(len(rows))
        for start in range(0, len(rows), BATCH[kind]):
            yield {kind: torch.from_numpy(rows[order[start : start + BATCH[kind]]])}


class HuggingFace(Peer):
    """Hugging Face datasets, map-style, over its own Arrow files."""

    def write(self, kind: str, rows: Iterable[dict[str, Any]], out: Path) -> None:
        datasets = import_module("datasets")
        value = datasets.Value
        features = {
            "text": {"num": value("int64"), "txt": value("string")},
            "tokens": {"tokens": datasets.List(value("int32"), length=data.TOKENS)},
            "jpeg": {"image": value("binary"), "label": value("int64")},
        }[kind]
        made = datasets.Dataset.from_generator(
            _again,
            gen_kwargs={"rows": rows},
            features=datasets.Features(features),
            cache_dir=f"{out}-cache",
            fingerprint="bench",
        )
        made.save_to_disk(str(out))

    def open(self, out: Path) -> Any:
        return import_module("datasets").load_from_disk(str(out))

    def rows(self, kind: str, out: Path) -> Any:
        return self.open(out)

    def get(self, kind: str, out: Path) -> tuple[Callable[[int], Any], int]:
        dataset = self.open(out)
        return dataset.__getitem__, len(dataset)

    def loader(self, kind: str, out: Path, workers: int) -> Any:
        dataset = self.open(out)
        if kind == "jpeg":
            dataset = dataset.with_transform(_decode_batch)
        elif kind == "tokens":
            dataset = dataset.with_format("torch")
        return _torch_loader(dataset, kind, workers)


def _again(rows: Any) -> Iterator[Any]:
    yield from rows


def _decode_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {"image": [decode(blob) for blob in batch["image"]], "label": batch["label"]}


def _torch_loader(dataset: Any, kind: str, workers: int, context: str | None = None) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=BATCH[kind],
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=context if workers else None,
    )


class Arrow(Peer):
    """A memory-mapped Arrow file, by pyarrow alone."""

    group = 1 << 14

    def write_table(self, kind: str, table: Any, out: Path) -> None:
        arrow = import_module("pyarrow")
        out.mkdir()
        with arrow.ipc.new_file(str(out / "data.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=self.group)

    def batches(self, out: Path) -> list[Any]:
        arrow = import_module("pyarrow")
        file = arrow.ipc.open_file(arrow.memory_map(str(out / "data.arrow")))
        return [file.get_batch(i) for i in range(file.num_record_batches)]

    def rows(self, kind: str, out: Path) -> Iterable[Any]:
        return (row for batch in self.batches(out) for row in batch.to_pylist())

    def get(self, kind: str, out: Path) -> tuple[Callable[[int], Any], int]:
        batches, group = self.batches(out), self.group

        def get(i: int) -> Any:
            return batches[i // group].slice(i % group, 1).to_pylist()[0]

        return get, sum(map(len, batches))


class Lance(Peer):
    """Lance."""

    def write_table(self, kind: str, table: Any, out: Path) -> None:
        import_module("lance").write_dataset(table, str(out))

    def batches(self, kind: str, out: Path) -> Any:
        return import_module("lance").dataset(str(out)).to_batches(batch_size=1 << 13)

    def rows(self, kind: str, out: Path) -> Iterable[Any]:
        return (row for batch in self.batches(kind, out) for row in batch.to_pylist())

    def columns(self, kind: str, out: Path) -> Iterator[int]:
        return (len(batch) for batch in self.batches(kind, out))

    def get(self, kind: str, out: Path) -> tuple[Callable[[int], Any], int]:
        dataset = import_module("lance").dataset(str(out))
        return (lambda i: dataset.take([i]).to_pylist()[0]), dataset.count_rows()


class ArrayRecord(Peer):
    """ArrayRecord, with records by msgpack."""

    def write(self, kind: str, rows: Iterable[dict[str, Any]], out: Path) -> None:
        module = import_module("array_record.python.array_record_module")
        pack = import_module("msgpack").packb
        out.mkdir()
        options = "group_size:1,uncompressed"
        writer = module.ArrayRecordWriter(str(out / "data.array_record"), options)
        for row in rows:
            if kind == "tokens":
                writer.write(row["tokens"].tobytes())
            else:
                writer.write(pack(row))
        writer.close()


PEERS: dict[str, type[Peer]] = {
    "ours": Ours,
    "mosaic": Mosaic,
    "litdata": LitData,
    "hf": HuggingFace,
    "arrow": Arrow,
    "lance": Lance,
    "array_record": ArrayRecord,
    "copies": Copies,
}
