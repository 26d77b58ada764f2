"""Datasets of images, with transforms as torchvision has them; torchvision is not needed.

`StreamingVisionDataset` is the one to build on. The others read the layouts of the predecessor's
example datasets, with its defaults; their old modules (`streaming.vision.coco`, ...) are this one.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from streaming.errors import ConfigError
from streaming.example import ExampleDataset
from streaming.util.migration import alias_submodules, extends

__all__ = [
    "StandardTransform",
    "StreamingADE20K",
    "StreamingCIFAR10",
    "StreamingCOCO",
    "StreamingImageNet",
    "StreamingVisionDataset",
    "to_tensor",
]

__path__ = alias_submodules(
    __name__,
    dict.fromkeys(("ade20k", "base", "cifar10", "coco", "imagenet"), __name__),
    gone={
        "convert": "write a dataset with `MDSWriter`, or have a folder of files converted by "
        "`streaming convert`; see docs/migrating.md."
    },
)

Transform = Callable[[Any], Any]


class StandardTransform:
    """Transforms x and y each by a function of its own.

    Args:
        transform: For x; None leaves it.
        target_transform: For y; None leaves it.
    """

    def __init__(
        self, transform: Transform | None = None, target_transform: Transform | None = None
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        if self.transform is not None:
            x = self.transform(x)
        if self.target_transform is not None:
            y = self.target_transform(y)
        return x, y


class StreamingVisionDataset(ExampleDataset):
    """Images (column "x") and their classes (column "y"), transformed.

    Args:
        arguments: As for ExampleDataset.
        transforms: Function of x and y. Excludes the other two.
        transform: Function of x; None: `to_tensor`.
        target_transform: Function of y; None leaves it.

    Raises:
        ConfigError: `transforms` was given beside another one.
    """

    @extends(ExampleDataset)
    def __init__(
        self,
        *,
        batch_size: int,
        transforms: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        **arguments: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ConfigError("Give either `transforms`, or `transform` and `target_transform`.")
        super().__init__(batch_size=batch_size, **arguments)
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms or StandardTransform(transform or to_tensor, target_transform)

    def get_item(self, idx: int, retry: int = 7) -> Any:
        """Get one image and its class, transformed."""
        sample = super().get_item(idx, retry)
        return self.transforms(sample["x"], sample["y"])


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10: columns "x" (an image) and "y" (int)."""


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet: columns "x" (an image) and "y" (int)."""


class StreamingADE20K(ExampleDataset):
    """ADE20K: images (column "x") and their annotations, images too (column "y").

    Args:
        joint_transform: Function of (x, y), before the others.
        transform: Function of x.
        target_transform: Function of y.
        arguments: As for ExampleDataset.
    """

    @extends(ExampleDataset)
    def __init__(
        self,
        *,
        joint_transform: Callable[[tuple[Any, Any]], tuple[Any, Any]] | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.joint_transform = joint_transform
        self.transform = transform
        self.target_transform = target_transform

    def get_item(self, idx: int, retry: int = 7) -> Any:
        """Get one image and its annotation, transformed."""
        sample = super().get_item(idx, retry)
        x, y = sample["x"], sample["y"]
        if self.joint_transform is not None:
            x, y = self.joint_transform((x, y))
        return StandardTransform(self.transform, self.target_transform)(x, y)


class StreamingCOCO(ExampleDataset):
    """COCO: images with boxes around things.

    Columns "img", "img_id", "htot", "wtot", "bbox_sizes", "bbox_labels".

    Args:
        transform: Function of (image, (height, width), box sizes, box labels) that gives these four
            again.
        arguments: As for ExampleDataset.
    """

    @extends(ExampleDataset)
    def __init__(
        self,
        *,
        transform: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.transform = transform

    def get_item(self, idx: int, retry: int = 7) -> Any:
        """Get (image, its id, (height, width), box sizes, box labels)."""
        sample = super().get_item(idx, retry)
        image = sample["img"].convert("RGB")
        size = sample["htot"], sample["wtot"]
        boxes, labels = sample["bbox_sizes"], sample["bbox_labels"]
        if self.transform is not None:
            image, size, boxes, labels = self.transform(image, size, boxes, labels)
        return image, sample["img_id"], size, boxes, labels


def to_tensor(image: Any) -> torch.Tensor:
    """Turn an image into a tensor as torchvision's function of this name does.

    Args:
        image: A PIL image, or an array of shape (height, width) or (height, width, channels).

    Returns:
        Shape (channels, height, width); bytes and bits as float32 in [0, 1], anything else as it
        is.
    """
    array = np.array(image)
    if array.ndim == 2:
        array = array[:, :, None]
    tensor = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
    if tensor.dtype == torch.bool:
        return tensor.to(torch.float32)
    return tensor.to(torch.float32) / 255 if tensor.dtype == torch.uint8 else tensor
