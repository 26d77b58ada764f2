"""Every scheme that fsspec knows and obstore does not: hf, sftp, oci, what users register."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from streaming.errors import ConfigError, MissingExtraError, ObjectNotFoundError, StoreError
from streaming.storage.guard import FetchHelper, kept
from streaming.storage.options import OWN, SETTINGS, StoreOptions
from streaming.storage.store import (
    Buffer,
    ObjectInfo,
    check_key,
    check_prefix,
    join_key,
    part_path,
    translated,
    write_pieces,
)
from streaming.storage.stores.failures import from_any
from streaming.util.checking import nearest, parameters
from streaming.util.importing import lazy

__all__ = ["FsspecStore", "knows_scheme", "open_filesystem_url"]

# Bytes that are asked for at a time; each is a request with most of these services.
PIECE = 8 << 20

# What each scheme needs, and the extra that brings it.
_EXTRAS = {"hf": ("huggingface_hub", "hf"), "sftp": ("paramiko", "sftp"), "oci": ("ocifs", "oci")}

# Where a file grows under its name while it is written; elsewhere an object appears whole.
_FILE_LIKE = {"sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "arrow_hdfs", "dir", "local"}

# Where an `info` may say which version of an object it is about.
_MARKS = ("ETag", "etag", "e_tag", "blob_id", "md5", "mtime", "LastModified", "last_modified")


class FsspecStore:
    """Objects below a directory of a file system of fsspec.

    Plain data, as `ObjectStore` is: file systems are made by the process that uses them, one for
    each thread that is at work, and kept there.

    Args:
        protocol: Name of the file system.
        settings: Arguments to make it with.
        root: The directory, as the file system wants it.
        url: The same as a URL without secrets, for messages.
        timeout: Seconds without a byte after which a request counts as failed, where the file
            system has a place for it.
    """

    def __init__(
        self, protocol: str, settings: Mapping[str, Any], root: str, url: str, timeout: float
    ) -> None:
        self.protocol = protocol
        self.root = root
        self._settings = dict(settings)
        self._known_as = repr(sorted(settings.items()))
        self._place = url
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"FsspecStore({self._place!r})"

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of an object; fewer if it ends before `stop`."""
        _, pieces = self.stream(key, start, stop)
        return b"".join(pieces)

    def get_file(self, key: str, path: Path) -> None:
        """Copy an object to `path`, which does not exist yet; on error part of it may."""
        write_pieces(self.stream(key)[1], path)

    def stream(
        self, key: str, start: int = 0, stop: int | None = None
    ) -> tuple[ObjectInfo, Iterator[Buffer]]:
        """Ask for the bytes [start, stop) of an object."""
        info = self.stat(key)
        stop = info.size if stop is None else min(stop, info.size)
        return info, self._pieces(key, start, stop, info.size)

    def helper(self) -> FetchHelper | None:
        """Nobody: what this process makes for itself is of no harm to those forked from it."""
        return None

    def put_file(self, path: Path, key: str) -> None:
        """Copy a file to an object, visible whole or not at all."""
        check_key(key)
        with translated(f"Can't read {path}"):
            path.stat()
        target = self._path(key)
        with self._using("write", key) as files:
            if self.protocol not in _FILE_LIKE:
                files.put_file(str(path), target)
                return
            parent, part = target.rpartition("/")[0], str(part_path(Path(target)))
            _make_directory(files, parent)
            try:
                files.put_file(str(path), part)
                files.mv(part, target)
            except BaseException:
                with suppress(Exception):
                    files.rm_file(part)
                raise

    def stat(self, key: str) -> ObjectInfo:
        """Size and version mark of an object."""
        check_key(key)
        with self._using("look at", key) as files:
            files.invalidate_cache()
            info = files.info(self._path(key))
        if info["type"] != "file":
            raise ObjectNotFoundError(f"Can't look at {self._url(key)}: it is a directory.")
        return _describe(key, info)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in the order of their keys."""
        directory = check_prefix(prefix).rpartition("/")[0]
        with self._using("list", directory) as files:
            files.invalidate_cache()
            try:
                if self.protocol == "oci":
                    found = _find_oci(files, self.root, self._path(directory))
                else:
                    found = files.find(self._path(directory), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                found = {}
        cut = len(self.root.rstrip("/")) + 1 if self.root else 0
        keys = ((path.rstrip("/")[cut:], info) for path, info in found.items())
        described = [_describe(key, info) for key, info in keys if key.startswith(prefix)]
        return iter(sorted(described, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        check_key(key)
        with self._using("delete", key) as files:
            if files.isfile(self._path(key)):
                # ocifs has no `rm_file`, and `rm` of others may take "*" and "[" for patterns.
                (files.rm if self.protocol == "oci" else files.rm_file)(self._path(key))

    def close(self) -> None:
        """Nothing: connections are the process's, which keeps them for the next store like this."""

    def _pieces(self, key: str, start: int, stop: int, size: int) -> Iterator[Buffer]:
        if start >= stop:
            return
        with (
            self._using("read", key) as files,
            files.open(
                self._path(key), "rb", block_size=min(PIECE, size), cache_type="none"
            ) as file,
        ):
            file.seek(start)
            prefetch = getattr(file, "prefetch", None)
            if prefetch is not None and stop - start > PIECE:
                prefetch(stop)  # SFTP: ask for all at once, not for 32 KiB after 32 KiB.
            while start < stop:
                piece = file.read(min(PIECE, stop - start))
                if not piece:
                    return
                start += len(piece)
                yield piece

    def _path(self, key: str) -> str:
        if not key:
            return self.root
        return join_key(self.root.rstrip("/"), key) if self.root else key

    def _url(self, key: str) -> str:
        return join_key(self._place, key) if key else self._place

    @contextmanager
    def _using(self, verb: str, key: str) -> Iterator[Any]:
        """A file system for one thread, and its errors in our words."""
        pool = kept((self.protocol, self._known_as), lambda: _Pool(self._make))
        try:
            with pool.borrow() as files:
                yield files
        except (StoreError, GeneratorExit):
            raise
        except Exception as error:
            raise from_any(error, f"Can't {verb} {self._url(key)}") from error

    def _make(self) -> Any:
        settings = dict(self._settings)
        if self.protocol == "sftp":
            return _make_sftp(settings, self._timeout)
        kind = _fsspec().get_filesystem_class(self.protocol)
        if self.protocol == "oci":
            settings["config_kwargs"] = _oci_client_settings(settings, self._timeout)
        return kind(skip_instance_cache=True, **settings)


class _Pool:
    """File systems of one kind that nobody uses at the moment."""

    MOST = 16

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = Lock()
        self._idle: list[Any] = []

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """One of them, or a new one. Where something went wrong, it is not used again."""
        with self._lock:
            files = self._idle.pop() if self._idle else None
        if files is None:
            files = self._make()
        try:
            yield files
        except FileNotFoundError:
            self._give_back(files)
            raise
        except GeneratorExit:  # Somebody had enough of a stream: nothing is wrong.
            self._give_back(files)
            raise
        except BaseException:
            _close(files)
            raise
        self._give_back(files)

    def close(self) -> None:
        """Close those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for files in idle:
            _close(files)

    def _give_back(self, files: Any) -> None:
        with self._lock:
            if len(self._idle) < self.MOST:
                self._idle.append(files)
                return
        _close(files)


def _make_directory(files: Any, path: str) -> None:
    """Make a directory and those above it, as others may be doing at the same time."""
    for attempts_left in reversed(range(path.count("/") + 1)):
        try:
            files.makedirs(path, exist_ok=True)
        except OSError:  # Somebody was faster with one of them.
            if not attempts_left and not files.isdir(path):
                raise
        else:
            return


def _close(files: Any) -> None:
    """Close the connection of a file system, if it has one; fsspec has no way of its own."""
    close = getattr(getattr(files, "client", None), "close", None)
    if close is not None:
        with suppress(Exception):  # It may be broken, which is why it goes.
            close()


def _make_sftp(settings: dict[str, Any], timeout: float) -> Any:
    paramiko = lazy("paramiko", "sftp")
    known = os.path.expanduser(settings.pop("known_hosts", "~/.ssh/known_hosts"))

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc, name-defined]
        """Accepts the hosts of a file, and no other."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            """Check a host that nobody has told the client of."""
            if not (os.path.exists(known) and paramiko.HostKeys(known).check(hostname, key)):
                raise paramiko.AuthenticationException(
                    f"the key of {hostname} is not in {known}; add it with ssh-keyscan, or name "
                    f"another file in COMPOSER_SFTP_KNOWN_HOSTS_FILE"
                )

    settings.setdefault("host_key_policy", KnownHosts())
    for name in ("timeout", "banner_timeout", "auth_timeout"):
        settings.setdefault(name, timeout)
    kind = lazy("fsspec.implementations.sftp", "sftp").SFTPFileSystem
    files = kind(skip_instance_cache=True, **settings)
    files.ftp.get_channel().settimeout(timeout)
    return files


def _oci_client_settings(settings: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Settings of the client below ocifs. It does not try again by itself: we do, within limits."""
    endpoint = settings.pop("endpoint", None)
    return {
        "timeout": timeout,
        "retry_strategy": lazy("oci.retry", "oci").NoneRetryStrategy(),
        **({"service_endpoint": endpoint} if endpoint else {}),
        **settings.get("config_kwargs", {}),
    }


def _find_oci(files: Any, root: str, path: str) -> dict[str, dict[str, Any]]:
    """What `find` of ocifs gives, by a request a page; it makes one for each folder.

    Names begin with `root` as it is written, with the namespace or without.
    """
    bucket, namespace, key = files.split_path(path)
    head = root.partition("/")[0]
    found: dict[str, dict[str, Any]] = {}
    more: dict[str, str] = {"prefix": f"{key}/"} if key else {}
    while True:
        page = files.oci_client.list_objects(
            namespace, bucket, fields="name,size,etag", **more
        ).data
        for item in page.objects:
            found[f"{head}/{item.name}"] = {"size": item.size, "etag": item.etag}
        if not page.next_start_with:
            return found
        more["start"] = page.next_start_with


def _describe(key: str, info: Mapping[str, Any]) -> ObjectInfo:
    size = info["size"] or 0
    mark = next((info[name] for name in _MARKS if info.get(name) is not None), None)
    # With the size, as a time may be in whole seconds.
    return ObjectInfo(key, size, None if mark is None else f"{mark} {size}")


def knows_scheme(scheme: str) -> bool:
    """Whether fsspec has a file system for a scheme, installed or not."""
    registry = _fsspec("fsspec.registry")
    return scheme in registry.known_implementations or scheme in registry.registry


def open_filesystem_url(
    url: str, changes: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[FsspecStore, str]:
    """Open what a URL of a file system of fsspec names.

    Args:
        url: The URL.
        changes: Options that take the place of those from the environment; see `StoreOptions`. Its
            `settings` are arguments of the file system.

    Raises:
        ConfigError: The URL or an option is broken, or an option not known.
        MissingExtraError: The file system needs a package that is not installed.
    """
    scheme = url.partition(":")[0].lower()
    kind = _find_class(scheme)
    options = StoreOptions.from_env(scheme).updated(changes)
    options.checked(f"{scheme}://", *_known_settings(scheme, kind))
    settings: dict[str, Any] = dict(options.settings)
    if options.endpoint:
        settings.setdefault("endpoint", options.endpoint)
    if scheme == "sftp":
        root, place, more = _parse_sftp(url)
        settings.update(more)
    else:
        root = str(kind._strip_protocol(url)).rstrip("/")
        settings.update(kind._get_kwargs_from_urls(url))
        place = f"{scheme}://{root.lstrip('/')}"
    return FsspecStore(scheme, settings, root, place, options.timeout), ""


def _known_settings(scheme: str, kind: type) -> tuple[set[str], Callable[[str], bool]]:
    """Names of settings that a file system has, and whether it may have another one.

    Each takes any name. Those we know do nothing with it; others may hand it on to their client, so
    that only what is nearly one of theirs is taken for a slip.
    """
    makers = [base.__init__ for base in (*kind.__mro__, _fsspec("fsspec.dircache").DirCache)]
    known = set(SETTINGS.get(scheme, ()))
    if scheme == "sftp":
        makers.append(lazy("paramiko", "sftp").SSHClient.connect)
        known |= {"temppath", "host_key_policy"}
    known = known.union(*map(parameters, makers))
    return known, lambda name: scheme not in _EXTRAS and not nearest(name, known | OWN)


def _find_class(scheme: str) -> Any:
    if scheme in _EXTRAS:
        lazy(*_EXTRAS[scheme])
    try:
        return _fsspec().get_filesystem_class(scheme)
    except ImportError as error:
        raise MissingExtraError(f"{scheme}:// URLs need a package: {error}.") from error


def _fsspec(module: str = "fsspec") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "This URL needs the package 'fsspec', which comes with this one but can't be imported. "
            "Install it with: pip install fsspec"
        ) from error


def _parse_sftp(url: str) -> tuple[str, str, dict[str, Any]]:
    """Path, place without password, and arguments of an SFTP URL."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ConfigError("An SFTP URL names a host, as in sftp://user@host:22/path.")
    if parts.query or parts.fragment:
        raise ConfigError(f"An SFTP URL has no query and no fragment, but that of {parts.hostname}")
    settings: dict[str, Any] = {"host": parts.hostname, "port": parts.port or 22}
    user = ""
    if parts.username:
        settings["username"] = unquote(parts.username)
        user = f"{parts.username}@"
    if parts.password:
        settings["password"] = unquote(parts.password)
    path = "/" + parts.path.strip("/")
    return path, f"sftp://{user}{parts.hostname}:{settings['port']}{path.rstrip('/')}", settings
