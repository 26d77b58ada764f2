"""The predecessor's example datasets: images, English Wikipedia, videos beside the shards."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streaming import MDSWriter, StreamingDataLoader
from streaming.errors import ConfigError, MissingExtraError, StoreError
from streaming.example import ExampleDataset
from streaming.multimodal import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
)
from streaming.text import StreamingC4, StreamingEnWiki
from streaming.vision import (
    StreamingADE20K,
    StreamingCIFAR10,
    StreamingCOCO,
    StreamingVisionDataset,
    to_tensor,
)

Image = pytest.importorskip("PIL.Image", reason="needs Pillow: the extra `image`")


def image(shade: int) -> Any:
    return Image.fromarray(np.full((2, 3, 3), shade, np.uint8))


def write(root: Path, columns: dict[str, str], samples: list[dict[str, Any]]) -> str:
    with MDSWriter(out=str(root), columns=columns) as out:
        for sample in samples:
            out.write(sample)
    return str(root)


@pytest.fixture
def images(tmp_path: Path) -> str:
    samples = [{"x": image(51 * i), "y": i} for i in range(4)]
    return write(tmp_path / "images", {"x": "png", "y": "int"}, samples)


def test_images_become_tensors(images: str) -> None:
    dataset = StreamingCIFAR10(local=images, batch_size=2, num_canonical_nodes=1)
    x, y = dataset[1]
    assert (x.shape, x.dtype, y) == (torch.Size([3, 2, 3]), torch.float32, 1)
    assert torch.allclose(x, torch.tensor(0.2))
    batches = list(StreamingDataLoader(dataset, batch_size=2))
    assert [batch[1].tolist() for batch in batches] == [[0, 1], [2, 3]]


def test_transforms_of_x_and_y_and_of_both(images: str) -> None:
    each = StreamingVisionDataset(
        local=images, batch_size=1, transform=lambda x: x.size, target_transform=lambda y: -y
    )
    assert each[2] == ((3, 2), -2)
    both = StreamingVisionDataset(local=images, batch_size=1, transforms=lambda x, y: (y, x.size))
    assert both[2] == (2, (3, 2))
    with pytest.raises(ConfigError, match="either `transforms`"):
        StreamingVisionDataset(
            local=images, batch_size=1, transforms=lambda x, y: (x, y), transform=to_tensor
        )


@pytest.mark.parametrize(
    ("mode", "expected"), [("L", 0.2), ("RGBA", 0.2), ("I", 51), ("F", 51.0), ("1", 0.0)]
)
def test_to_tensor_is_that_of_torchvision(mode: str, expected: float) -> None:
    tensor = to_tensor(Image.new("L", (3, 2), 51).convert(mode))
    assert tensor.shape == (len(Image.new(mode, (1, 1)).getbands()), 2, 3)
    assert tensor[0, 0, 0].item() == pytest.approx(expected)


def test_a_joint_transform_comes_first(images: str) -> None:
    dataset = StreamingADE20K(
        local=images,
        joint_transform=lambda pair: (pair[1] + 1, pair[1]),
        transform=lambda x: 10 * x,
        target_transform=lambda y: -y,
    )
    assert dataset[2] == (30, -2)
    assert StreamingADE20K(local=images)[2][1] == 2


def test_boxes_around_things(tmp_path: Path) -> None:
    columns = {
        "img": "png",
        "img_id": "int",
        "htot": "int",
        "wtot": "int",
        "bbox_sizes": "pkl",
        "bbox_labels": "pkl",
    }
    sample = {
        "img": image(1),
        "img_id": 7,
        "htot": 2,
        "wtot": 3,
        "bbox_sizes": [1],
        "bbox_labels": [2],
    }
    columns |= {"bbox_sizes": "json", "bbox_labels": "json"}
    root = write(tmp_path / "coco", columns, [sample])
    found = StreamingCOCO(local=root)[0]
    assert (found[0].mode, found[1:]) == ("RGB", (7, (2, 3), [1], [2]))
    moved = StreamingCOCO(local=root, transform=lambda img, size, boxes, labels: (0, size, 1, 2))
    assert moved[0] == (0, 7, (2, 3), 1, 2)


def test_wikipedia_gives_labels_where_tokens_were_masked(tmp_path: Path) -> None:
    def data(*values: int) -> bytes:
        return np.array(values, np.int32).tobytes()

    sample = {
        "input_ids": data(*range(8)),
        "input_mask": data(*[1] * 8),
        "segment_ids": data(*[0] * 8),
        "masked_lm_positions": data(2, 5),
        "masked_lm_ids": data(77, 88),
        "masked_lm_weights": np.ones(2, np.float32).tobytes(),
    }
    root = write(tmp_path / "wiki", dict.fromkeys(sample, "bytes"), [sample])
    found = StreamingEnWiki(local=root)[0]
    assert found.keys() == {"input_ids", "token_type_ids", "attention_mask", "labels"}
    assert found["labels"].tolist() == [-100, -100, 77, -100, -100, 88, -100, -100]
    assert found["labels"].dtype == np.int64
    assert found["input_ids"].tolist() == list(range(8))
    other = {**sample, "other": b""}
    root = write(tmp_path / "other", dict.fromkeys(other, "bytes"), [other])
    with pytest.raises(KeyError, match="other"):
        StreamingEnWiki(local=root)[0]


@pytest.mark.parametrize("cls", [StreamingOutsideGIWebVid, StreamingOutsideDTWebVid])
def test_videos_beside_the_shards_are_fetched(
    tmp_path: Path, cls: type[StreamingOutsideGIWebVid]
) -> None:
    (tmp_path / "videos" / "a").mkdir(parents=True)
    (tmp_path / "videos" / "a" / "1.mp4").write_bytes(b"video")
    rows = [{"content_path": "a/1.mp4"}, {"content_path": "../outside"}]
    root = write(tmp_path / "data", {"content_path": "str"}, rows)
    dataset = cls(
        local=root, extra_local=str(tmp_path / "here"), extra_remote=str(tmp_path / "videos")
    )
    assert dataset[0] == {"content_path": "a/1.mp4", "content": b"video"}
    assert (tmp_path / "here" / "a" / "1.mp4").exists()
    with pytest.raises(StoreError, match="can't be the key"):
        dataset[1]
    with pytest.raises(ConfigError, match="extra_local"):
        cls(local=root)
    assert StreamingInsideWebVid(local=root)[1] == rows[1]


def test_a_tokenizer_needs_to_be_there_and_one_way_to_group(
    images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    with pytest.raises(ConfigError, match="must be 'truncate'"):
        StreamingC4(local=images, tokenizer_name="x", max_seq_len=4, group_method="concat")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"goldenspike\[transformers\]"):
        StreamingC4(local=images, tokenizer_name="x", max_seq_len=4, group_method="truncate")


def test_quirk_K9_examples_keep_the_old_defaults() -> None:
    parameters = inspect.signature(ExampleDataset).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    assert defaults["partition_algo"] == "orig"
    assert defaults["shuffle_algo"] == "py1s"
    assert defaults["shuffle_block_size"] == 1 << 18
    required = inspect.signature(StreamingVisionDataset).parameters["batch_size"]
    assert required.default is required.empty
