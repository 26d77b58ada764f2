"""The writing seam: samples into shards, shards into a directory or a store, the index last."""

import json
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

import numpy as np

from streaming.compression import codecs, compress, get_compression_extension
from streaming.errors import (
    ConfigError,
    EncodeError,
    RemovedError,
    StoreError,
    UnknownNameError,
)
from streaming.format.index import VERSION, dump_index, get_index_basename
from streaming.format.output import (
    Out,
    check_local,
    clear_local,
    clear_remote,
    open_remote,
    remove_if_empty,
    split_out,
    write_new_file,
)
from streaming.format.own import OwnEncoder
from streaming.format.reader import Sample
from streaming.hashing import get_hash
from streaming.hashing import hashes as known_hashes
from streaming.storage import Store, join_key
from streaming.storage.store import find, part_path, translated
from streaming.storage.upload import UploadPool, publish
from streaming.util.checking import check_flag, check_whole
from streaming.util.importing import lazy
from streaming.util.pretty import bytes_to_int
from streaming.util.retrying import Retry

__all__ = ["JointWriter", "Out", "ShardEncoder", "SplitWriter", "Writer", "WriterOptions"]

logger = logging.getLogger(__name__)

_MAX_WORKERS = 16  # Each may hold a shard, so this bounds memory where there are many cores.


# What the predecessor's writers had, and what to do without it.
_FAILURE = "a failure of a thread is raised by the next `write`, or by `finish`"
_GONE = {
    "cloud_writer": "the writer uploads by itself; `local` and `remote` say where to",
    "executor": "threads are the writer's own; `max_workers` says how many",
    "event": _FAILURE,
    "cancel_future_jobs": _FAILURE,
    "exception_callback": _FAILURE,
}


class ShardEncoder(Protocol):
    """How one format lays samples out in the files of a shard. Holds no samples.

    Attributes:
        format: Name of the format, which is also the ending of its files.
        sample_bytes: Bytes that a sample takes in the shard beside its record.
        max_bytes: Bytes that the format can address in a shard.
    """

    format: str
    sample_bytes: int
    max_bytes: int

    @property
    def settings(self) -> Mapping[str, Any]:
        """What belongs to the format in an index."""
        ...

    def encode(self, sample: Sample) -> bytes:
        """The record of a sample.

        Raises:
            EncodeError: A value does not suit its column, or is not there.
        """
        ...

    def empty_bytes(self, config: bytes) -> int:
        """Bytes of a shard without samples, as far as the limit on its size counts them."""
        ...

    def join(self, records: Sequence[bytes], config: bytes) -> Mapping[str, bytes]:
        """The files of a shard: "data", and "meta" if the format has it.

        Args:
            records: Of its samples, in order.
            config: JSON that says how the shard was written, for people.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions:
    """How a writer writes."""

    keep_local: bool = False  # also after upload
    compression: str | None = None  # "family" or "family:level"
    hashes: tuple[str, ...] = ()  # of every file, into the index
    size_limit: int | None = 1 << 26  # bytes of a shard
    sample_limit: int | None = None  # samples of a shard
    progress_bar: bool = False  # of uploads
    max_workers: int | None = None  # threads that compress and hash; None: one a core, up to 16
    retry: int = 2  # attempts for one upload
    exist_ok: bool = False  # replace what is there
    storage_options: Mapping[str, Any] | None = None  # how to reach the remote

    @classmethod
    def from_kwargs(
        cls,
        *,
        compression: str | None,
        hashes: Sequence[str] | None,
        size_limit: int | str | None,
        **kwargs: Any,
    ) -> "WriterOptions":
        """Make options of a writer's keyword arguments, as people write them.

        Raises:
            ConfigError: An argument is not known, or a value can't be used.
        """
        unknown = kwargs.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ConfigError(
                f"A writer has no arguments {sorted(unknown)}. It has `columns`, `out` and "
                f"{', '.join(f'`{name}`' for name in cls.__dataclass_fields__)}."
            )
        names = hashes or []
        if not isinstance(names, (list, tuple)) or not all(isinstance(x, str) for x in names):
            raise ConfigError(f"`hashes` must be a list of names, but is {hashes!r}.")
        if list(names) != sorted(set(names)):
            raise ConfigError(f"`hashes` must be sorted, each once, but is {names}.")
        for name in names:
            known_hashes.get(name)
        if compression and not isinstance(compression, str):
            raise UnknownNameError(
                f"There is no compression {compression!r}. Known: {', '.join(sorted(codecs))}, "
                "most of them with a level, as in 'zstd:7'."
            )
        if compression:
            get_compression_extension(compression)  # Refuses what there is not.
        try:
            limit = bytes_to_int(size_limit) if size_limit else None
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"`size_limit`: {error}") from error
        if limit is not None and not 0 <= limit < 1 << 32:
            raise ConfigError(f"`size_limit` must be in [0, 2**32), but is {size_limit!r}.")
        for name, least in (("sample_limit", 1), ("max_workers", 1), ("retry", 0)):
            if kwargs.get(name) is not None:
                check_whole(name, kwargs[name], least)
        for name in ("keep_local", "progress_bar", "exist_ok"):
            check_flag(name, kwargs.get(name, False))
        reach = kwargs.get("storage_options")
        if reach is not None and not isinstance(reach, Mapping):
            raise ConfigError(f"`storage_options` are names and values, but not {type(reach)}.")
        return cls(
            compression=compression or None, hashes=tuple(names), size_limit=limit or None, **kwargs
        )


class Writer:
    """Writes a dataset. Used by one thread of one process; use it in a ``with`` block.

    A sample is encoded when it is written, so the caller may change it afterwards. Full shards are
    compressed, hashed and uploaded by other threads, a few at a time; what goes wrong there is
    raised by the next `write`, or by `finish`. Files get their names when they are whole. The index
    comes last, when everything else is where it belongs: until then there is no dataset. If the
    block is left by an exception, none is made.

    Args:
        encoder: The format. None: the class brings it, by overriding `encode_sample` and
            `encode_joint_shard` or `encode_split_shard`, and has a `format`.
        out: A directory, a URL, or both: (local, remote). What goes to a remote passes through the
            local directory, or a temporary one, and stays there only if `keep_local`. If an upload
            fails, what was not uploaded stays.
        options: How to write. None: what `arguments` say.
        extra_bytes_per_shard: What a class that brings its format adds to each shard, in bytes.
        extra_bytes_per_sample: The same for each sample.
        arguments: As for `MDSWriter`.

    Raises:
        OutputExistsError: The directory is not empty, or the remote has an index, and not
            `exist_ok`; with it, the directory is emptied, and the index removed, first.
    """

    format: str = ""

    def __init__(
        self,
        encoder: ShardEncoder | None = None,
        out: Out = "",
        options: WriterOptions | None = None,
        *,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **arguments: Any,
    ) -> None:
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        is_own = encoder is None
        if encoder is None:
            encoder = OwnEncoder(self)
        if options is None:
            usual = {"compression": None, "hashes": None, "size_limit": 1 << 26}
            options = WriterOptions.from_kwargs(**{**usual, **arguments})
        self.encoder = encoder
        self.options = options
        self.format = encoder.format
        self.extra_bytes_per_sample = encoder.sample_bytes
        self.compression, self.hashes = options.compression, list(options.hashes)
        self.size_limit = options.size_limit
        self._limit = min(options.size_limit or encoder.max_bytes, encoder.max_bytes)
        self._sample_limit = options.sample_limit or sys.maxsize
        # A class with a format of its own may not be ready yet to say more about it.
        self._config = b"" if is_own else json.dumps(self.get_config(), sort_keys=True).encode()
        self.new_samples: list[bytes] = []
        self.new_shard_size = encoder.empty_bytes(self._config)

        self._retry = Retry(attempts=max(1, options.retry))
        self._store: Store | None = None
        self._uploads: UploadPool | None = None
        self._bar = _Bar(options.progress_bar)
        self._is_temporary, self.local, self.remote = self._open_out(out)
        workers = options.max_workers or min(os.cpu_count() or 1, _MAX_WORKERS)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="streaming-writer")
        self._room = threading.BoundedSemaphore(workers + 1)  # shards in memory beside the new one
        self._jobs: list[Future[dict[str, Any]]] = []
        self._failure: BaseException | None = None
        self._is_open = True
        # One look-up a sample instead of two calls; and what refuses samples later takes its place.
        overridden = type(self).encode_sample is not Writer.encode_sample
        self._encode = self.encode_sample if overridden else encoder.encode

    def __getattr__(self, name: str) -> NoReturn:
        if name in _GONE:
            raise RemovedError(f"`{type(self).__name__}.{name}` is gone: {_GONE[name]}.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def write(self, sample: Sample) -> None:
        """Add a sample.

        Args:
            sample: Column to value. Columns that were not declared are left out.

        Raises:
            EncodeError: A value does not suit its column, or is not there (ColumnError). The writer
                is as it was.
            ConfigError: The writer is finished.
            StreamingError: An earlier shard could not be compressed, written or uploaded.
        """
        record = self._encode(sample)
        size = self.new_shard_size + len(record) + self.extra_bytes_per_sample
        if size > self._limit or len(self.new_samples) >= self._sample_limit:
            if self.new_samples:
                self.flush_shard()
            size = self.new_shard_size + len(record) + self.extra_bytes_per_sample
            self._check_fits(record)
        self.new_samples.append(record)
        self.new_shard_size = size

    def write_records(self, records: Sequence[bytes]) -> None:
        """Add samples that are encoded already, with the shards that `write` would make of them.

        Raises:
            EncodeError: One is larger than a shard can be. Those before it are written.
            ConfigError, StreamingError: As for `write`.
        """
        if not self._is_open or self._failure is not None:
            self._encode({})  # Raises what is the matter.
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        ends = np.cumsum(sizes + self.extra_bytes_per_sample)
        start = 0
        while start < len(records):
            before = int(ends[start - 1]) if start else 0
            room = self._limit - self.new_shard_size
            stop = int(np.searchsorted(ends, before + room, "right"))
            stop = min(stop, start + self._sample_limit - len(self.new_samples))
            if stop <= start:
                if self.new_samples:
                    self.flush_shard()
                    continue
                self._check_fits(records[start])
                stop = start + 1  # It is larger than the limit, and has a shard of its own.
            self.new_samples += records[start:stop]
            self.new_shard_size += int(ends[stop - 1]) - before
            start = stop

    def _check_fits(self, record: bytes) -> None:
        size = self.encoder.empty_bytes(self._config) + len(record) + self.extra_bytes_per_sample
        if size > self.encoder.max_bytes:
            raise EncodeError(
                f"The sample takes {len(record)} bytes, and a shard of this format holds "
                f"{self.encoder.max_bytes}."
            )

    @property
    def shards(self) -> list[dict[str, Any]]:
        """Index entries of the shards finished up to now, in order; waits for them."""
        return [job.result() for job in self._jobs]

    def encode_sample(self, sample: Sample) -> bytes:
        """The record of a sample; for subclasses to override."""
        return self.encoder.encode(sample)

    def encode_shard(self) -> Mapping[str, bytes]:
        """The files of the shard that the samples in `new_samples` make."""
        return self.encoder.join(self.new_samples, self._config)

    def get_config(self) -> dict[str, Any]:
        """What every shard's entry in the index has in common."""
        return {
            "version": VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
            **self.encoder.settings,
        }

    def flush_shard(self) -> None:
        """End the current shard here; the next sample begins a new one."""
        if self._uploads is not None:
            self._uploads.check()
        self._room.acquire()
        try:
            job = self._threads.submit(
                self._write_shard, len(self._jobs), len(self.new_samples), self.encode_shard()
            )
        except BaseException:
            self._room.release()
            raise
        job.add_done_callback(self._on_done)
        self._jobs.append(job)
        self._reset_cache()

    def finish(self) -> None:
        """Write what is left, wait for everything, and publish the index. A second call is nothing.

        Raises:
            StreamingError: Something could not be compressed, written or uploaded. There is no
                index then.
        """
        if not self._is_open:
            if self._failure is not None:
                raise self._failure
            return
        try:
            if self.new_samples:
                self.flush_shard()
            shards = self.shards
            if self._uploads is not None:
                self._uploads.wait()
            self._publish_index(shards)
        except BaseException as error:
            self._stop(error)
            raise
        self._stop(None)
        if self._store is not None and not self.options.keep_local:
            remove_if_empty(self.local)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        elif self._is_open:
            # What could not be uploaded may be the only copy.
            keep = self._failure is not None or isinstance(error, StoreError)
            self._stop(error)
            logger.warning("No index was written to %s: %r", self.remote or self.local, error)
            if self._is_temporary and keep:
                logger.warning("What was not uploaded stays in %s; remove it.", self.local)
            elif self._is_temporary:
                shutil.rmtree(self.local, ignore_errors=True)

    def _open_out(self, out: Out) -> tuple[bool, Path, str | None]:
        """Look at both places before anything is changed, then make them ready."""
        local, remote = split_out(out)
        exist_ok = self.options.exist_ok
        if local is not None:
            check_local(local, exist_ok)
        opened = open_remote(remote or ".", local, self.options.storage_options)
        if remote is None or opened is None:
            remote = None
        else:
            self._store, self._prefix = opened
            try:
                clear_remote(self._store, self._prefix, remote, exist_ok)
            except BaseException:
                self._store.close()
                raise
            self._uploads = UploadPool(self._store, self._prefix, retry=self._retry)
        if local is None:
            return True, Path(tempfile.mkdtemp(prefix="streaming-")), remote
        clear_local(local)
        return False, local, remote

    def _reset_cache(self) -> None:
        self.new_samples = []
        self.new_shard_size = self.encoder.empty_bytes(self._config)

    def _write_shard(self, number: int, samples: int, parts: Mapping[str, bytes]) -> dict[str, Any]:
        """Compress, hash and write the files of a shard, and have them uploaded."""
        entry = {**self.get_config(), "samples": samples}
        for part, data in parts.items():
            name = f"shard.{number:05}.{self.format}" + (".meta" if part == "meta" else "")
            entry[f"raw_{part}"] = self._describe(name, data)
            entry[f"zip_{part}"] = None
            if self.compression:
                name = f"{name}.{get_compression_extension(self.compression)}"
                data = compress(self.compression, data)
                entry[f"zip_{part}"] = self._describe(name, data)
            path = self.local / name
            write_new_file(path, data)
            if self._uploads is not None:
                self._bar.add()
                self._uploads.submit(path, name, then=partial(self._on_upload, path))
        return entry

    def _describe(self, name: str, data: bytes) -> dict[str, Any]:
        digests = {algo: get_hash(algo, data) for algo in self.hashes}
        return {"basename": name, "bytes": len(data), "hashes": digests}

    def _on_upload(self, path: Path) -> None:
        self._bar.advance()
        if not self.options.keep_local:
            path.unlink()

    def _on_done(self, job: Future[dict[str, Any]]) -> None:
        self._room.release()
        error = None if job.cancelled() else job.exception()
        if error is not None and self._is_open:
            self._failure = self._failure or error
            self._encode = self._fail

    def _fail(self, sample: Sample) -> NoReturn:
        assert self._failure is not None
        raise self._failure

    def _publish_index(self, shards: Sequence[Mapping[str, Any]]) -> None:
        path, document = self.local / get_index_basename(), dump_index(shards)
        stays = self._store is None or self.options.keep_local
        if stays:
            self._check_files(shards)
        if self._store is not None:
            key = join_key(self._prefix, path.name)
            if find(self._store, key) is not None:
                raise StoreError(
                    f"{self.remote} got an index while this dataset was written, so somebody else "
                    "writes to it, too, such as another rank, and its shards may be of both. Give "
                    "each writer its own place, and write again."
                )
            part = part_path(path)
            with translated(f"Can't write {path}"):
                part.write_bytes(document)
            publish(self._store, part, key, retry=self._retry)
            part.unlink()
        if stays:
            write_new_file(path, document)

    def _check_files(self, shards: Sequence[Mapping[str, Any]]) -> None:
        """See whether all that the index will name is still there."""
        files = (
            shard.get(f"zip_{part}") or shard.get(f"raw_{part}")
            for shard in shards
            for part in ("data", "meta")
        )
        for path in (self.local / file["basename"] for file in files if file):
            if not path.is_file():
                raise StoreError(f"{path} was removed while the dataset was written.")

    def _stop(self, failure: BaseException | None) -> None:
        """End all threads; what has not begun is called off."""
        self._is_open = False
        self._failure = failure
        state = "finished" if failure is None else f"stopped by an error ({failure!r})"
        self._encode = partial(_refuse, f"This writer is {state}. Make a new one to write more.")
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._uploads is not None:
            self._uploads.close()  # First, as a thread of ours may wait for room in it.
        self._threads.shutdown()
        if self._store is not None:
            self._store.close()
        self._bar.close()


class JointWriter(Writer):
    """A writer of a format with one file a shard."""

    def encode_shard(self) -> Mapping[str, bytes]:
        return {"data": self.encode_joint_shard()}

    def encode_joint_shard(self) -> bytes:
        """The file of the shard that the samples in `new_samples` make; for overriding."""
        return self.encoder.join(self.new_samples, self._config)["data"]


class SplitWriter(Writer):
    """A writer of a format with two files a shard: data, and where the samples are in it."""

    def encode_shard(self) -> Mapping[str, bytes]:
        data, meta = self.encode_split_shard()
        return {"data": data, "meta": meta}

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Data and meta file of the shard that `new_samples` make; for overriding."""
        files = self.encoder.join(self.new_samples, self._config)
        return files["data"], files["meta"]


class _Bar:
    """Shows how many files of those to upload are there, if asked to."""

    def __init__(self, is_on: bool) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._progress = lazy("rich.progress", "cli").Progress() if is_on else None
        if self._progress is not None:
            self._task = self._progress.add_task("Uploading files", total=0)

    def add(self) -> None:
        """One more to come; the first makes the bar appear."""
        if self._progress is not None:
            with self._lock:
                self._total += 1
                self._progress.start()
                self._progress.update(self._task, total=self._total)

    def advance(self) -> None:
        """One more is there."""
        if self._progress is not None:
            self._progress.advance(self._task)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._progress is not None:
            self._progress.stop()


def _refuse(why: str, sample: Sample) -> NoReturn:
    raise ConfigError(why)
