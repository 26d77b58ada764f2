"""Where objects come from and go to, by URL."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming.errors import UnknownNameError
from streaming.storage.options import StoreOptions, check_unused
from streaming.storage.store import ObjectInfo, Store, join_key
from streaming.storage.stores.local import LocalStore
from streaming.util.importing import Registry

if TYPE_CHECKING:
    from streaming.storage.clouds import (
        AlipanDownloader,
        AlipanUploader,
        AzureDataLakeDownloader,
        AzureDataLakeUploader,
        AzureDownloader,
        AzureUploader,
        CloudDownloader,
        CloudUploader,
        DatabricksUnityCatalogDownloader,
        DatabricksUnityCatalogUploader,
        DBFSDownloader,
        DBFSUploader,
        GCSDownloader,
        GCSUploader,
        HFDownloader,
        HFUploader,
        LocalDownloader,
        LocalUploader,
        OCIDownloader,
        OCIUploader,
        S3Downloader,
        S3Uploader,
        SFTPDownloader,
    )

__all__ = [
    "AlipanDownloader",
    "AlipanUploader",
    "AzureDataLakeDownloader",
    "AzureDataLakeUploader",
    "AzureDownloader",
    "AzureUploader",
    "CloudDownloader",
    "CloudUploader",
    "DBFSDownloader",
    "DBFSUploader",
    "DatabricksUnityCatalogDownloader",
    "DatabricksUnityCatalogUploader",
    "GCSDownloader",
    "GCSUploader",
    "HFDownloader",
    "HFUploader",
    "LocalDownloader",
    "LocalUploader",
    "OCIDownloader",
    "OCIUploader",
    "ObjectInfo",
    "S3Downloader",
    "S3Uploader",
    "SFTPDownloader",
    "Store",
    "StoreOptions",
    "join_key",
    "open_store",
    "stores",
]

_OBJECT = "streaming.storage.stores.object:open_object_url"
_FILESYSTEM = "streaming.storage.stores.filesystem:open_filesystem_url"

# From scheme to what opens its URLs: a function of the URL and, if some are given, of options.
stores: Registry[Callable[..., tuple[Store, str]]] = Registry(
    "store for the scheme",
    {
        "file": "streaming.storage.stores.local:open_file_url",
        "memory": "streaming.storage.stores.memory:open_memory_url",
        **dict.fromkeys(
            ("s3", "gs", "az", "azure", "azure-dl", "abfs", "abfss", "http", "https"), _OBJECT
        ),
        **dict.fromkeys(("hf", "sftp", "oci"), _FILESYSTEM),
        "dbfs": "streaming.storage.stores.databricks:open_databricks_url",
        "alipan": "streaming.storage.stores.alipan:open_alipan_url",
    },
    group="streaming.stores",
)

# Two letters or more, so that a drive ("C:/data") is none; one slash is enough ("dbfs:/Volumes").
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def __getattr__(name: str) -> Any:
    """The predecessor's names, which are in `streaming.storage.clouds` (PEP 562)."""
    if name in __all__:
        globals()[name] = value = getattr(import_module("streaming.storage.clouds"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open_store(
    url: str | os.PathLike[str], options: Mapping[str, Any] | StoreOptions | None = None
) -> tuple[Store, str]:
    """Open the store that a URL names. Nothing is connected to before the first request.

    Args:
        url: A URL, or a path, which is taken as it is ("%20" stands for itself; a relative one that
            looks like a URL is written with "./" before it).
        options: How to reach it, over what the environment says; see `StoreOptions.updated`.

    Returns:
        The store, and the key of the place in it: "" or parts joined by "/". The caller closes it.

    Raises:
        UnknownNameError: There is no store for this scheme; the message lists those there are.
        MissingExtraError: The scheme needs a package that is not installed.
        ConfigError: The URL or an option is broken.
    """
    url = os.fspath(url)
    match = _SCHEME.match(url)
    if match is None:
        check_unused(url, options)
        return LocalStore(Path(url)), ""
    scheme = match[1].lower()
    old = _downloader(scheme, url, options)
    if old is not None:
        return old, ""
    if scheme in stores:
        opener = stores.get(scheme)
        return opener(url) if options is None else opener(url, options)
    from streaming.storage.stores.filesystem import knows_scheme, open_filesystem_url

    if knows_scheme(scheme):
        return open_filesystem_url(url, options)
    # The URL itself stays out of the message: it may hold a password.
    known = ", ".join(f"{name}://" for name in sorted(stores))
    raise UnknownNameError(
        f"There is no store for {scheme}:// URLs. Known: paths, {known}, and what fsspec knows. "
        f"Another distribution can add one, under the entry point group 'streaming.stores'."
    )


def _downloader(
    scheme: str, url: str, options: Mapping[str, Any] | StoreOptions | None
) -> Store | None:
    """The store of a scheme that a user has registered a downloader for, as with the predecessor.

    Only a program that has imported the module can have put something there.
    """
    clouds = sys.modules.get("streaming.storage.clouds")
    kind = None if clouds is None else clouds.registered_downloader(scheme)
    if clouds is None or kind is None:
        return None
    timeout = check_unused(f"{scheme}://", options).timeout
    store: Store = clouds.DownloaderStore(kind, url.rstrip("/"), timeout)
    return store
