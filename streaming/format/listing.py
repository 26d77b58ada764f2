"""Which files a place without an index means: a folder, a file, a pattern, a list of them."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming.errors import (
    AccessDeniedError,
    ConfigError,
    DataError,
    ObjectNotFoundError,
    StoreError,
)
from streaming.format.index import get_index_basename, has_bad_name
from streaming.format.registry import formats
from streaming.storage import Store, join_key, open_store
from streaming.storage.store import find

__all__ = ["DataFile", "Listing", "Place", "choose_format", "is_data_file", "list_files"]

# Endings of compressed files; the codecs are those of `streaming.compression`.
CODECS = {".gz": "gz", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}

_MAGIC = re.compile(r"[*?\[]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")
# Shards that writers of this library and of the predecessor make; see `_check_shards`.
_SHARD = re.compile(r"(?:.*/)?shard\.\d{5,}\.\w+")


@dataclass(frozen=True, slots=True)
class Place:
    """A place as users write it, without a look at it.

    Attributes:
        root: URL or path of a directory, or of one file if `names` is empty.
        names: Names and patterns below `root`; empty: all there is.
    """

    root: str
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, place: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> "Place":
        """Take a URL or a path, with or without ``*``, ``**``, ``?`` and ``[...]``, or several.

        A local path that exists is taken as it is, whatever characters it has.

        Raises:
            ConfigError: There are none, or they have no directory in common.
        """
        if isinstance(place, (str, os.PathLike)):
            root, name = _split_magic(os.path.expanduser(place))
            return cls(root, (name,) if name else ())
        paths = [os.path.expanduser(item) for item in place]
        if not paths:
            raise ConfigError("A list of files must name one at least, but is empty.")
        split = [
            (root, name) if name else _split_last(root) for root, name in map(_split_magic, paths)
        ]
        roots = _tidy([root for root, _ in split])
        root = _common(roots)
        names = [
            "/".join(filter(None, (_below(root, there), name)))
            for there, (_, name) in zip(roots, split, strict=True)
        ]
        return cls(root, tuple(names))

    def __str__(self) -> str:
        return self.root if not self.names else f"{self.root.rstrip('/')}/{' '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of data.

    Attributes:
        key: Where it lies below the root of the listing.
        size: Bytes.
        etag: Mark of its version, if the store has any.
    """

    key: str
    size: int
    etag: str | None = None

    @property
    def codec(self) -> str | None:
        """What it is compressed with, by its name."""
        return CODECS.get(os.path.splitext(self.key)[1].lower())

    @property
    def raw_key(self) -> str:
        """Its name when it is not compressed any more."""
        return os.path.splitext(self.key)[0] if self.codec else self.key

    @property
    def ending(self) -> str:
        """What follows the last dot of that, in lower case, with the dot."""
        return os.path.splitext(self.raw_key)[1].lower()


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies at a place.

    Attributes:
        root: URL or path of the directory that keys are relative to.
        files: In the order of their samples.
        is_exact: Whether each was named or matched a pattern, rather than found in a folder.
        has_index: Whether the folder, or one in it, has an index.
    """

    root: str
    files: tuple[DataFile, ...]
    is_exact: bool
    has_index: bool = False


def list_files(place: Place, options: Mapping[str, Any] | None = None) -> Listing:
    """Look what is there, in the order of the names given, and of the keys among those found.

    Files and folders whose names begin with "." or "_" are left out, but for those named.

    Args:
        place: Where to look.
        options: How to reach it; see `StoreOptions`.

    Raises:
        ObjectNotFoundError: Something that was named is not there.
        StoreError: The store failed.
        DataError: A key can't be a file name.
        ConfigError: What was named is an index.
    """
    if not place.names:
        listing = _list_place(place.root, options)
    else:
        store, prefix = open_store(place.root, options)
        try:
            found = [file for name in place.names for file in _find(store, prefix, name, place)]
        finally:
            store.close()
        listing = Listing(place.root, tuple(dict.fromkeys(found)), is_exact=True)
    for file in listing.files:
        _check_name(file, listing.root)
    return listing


def is_data_file(name: str) -> bool:
    """Whether something is called like a file that is read without an index."""
    ending = DataFile(name, 0).ending
    return any(ending in formats.get(format).endings for format in formats)


def choose_format(listing: Listing, format: str | None) -> tuple[str, tuple[DataFile, ...]] | None:
    """Choose the files that shall be read, and their format.

    Args:
        listing: What there is.
        format: Name of the format; None: what the endings of the files say.

    Returns:
        None if there is nothing that could be read.

    Raises:
        ConfigError: There are files of several formats, or one file twice, raw and compressed.
        UnknownNameError: There is no such format.
        DataError: The files are shards of a dataset whose index is missing.
    """
    if format is None:
        names = {
            ending: name for name in reversed(list(formats)) for ending in formats.get(name).endings
        }
        counts = Counter(names[file.ending] for file in listing.files if file.ending in names)
        if not counts:
            return None
        if len(counts) > 1:
            found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            raise ConfigError(
                f"{listing.root} has files of several formats ({found}). Say which shall be read, "
                f'as in format="{min(counts)}", or give a pattern such as "*.{min(counts)}".'
            )
        (format,) = counts
        endings: Iterable[str] = [ending for ending, name in names.items() if name == format]
        _check_shards(listing)
    else:
        about = formats.get(format)
        endings = () if listing.is_exact else (*about.endings, *about.more_endings)
    files = tuple(file for file in listing.files if not endings or file.ending in endings)
    twice = [key for key, count in Counter(file.raw_key for file in files).items() if count > 1]
    if twice:
        raise ConfigError(
            f"{listing.root} has {twice[0]} more than once, raw or compressed. Name the files that "
            "shall be read by a pattern or a list."
        )
    return (format, files) if files else None


def _list_place(root: str, options: Mapping[str, Any] | None) -> Listing:
    """The file of this name; if there is none, what is in the folder."""
    parent, name = _split_last(root)
    missing: StoreError | None = None
    if name:
        store, prefix = open_store(parent, options)
        try:
            info = store.stat(join_key(prefix, name))
            if name == get_index_basename():
                raise ConfigError(
                    f"{root} is the index of a dataset. Name the directory that it is in: {parent}."
                )
            return Listing(parent, (DataFile(name, info.size, info.etag),), is_exact=True)
        except (ObjectNotFoundError, AccessDeniedError) as error:  # See `find`.
            missing = error
        finally:
            store.close()
    store, prefix = open_store(root, options)
    try:
        found = _list_below(store, prefix)
    except StoreError as error:  # As over HTTP, where nothing can be listed.
        raise missing or error from error
    finally:
        store.close()
        del missing  # It has this frame, and those of all who called: a cycle if it stayed here.
    index = get_index_basename()
    files = tuple(file for file in found if file.key.rpartition("/")[2] != index)
    return Listing(root, files, is_exact=False, has_index=len(files) < len(found))


def _list_below(store: Store, folder: str) -> list[DataFile]:
    """All files in a folder that are not hidden, by their keys below it."""
    head = f"{folder}/" if folder else ""
    return [
        DataFile(info.key[len(head) :], info.size, info.etag)
        for info in store.list(head)
        if not any(part[:1] in ("", ".", "_") for part in info.key[len(head) :].split("/"))
    ]


def _find(store: Store, prefix: str, name: str, place: Place) -> Iterator[DataFile]:
    """The files of one name or pattern."""
    head, pattern = _split_magic_key(name)
    folder = join_key(prefix, head) if head else prefix
    if not pattern and folder:
        info = find(store, folder)
        if info is not None:
            yield DataFile(name, info.size, info.etag)
            return
    found = _list_below(store, folder)
    matches = _compile(pattern).fullmatch if pattern else None
    found = [file for file in found if matches is None or matches(file.key)]
    if not found:
        raise ObjectNotFoundError(f"There is nothing at {place.root.rstrip('/')}/{name}.")
    for file in found:
        yield DataFile(join_key(head, file.key), file.size, file.etag)


def _check_name(file: DataFile, root: str) -> None:
    try:
        file.key.encode()
        is_bad = has_bad_name([file.key, file.raw_key])
    except UnicodeEncodeError:
        is_bad = True
    if is_bad:
        raise DataError(f"{file.key!r} in {root} can't be the name of a file of a dataset.")


def _check_shards(listing: Listing) -> None:
    """What a writer that was stopped has left is no dataset, although each file could be read."""
    keys = {file.key for file in listing.files}
    for file in listing.files:
        if _SHARD.fullmatch(file.raw_key) and {f"{file.key}.meta", f"{file.raw_key}.meta"} & keys:
            raise DataError(
                f"{file.key} in {listing.root} is a shard of a dataset that has no index: whoever "
                "wrote it was probably stopped. Write it again; or say `format`, to have it read "
                "as what it is."
            )


def _split_magic(path: str) -> tuple[str, str]:
    """A path or URL as the directory before its first pattern, and the rest."""
    scheme = _SCHEME.match(path)
    start = scheme.end() if scheme else 0
    is_web = path[:4].lower() == "http"  # There "?" begins a query, and nothing can be listed.
    if is_web or not _MAGIC.search(path, start) or (not scheme and Path(path).exists()):
        return path, ""
    head, pattern = _split_magic_key(path[start:])
    return (path[:start] + head) or ".", pattern


def _split_magic_key(key: str) -> tuple[str, str]:
    found = _MAGIC.search(key)
    if found is None:
        return key, ""
    cut = key.rfind("/", 0, found.start())
    return (key[:cut] or "/", key[cut + 1 :]) if cut >= 0 else ("", key)


def _split_last(path: str) -> tuple[str, str]:
    """The directory of a path or URL, and its last part; that is "" if it has only one."""
    scheme = _SCHEME.match(path)
    start = scheme.end() if scheme else 0
    head, slash, name = path[start:].rstrip("/").rpartition("/")
    # A bucket or host has no directory; "." and ".." are no names of files in one.
    if (scheme and not slash) or name in (".", ".."):
        return path, ""
    root = path[: start + len(head)]
    return root or ("/" if path.startswith("/") else "."), name


def _tidy(roots: Sequence[str]) -> list[str]:
    """Directories spelled so that what lies in another one begins with it; URLs as they are."""
    local = [root for root in roots if not _SCHEME.match(root)]
    if any(".." in root.split("/") for root in local):  # It may lead out of a link.
        return [root if _SCHEME.match(root) else os.path.realpath(root) for root in roots]
    return [
        root if _SCHEME.match(root) else re.sub("^//", "/", os.path.normpath(root))
        for root in roots
    ]


def _below(root: str, path: str) -> str:
    """A directory as it is called from one that it lies in, or "" if it is that one."""
    if root == ".":
        return "" if path == "." else path
    return path[len(root) :].strip("/")


def _common(roots: Sequence[str]) -> str:
    """The directory that all of these lie in."""
    shared: list[str] = []
    for parts in zip(*(root.rstrip("/").split("/") for root in roots), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    scheme = next(filter(None, map(_SCHEME.match, roots)), None)
    # With a scheme, the parts up to the bucket or host must be the same.
    if len(shared) < (scheme[0].count("/") + 1 if scheme else 0):
        raise ConfigError(f"Files of one stream must lie in one store, but there are {roots}.")
    if not shared and len({root.startswith("/") for root in roots}) > 1:
        raise ConfigError(f"Give paths that are all absolute or all relative, but not {roots}.")
    return "/".join(shared) or ("/" if roots[0].startswith("/") else ".")


def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression: only ``**`` goes over slashes."""
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end].replace("\\", r"\\")
            out += f"[{'^' + inner[1:] if inner[0] in '!^' else inner}]"
            at = end + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    try:
        return re.compile(out, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no pattern: {error}.") from error
