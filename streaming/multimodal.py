"""WebVid as the predecessor's examples have it: the videos in the shards, or beside them.

The old module `streaming.multimodal.webvid` is this one.
"""

import os
from pathlib import Path
from typing import Any

from streaming.dataset import StreamingDataset
from streaming.errors import ConfigError
from streaming.example import ExampleDataset
from streaming.format.reader import Sample
from streaming.storage import open_store
from streaming.storage.download import fetch
from streaming.storage.store import check_key, join_key
from streaming.util.migration import alias_submodules, extends
from streaming.util.retrying import Retry

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]

__path__ = alias_submodules(
    __name__,
    {"webvid": __name__},
    gone={"convert": "write a dataset with `MDSWriter`; see docs/migrating.md."},
)


class StreamingInsideWebVid(StreamingDataset):
    """WebVid with the videos in the shards; samples come as they are stored."""

    def get_item(self, idx: int, retry: int = 7) -> Any:
        """Get one sample."""
        return super().get_item(idx, retry)


class StreamingOutsideGIWebVid(ExampleDataset):
    """WebVid with the videos in files beside the shards, fetched when a sample is read.

    Args:
        extra_local: Directory for the videos on this node.
        extra_remote: URL or path of the directory they come from; None: all are in `extra_local`.
        arguments: As for ExampleDataset.

    Raises:
        ConfigError: `extra_local` is missing.
    """

    @extends(ExampleDataset)
    def __init__(
        self, *, extra_local: str | None = None, extra_remote: str | None = None, **arguments: Any
    ) -> None:
        if extra_local is None:
            raise ConfigError("`extra_local` is the directory for the videos; it must be given.")
        super().__init__(**arguments)
        self.extra_local = extra_local
        self.extra_remote = extra_remote

    def get_item(self, idx: int, retry: int = 7) -> Sample:
        """Get a sample, with the bytes of its video in "content".

        Raises:
            StoreError: The video can't be had, or its name leaves the directory.
        """
        sample: Sample = super().get_item(idx, retry)
        return {**sample, "content": self._video(sample["content_path"]).read_bytes()}

    def _video(self, name: str) -> Path:
        """The file of a video, which is fetched first if need be."""
        path = Path(self.extra_local, check_key(name))  # The name is data: no "..", no "/etc".
        if self.extra_remote is not None and not path.exists():
            folder, basename = os.path.split(f"{self.extra_remote}/{name}")
            store, prefix = open_store(folder)
            try:
                key = join_key(prefix, basename)
                fetch(store, key, path, retry=Retry(self.streams[0].download_retry or 1))
            finally:
                store.close()
        return path


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """The same. The predecessor meant to fetch the videos ahead here, but never did."""
