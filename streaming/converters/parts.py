"""Write a dataset by several processes: a part each, in a folder of its own, then one index."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streaming.errors import ConfigError, EmptyDatasetError
from streaming.format.index import get_index_basename
from streaming.format.mds.writer import MDSWriter
from streaming.format.output import (
    Out,
    check_local,
    clear_local,
    clear_remote,
    open_remote,
    split_out,
)
from streaming.format.reader import Sample
from streaming.util.merging import merge_index

__all__ = ["Batches", "Part", "Parts", "Udf", "as_json"]

# Makes samples of a pandas DataFrame.
Udf = Callable[..., Iterable[Sample]]


class Part(NamedTuple):
    """Where the index of a part is: a path, and a URL; "" for none."""

    local: str
    remote: str


@dataclass(frozen=True)
class Parts:
    """A dataset that is written in parts. Plain data, which travels to the processes that write.

    Attributes:
        local: Directory of all parts.
        remote: The same at a remote, or None.
        keep_local: Keep local files once they are at the remote.
        arguments: Of the writer, but for where to.
    """

    local: str
    remote: str | None
    keep_local: bool
    arguments: Mapping[str, Any]

    @classmethod
    def open(cls, *, out: Out, keep_local: bool = True, **arguments: Any) -> "Parts":
        """Make a place ready, as `MDSWriter` does for one dataset.

        Args:
            out: Directory, URL or (local, remote). All processes that write must see the same.
            keep_local: Keep local files that were uploaded, also in a temporary directory.
            arguments: As for `MDSWriter`.

        Raises:
            OutputExistsError: There is something, and not `exist_ok`.
        """
        exist_ok = arguments.pop("exist_ok", False)
        local, remote = split_out(out)
        if local is not None:
            check_local(local, exist_ok)
        opened = remote and open_remote(remote, local, arguments.get("storage_options"))
        if remote and opened:
            store, prefix = opened
            try:
                clear_remote(store, prefix, remote, exist_ok)
            finally:
                store.close()
        if local is not None:
            clear_local(local)
        return cls(
            local=os.path.abspath(local or tempfile.mkdtemp(prefix="streaming-")),
            remote=remote.rstrip("/") if remote and opened else None,
            keep_local=keep_local,
            arguments=arguments,
        )

    def write(self, name: str, batches: Iterable[Any], keep_local: bool) -> Part | None:
        """Write one part.

        Args:
            name: Of its folder.
            batches: Each a table that `MDSWriter.write_batch` takes, or an iterator of samples.
            keep_local: Keep its files here once they are at the remote.

        Returns:
            None if there are no samples: then there is no folder.
        """
        local = os.path.join(self.local, name)
        remote = self.remote and f"{self.remote}/{name}"
        out = (local, remote) if remote else local
        writer: MDSWriter | None = None
        with ExitStack() as stack:
            for batch in batches:
                is_table = hasattr(batch, "columns")
                if is_table and not len(batch):
                    continue
                for piece in [batch] if is_table else batch:
                    if writer is None:
                        made = MDSWriter(out=out, keep_local=keep_local, **self.arguments)
                        writer = stack.enter_context(made)
                    (writer.write_batch if is_table else writer.write)(piece)
        if writer is None:
            return None
        index = get_index_basename()
        return Part(os.path.join(local, index), f"{remote}/{index}" if remote else "")

    def merge(self, parts: Sequence[Part]) -> None:
        """Write the index of the whole, in the order of the parts.

        Raises:
            EmptyDatasetError: There are none.
        """
        if not parts:
            raise EmptyDatasetError("There is nothing to write: no part has samples.")
        out = (self.local, self.remote) if self.remote else self.local
        listed = [tuple(part) if part.remote else part.local for part in parts]
        merge_index(listed, out, storage_options=self.arguments.get("storage_options"))

    def clean(self) -> None:
        """Remove the local directory, if it is not to be kept and all of it is at the remote."""
        if self.remote and not self.keep_local:
            shutil.rmtree(self.local, ignore_errors=True)


@dataclass(frozen=True)
class Batches:
    """Makes what a part is written of from pandas DataFrames.

    Attributes:
        columns: Name to encoding, of what is written.
        names: Of the columns of a frame.
        udf: Makes samples of a frame; None: its rows are the samples.
        arguments: For `udf`, after the frame.
    """

    columns: Mapping[str, str]
    names: Sequence[str]
    udf: Udf | None = None
    arguments: Mapping[str, Any] | None = None

    def make(self, frame: Any) -> Any:
        """A table, or an iterator of samples.

        Raises:
            ConfigError: The function gives nothing that could be iterated over.
        """
        frame = frame.set_axis(list(self.names), axis="columns")
        if self.udf is None:
            plain = {
                name: frame[name].map(as_json)
                for name, encoding in self.columns.items()
                if encoding == "json"
            }
            return frame.assign(**plain) if plain else frame
        samples: Any = self.udf(frame, **(self.arguments or {}))
        if not isinstance(samples, Iterable):
            name = getattr(self.udf, "__name__", repr(self.udf))
            raise ConfigError(
                f"`udf_iterable` must give an iterable of samples, each a dict, but {name} gave "
                f"{type(samples).__name__}."
            )
        return iter(samples)


def as_json(value: Any) -> Any:
    """A value of a pandas DataFrame as JSON can hold it: rows as dicts, arrays as lists."""
    if hasattr(value, "asDict"):  # A struct, with some versions of Spark.
        value = value.asDict()
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [as_json(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
