"""One source of samples, and its weight among others."""

import dataclasses
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.cache import CacheDirectory, CachePart, obtain_index
from streaming.constant import DEFAULT_RETRY, DEFAULT_TIMEOUT
from streaming.errors import (
    AccessDeniedError,
    ConfigError,
    EmptyDatasetError,
    MissingFileError,
    ObjectNotFoundError,
    StoreError,
)
from streaming.format import Index, ShardInfo, check_types, formats
from streaming.format.listing import Place, is_data_file
from streaming.format.tables import VersionLike, parse_version
from streaming.hashing import is_hash
from streaming.overriding import (
    OverriddenSource,
    Overrides,
    StreamSteps,
    index_of,
    is_overridden,
)
from streaming.sampling import Share, Weight, weigh
from streaming.schedule import Schedule
from streaming.shared.pin import Pin
from streaming.shared.plain import (
    PlainData,
    default_directory,
    describe_lack,
    find_version,
    obtain_plain_index,
    remake_plain_index,
)
from streaming.shared.source import has_made_index
from streaming.source import StreamSource
from streaming.storage import open_store
from streaming.storage.stores.local import LocalStore
from streaming.util.checking import (
    check_flag,
    check_names,
    check_number,
    check_options,
    check_text,
    check_whole,
)
from streaming.util.pretty import normalize_bytes
from streaming.util.registries import TypedRegistry, create_registry
from streaming.world import World

__all__ = ["Stream", "make_streams", "streams_registry", "weigh_streams"]

# What a shard is of data without an index, where there is a choice.
_UNITS = ("file", "row_group")
# Decoded files are as large as the data in memory, so that they get no more than a part of a disk.
_MOST_DECODED = 64 << 30

_Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Stream(StreamSteps):
    """A dataset in one place, remote or local, that may be mixed with others.

    What is left unset here is taken from the StreamingDataset that the stream is given to. One
    stream may be given to several datasets.

    Args:
        remote: URL or path of the directory that holds the index. None: all is in `local`. Data of
            some formats needs no index: then this is the folder, a file, a pattern such as
            "s3://bucket/logs/*.jsonl.gz", or a list of files and patterns.
        local: Directory for the files on this node. None: one in the temporary directory that is
            named by `remote`, and found again by the next run. Without `remote`, it is where the
            data are, and files without an index are read where they lie.
        split: Sub-directory of both, such as "train".
        proportion: Share of this stream among all, relative to the others' proportions. A Schedule
            changes it as the run goes on.
        repeat: How often its samples come in an epoch, on average.
        choose: How many samples of it come in an epoch. At most one of these three may be given.
        batch_size: Samples of a rank's batch of this stream, if other than the dataset's; for
            `per_stream` and `device_per_stream` batching.
        download_retry: How often a download is tried in all; 0 counts as 1.
        download_timeout: Seconds after which a download that gives no bytes counts as failed.
        validate_hash: Name of a hash in the index; files are checked against it.
        keep_zip: Keep a compressed file beside what was decompressed from it.
        storage_options: How to reach `remote`, over what the environment says, such as "endpoint"
            or "region"; see `StoreOptions`.
        format: Name of the format, such as "jsonl" or "csv". None: what the index says, or the
            endings of files without one.
        columns: Names of the columns that samples shall have; None for all. For data without an
            index, also a mapping of names to encodings, which are inferred otherwise.
        format_options: More about data without an index, such as ``{"separator": "|"}``; see
            docs/text.md, docs/parquet.md and docs/tables.md.
        allow_schema_mismatch: Unite files of a table whose columns differ: what a file lacks is
            None, and types are widened where one holds all values of the other.
        version: Which version of a table to read: its number, a tag, or a time (the newest that is
            not later). None: the newest when the dataset is made. It stays so for the run, and a
            state goes on with the version that it was saved with.
        follow: Go on with the newest version of the table at the end of each epoch.

    Raises:
        ConfigError: An argument can't be meant as it is.
    """

    def __init__(
        self,
        *,
        remote: str | Sequence[str] | None = None,
        local: str | Sequence[str] | None = None,
        split: str | None = None,
        proportion: float | Schedule | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        batch_size: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        format: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        format_options: Mapping[str, Any] | None = None,
        allow_schema_mismatch: bool = False,
        version: VersionLike | None = None,
        follow: bool = False,
    ) -> None:
        if remote is None and local is None:
            raise ConfigError("A stream needs `remote`, `local` or both; neither was given.")
        parse_version(version)
        if check_flag("follow", follow) and version is not None:
            raise ConfigError(
                f"`follow` takes the newest version of a table, and `version` is {version!r}: give "
                "one of them."
            )
        self.remote = _as_text(remote, "remote")
        self.storage_options = check_options("storage_options", storage_options)
        if not is_overridden(self, "_download_file"):
            # An unknown scheme or option should be news now, not in a worker.
            open_store(self.remote or ".", self.storage_options)[0].close()
        _check_download(download_retry, download_timeout, validate_hash, keep_zip)
        self.split = "" if split is None else check_text("split", split, "a path")
        self.local = _as_text(local, "local") or default_directory(_name(remote))
        self.validate_hash = validate_hash
        self._opened_directory: Path | None = None
        self._opened_version: int | None = None
        self._opened_pin: Pin | None = None
        self.format, self.format_options = format, check_options("format_options", format_options)
        if check_flag("allow_schema_mismatch", allow_schema_mismatch):
            self.format_options["allow_schema_mismatch"] = True
        self.columns = columns
        if columns is not None:
            check_names("columns", columns)
        self._unit: str | None = None
        self._is_in_place = False
        self.version, self.follow = version, follow
        self._files: _Files = remote or local or ""
        self._plain_root: str | None = None  # of files without an index
        self._plain: PlainData | None = None  # what was said of them, and which version they are
        # What the user gave, apart from what a dataset derives: the stream may serve a second one.
        self._weight = Weight(
            proportion=proportion, repeat=repeat, choose=choose, batch_size=batch_size
        )
        for name, value in (
            ("proportion", proportion),
            ("repeat", repeat),
            ("choose", choose),
            ("download_retry", download_retry),
            ("download_timeout", download_timeout),
            ("keep_zip", keep_zip),
        ):
            if value is not None:
                setattr(self, name, value)

    proportion: float | Schedule
    repeat: float
    choose: int
    download_retry: int
    download_timeout: float
    keep_zip: bool

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Fill in what was left unset.

        Args:
            default: Values for `download_retry`, `download_timeout`, `validate_hash`, `keep_zip`,
                and `cache`, which may say what a shard is of data without an index.

        Raises:
            ConfigError: One of them can't be meant as it is.
        """
        names = ("download_retry", "download_timeout", "validate_hash", "keep_zip")
        _check_download(*map(default.get, names))
        fallback = {"download_retry": DEFAULT_RETRY, "download_timeout": DEFAULT_TIMEOUT}
        for name in ("download_retry", "download_timeout", "keep_zip"):
            if not hasattr(self, name):
                setattr(self, name, default.get(name, fallback.get(name, False)))
        self._unit = default.get("cache") if default.get("cache") in _UNITS else None
        self.validate_hash = self.validate_hash or default.get("validate_hash") or None

    @property
    def safe_keep_zip(self) -> bool:
        """Whether compressed files stay: by wish, or because nobody could bring them back."""
        return self.keep_zip or self._is_here

    @property
    def directory(self) -> Path:
        """Where the index and the shards are on this node."""
        return Path(self.local, self.split)

    @property
    def opened_directory(self) -> Path:
        """Where they are indeed: in a folder of `directory` if that has another stream's files."""
        return self._opened_directory or self.directory

    @property
    def opened_version(self) -> int | None:
        """Of a table, the version whose index was obtained last; None if it is none."""
        return self._opened_version

    def source(self) -> "StreamSource | OverriddenSource | None":
        """Where missing files come from; None if there is nowhere."""
        source = self.plain_source()
        if source is not None and is_overridden(self, "_download_file"):
            return OverriddenSource(self)
        return source

    def plain_source(self) -> "StreamSource | None":
        """The same, whatever a subclass does to fetch them."""
        if self._is_here or self._is_in_place:
            return None
        options = {"timeout": self.download_timeout, **self.storage_options}
        return StreamSource(self._plain_root or self._root, self.download_retry, options)

    @property
    def weight(self) -> Weight:
        """What the user asked for, whatever datasets have derived from it since."""
        return self._weight

    @cached_property
    def _is_here(self) -> bool:
        """Whether `local` is all there is: there is no remote, or it is the same directory.

        However it is spelled: files "fetched" from where they lie would count as ours to remove.
        """
        if self.remote is None or self.remote == self.local:
            return True
        if is_overridden(self, "_download_file"):
            return False  # Only the subclass knows what its remote means.
        store, prefix = open_store(self._root, self.storage_options)
        with closing(store):
            if not isinstance(store, LocalStore):
                return False
            return (store.root / prefix).resolve() == self.directory.resolve()

    @property
    def _root(self) -> str:
        """Where it all is, in words of `remote` or else of `local`."""
        parts = (self.remote or self.local, self.split)
        return "/".join(part.rstrip("/") for part in parts if part)

    @property
    def identity(self) -> tuple[str, str]:
        """What no two streams of a dataset may have in common."""
        is_list = self.remote is None and not isinstance(self._files, str | os.PathLike)
        return os.path.realpath(self.directory), _name(self._files) if is_list else ""

    def obtain_index(self, version: int | None = None) -> tuple[Index, CacheDirectory]:
        """The index, fetched or made first if need be, and where the shards are.

        See `streaming.cache.obtain_index`, and `obtain_plain_index` for data without an index.

        Args:
            version: Of a table, whatever the stream was told; None: as it was.
        """
        self._plain_root, self._is_in_place, self._opened_version = None, False, None
        self._opened_pin = None
        self._plain = None
        found = self._find_index(self._place(), version)
        self._opened_directory = found[1].path
        return found

    def _find_index(self, place: Place, version: int | None) -> tuple[Index, CacheDirectory]:
        """The same, wherever it is looked for first."""
        is_table = self.version is not None or version is not None or self.follow
        is_table |= self.format is not None and formats.get(self.format).table is not None
        if is_table:
            found = self._obtain_plain_index(place, version)
            if found is not None:
                return found
        # What looks like files is looked for first; who may not list a bucket is told "denied" for
        # an index that is not there.
        if place.names or is_data_file(place.root) or has_made_index(self.directory):
            found, failure = self._try_plain_index(place, version)
            return self._obtain_index_of(failure) if found is None else found
        try:
            return obtain_index(self.directory, self.source())
        except (MissingFileError, ObjectNotFoundError, AccessDeniedError) as missing:
            found, failure = self._try_plain_index(place, version)
            if found is None:
                raise self._explain(missing, failure) from missing.__cause__
            return found

    def _obtain_index_of(self, failure: StoreError | None) -> tuple[Index, CacheDirectory]:
        """The index where files were looked for in vain; what failed then, if there is none."""
        try:
            return obtain_index(self.directory, self.source())
        except (MissingFileError, StoreError) as missing:
            if failure is not None:
                raise failure from missing
            raise self._explain(missing, failure) from missing.__cause__

    def _explain(
        self, missing: MissingFileError | StoreError, failure: StoreError | None
    ) -> MissingFileError | StoreError:
        """The error that an index is missing, with why files can't be read without, if known."""
        kinds = MissingFileError | ObjectNotFoundError | AccessDeniedError
        can_tell = failure is None and not is_overridden(self, "_download_file")
        if not can_tell or not isinstance(missing, kinds):
            return missing
        about = describe_lack(self._plain_data(self._place(), None))
        if not about:
            return missing
        error = type(missing)(f"{missing} {about}")
        error.errno = missing.errno
        return error

    def _try_plain_index(
        self, place: Place, version: int | None
    ) -> tuple[tuple[Index, CacheDirectory] | None, StoreError | None]:
        """The index of data that has none, or what failed; neither if there is nothing to read."""
        try:
            return self._obtain_plain_index(place, version), None
        except StoreError as error:
            return None, error

    def _place(self) -> Place:
        """Where files without an index are."""
        if isinstance(self._files, str | os.PathLike):
            return Place.parse(self._root)
        if self.split:
            raise ConfigError(f"`split` is {self.split!r}, but a list of files has no directory.")
        return Place.parse(self._files)

    def _obtain_plain_index(
        self, place: Place, version: int | None
    ) -> tuple[Index, CacheDirectory] | None:
        """The same for data without an index; None if there is nothing to read."""
        if is_overridden(self, "_download_file"):
            return None  # What there is can't be listed.
        data = self._plain_data(place, version)
        found = obtain_plain_index(data)
        if found is None:
            return None
        self._plain = dataclasses.replace(data, version=found.version)
        self._plain_root, self._is_in_place = found.root, found.is_in_place
        self._opened_version, self._opened_pin = found.version, found.pin
        return found.index, found.directory

    def _plain_data(self, place: Place, version: int | None) -> PlainData:
        """What the user said of data without an index."""
        is_here = self.plain_source() is None
        columns = self.columns if isinstance(self.columns, Mapping) else None
        names = None if self.columns is None or columns is not None else tuple(self.columns)
        return PlainData(
            place=place,
            local=None if is_here else self.directory,
            format=self.format,
            columns=columns,
            names=names,
            unit=self._unit,
            options=self.format_options,
            storage_options={} if is_here else self.storage_options,
            retry=self.download_retry,
            version=self.version if version is None else version,
        )

    def newest_version(self) -> int | None:
        """The newest version of the table there is now; None if this is no table.

        Raises:
            StoreError: It can't be looked up.
        """
        return find_version(
            dataclasses.replace(self._plain_data(self._place(), None), version=None)
        )

    def open(
        self,
        *,
        allow_unsafe_types: bool = False,
        world: World | None = None,
        version: int | None = None,
    ) -> CachePart:
        """Read the index, which is fetched first if need be; defaults must have been applied.

        Args:
            allow_unsafe_types: Accept columns whose decoding runs code that the data holds.
            world: What a subclass's `get_shards` is told; None: as the environment or torch says.
            version: Of a table, whatever the stream was told; None: as it was.

        Raises:
            UnsafeTypeError: There is such a column, and it was not allowed.
            EmptyDatasetError: The index lists no samples.
            IndexFormatError, CacheError, StoreError: There is no good index to be had.
        """
        if is_overridden(self, "get_shards"):
            shards = self.get_shards(world or World.detect(), allow_unsafe_types)
            index, directory = index_of(shards, self)
        else:
            index, directory = self.obtain_index(version)
        if self.follow and self._opened_version is None:
            raise ConfigError(
                f"`follow` goes on with new versions of a table, but there is none at {self._root}."
            )
        source = self.source()
        if not index.samples:
            raise EmptyDatasetError(self._describe_empty(index))
        columns = None if self.columns is None else tuple(self.columns)
        for info in index.examples():
            self.check_format(info)
        index.check(lambda info: check_types(info, allow_unsafe_types, columns))
        limit = self._decoded_limit(index, directory)
        # What was decoded is much larger than what it was made from, and goes first.
        keep_zip, steps = self.safe_keep_zip or limit is not None, Overrides.of(self)
        plain, check, table_version = self._plain, self.validate_hash, self._opened_version
        remake = None if plain is None else partial(remake_plain_index, plain, directory)
        # It lives as long as the part: a stream may outlive its datasets.
        pin, self._opened_pin = self._opened_pin, None
        return CachePart(
            directory,
            index,
            source,
            keep_zip,
            check,
            steps,
            columns,
            limit,
            table_version,
            pin,
            remake,
        )

    def _describe_empty(self, index: Index) -> str:
        """That there are no samples, by the place that the user knows."""
        if self._plain_root is None:
            return (
                f"The dataset in {self._root} holds no samples: its index lists {len(index)} "
                "shards, all empty."
            )
        said = f" with format_options={self.format_options}" if self.format_options else ""
        return (
            f"What is read at {self._place()}{said} holds no samples: there are no records in it."
        )

    def _decoded_limit(self, index: Index, directory: CacheDirectory) -> int | None:
        """Bytes that decoded files may take; None if there are none, whose size is as indexed."""
        if all(formats.get(info.format).decode is None for info in index.examples()):
            return None
        told = self.format_options.get("decoded_limit")
        if told is not None:
            try:
                return normalize_bytes(told)
            except ConfigError as error:
                raise ConfigError(f"`decoded_limit` of `format_options`: {error}") from error
        free = shutil.disk_usage(directory.path).free
        return max(min(_MOST_DECODED, free // 4), 0)

    def check_format(self, info: ShardInfo) -> None:
        """See that what the user said of data without an index is said of such.

        Raises:
            ConfigError: The data have an index, which says otherwise.
        """
        is_made = self._plain_root is not None
        if self.format is not None and not is_made and not _are_alike(self.format, info.format):
            raise ConfigError(
                f"`format` is {self.format!r}, but by its index, {self._root} holds {info.format}."
            )
        if (self.format_options or isinstance(self.columns, Mapping)) and not is_made:
            raise ConfigError(
                f"`format_options` and the encodings of `columns` are for data without an index, "
                f"but {self._root} has one, which says how it is to be read. Leave them out; "
                f"`columns` may be a list of names."
            )

    @classmethod
    def apply_weights(
        cls,
        streams: Sequence["Stream"],
        samples_per_stream: NDArray[np.int64],
        choose_per_epoch: int | None,
        seed: int,
    ) -> int:
        """Derive `proportion`, `repeat` and `choose` of all streams.

        Args:
            streams: All streams of a dataset.
            samples_per_stream: Samples in each.
            choose_per_epoch: Samples of an epoch; None: what the weights make.
            seed: Decides who gets the samples that are left over by rounding.

        Returns:
            Samples of an epoch.

        Raises:
            ConfigError: The weights contradict each other.
        """
        return weigh_streams(streams, samples_per_stream, choose_per_epoch, seed)[1]


def make_streams(
    streams: Sequence[Stream] | None, name: str, arguments: Mapping[str, Any]
) -> list[Stream]:
    """The streams that a dataset was given, or the one that it was told how to make.

    Args:
        streams: Streams; None to make one.
        name: Registered name of its class.
        arguments: Arguments of its class, among them "remote" and "local".

    Raises:
        ConfigError: Both or neither were given, or two streams would share a directory.
        UnknownNameError: There is no such class.
    """
    if streams is None:
        return [streams_registry.get(name)(**arguments)]
    if arguments.get("remote") is not None or arguments.get("local") is not None:
        raise ConfigError("Give either `streams`, or `remote` and `local` for one stream.")
    given: object = streams
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"`streams` must be a list of Stream objects, but is {given!r}.")
    if not streams:
        raise ConfigError("`streams` is empty; at least one stream is needed.")
    for i, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise ConfigError(
                f"`streams` must be a list of Stream objects, but [{i}] is {stream!r}."
            )
    seen: dict[tuple[str, str], int] = {}
    for i, stream in enumerate(streams):
        if stream.identity in seen:
            raise ConfigError(
                f"Streams {seen[stream.identity]} and {i} have the same directory "
                f"{stream.identity[0]}. Give each a `local` of its own; to draw one more often, "
                f"give it a weight."
            )
        seen[stream.identity] = i
    return list(streams)


def weigh_streams(
    streams: Sequence[Stream],
    samples_per_stream: NDArray[np.int64],
    epoch_size: int | None,
    seed: int,
) -> tuple[list[Share], int]:
    """Derive the streams' shares of an epoch, and note them on the streams, where users read them.

    Arguments, errors and what is returned are those of `weigh`.
    """
    weights = [stream.weight for stream in streams]
    shares, size = weigh(weights, samples_per_stream, epoch_size, seed)
    for stream, share in zip(streams, shares, strict=True):
        stream.proportion, stream.repeat = share.proportion, share.repeat
        stream.choose = share.choose
    return shares, size


def _check_download(
    attempts: int | None, timeout: float | None, validate_hash: str | None, keep_zip: bool | None
) -> None:
    if attempts is not None:
        check_whole("download_retry", attempts, 0)
    if timeout is not None:
        check_number("download_timeout", timeout, above=0)
    if validate_hash is not None and not (
        isinstance(validate_hash, str) and is_hash(validate_hash)
    ):
        raise ConfigError(f"`validate_hash` is {validate_hash!r}, which is no known hash.")
    if keep_zip is not None:
        check_flag("keep_zip", keep_zip)


def _as_text(files: _Files | None, name: str) -> str | None:
    """A path or URL as text; of several files, the directory that they have in common.

    Raises:
        ConfigError: It isn't one.
    """
    if files is None:
        return None
    is_one = isinstance(files, str | os.PathLike)
    parts = [files] if is_one else list(files) if isinstance(files, Sequence) else []
    texts = [os.fspath(part) for part in parts if isinstance(part, str | os.PathLike)]
    if len(texts) != len(parts) or not all(
        isinstance(text, str) and text.strip() and "\0" not in text for text in texts or [""]
    ):
        raise ConfigError(
            f"`{name}` must be a path or a URL, or a list of them, but is {files!r}. For the "
            f"current directory, say '.'."
        )
    # Writers know "~" as well; and nobody wants a directory of that name.
    return os.path.expanduser(texts[0]) if is_one else Place.parse(files).root


def _name(files: _Files | None) -> str:
    """What tells one place from another."""
    if files is None or isinstance(files, str | os.PathLike):
        return "" if files is None else os.fspath(files)
    return " ".join(os.fspath(file) for file in files)


def _are_alike(one: str, other: str) -> bool:
    """Whether two names mean one format."""
    return formats.get(one).reader is formats.get(other).reader


streams_registry: TypedRegistry[type[Stream]] = create_registry(
    "streaming",
    "streams_registry",
    generic_type=type[Stream],
    entry_points=True,
    description="Classes of streams, for `stream_name` of StreamingDataset.",
)
streams_registry.register("stream", func=Stream)
