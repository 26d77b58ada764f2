"""How a place is reached: endpoint, credentials, time limits. The only reader of the environment.

Options are plain data. They travel to other processes with what uses them, and are turned into
clients and tokens where those are needed, by the process that needs them.
"""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from streaming.constant import DEFAULT_TIMEOUT
from streaming.errors import ConfigError
from streaming.util.checking import nearest

__all__ = ["OWN", "SETTINGS", "StoreOptions", "check_unused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """How to reach a place. Compares by value, pickles, and shows no secret when printed.

    Attributes:
        endpoint: Base URL of the service, where it is not the cloud's own.
        region: Region of the bucket.
        anonymous: Send requests without a signature, as public buckets allow.
        requester_pays: Buckets whose requests we pay for.
        timeout: Seconds without a byte after which a request counts as failed.
        credentials: Gives credentials as obstore wants them, when called: a recipe, which pickles,
            and never a session. None: those in `settings`, or what the client finds itself.
        settings: More settings, under the names of the client that is used: obstore's for s3, gs
            and Azure, fsspec's of the file system for other schemes.
        origin: Where the credentials come from, for messages.
    """

    endpoint: str | None = None
    region: str | None = None
    anonymous: bool = False
    requester_pays: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT
    credentials: Callable[[], Any] | None = field(default=None, repr=False)
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origin: str = "what the client finds by itself"

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigError(f"`timeout` must be positive, but is {self.timeout} seconds.")

    @classmethod
    def from_env(cls, scheme: str) -> "StoreOptions":
        """What the environment says for URLs of a scheme.

        Args:
            scheme: In lower case, such as "s3".
        """
        return _READERS.get(scheme, cls)()

    def updated(self, changes: "Mapping[str, Any] | StoreOptions | None") -> "StoreOptions":
        """These options with others put over them.

        Args:
            changes: Names of attributes to values; any other name is one of `settings`. Options
                take the place of all of these.

        Raises:
            ConfigError: A value can't be used.
        """
        if isinstance(changes, StoreOptions):
            return changes
        names = {item.name for item in fields(self)}
        known = {key: value for key, value in (changes or {}).items() if key in names}
        if "requester_pays" in known:
            known["requester_pays"] = tuple(known["requester_pays"])
        settings = {**dict(self.settings), **dict(known.pop("settings", ()))}
        more = {key: value for key, value in (changes or {}).items() if key not in names}
        if more or known.get("anonymous"):
            known.setdefault("credentials", None)  # What is given goes before what could be found.
        if "credentials" in known:
            known.setdefault("origin", "the options that were given")
        known["settings"] = tuple(sorted({**settings, **more}.items()))
        return replace(self, **known)

    def checked(
        self,
        where: str,
        known: Collection[str],
        is_taken: Callable[[str], bool] = lambda name: False,
    ) -> "StoreOptions":
        """These options, if a store knows all of the `settings`.

        Args:
            where: Its URL or path without secrets, for the message.
            known: Names of settings that it has.
            is_taken: Whether it takes a name that is none of these, too.

        Raises:
            ConfigError: It knows one of them not.
        """
        for name in self.setting:
            if name not in known and not is_taken(name):
                names = sorted({*OWN, *known})
                near = nearest(name, names)
                raise ConfigError(
                    f"`storage_options` for {where} has {name!r}, which means nothing there."
                    f"{near and f' Did you mean {near!r}?'} Known: {', '.join(names)}."
                )
        return self

    @property
    def setting(self) -> dict[str, str]:
        """`settings` as a dict."""
        return dict(self.settings)


# Attributes that users set; every store takes them.
OWN = {item.name for item in fields(StoreOptions)} - {"settings", "origin"}


def _first(*names: str) -> str | None:
    """The first of these variables that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _settings(variables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Settings of a client by the variables that may hold them."""
    found = {name: _first(*names) for name, names in variables.items()}
    return {name: value for name, value in found.items() if value is not None}


# The client reads these itself, too. Named here, they also hold in a process that began before they
# were set.
_AWS = {
    "role_arn": ("AWS_ROLE_ARN",),
    "role_session_name": ("AWS_ROLE_SESSION_NAME",),
    "web_identity_token_file": ("AWS_WEB_IDENTITY_TOKEN_FILE",),
    "container_credentials_relative_uri": ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    "container_credentials_full_uri": ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
    "container_authorization_token_file": ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",),
    "metadata_endpoint": ("AWS_METADATA_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
}
_AWS_KEYS = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}
_AZURE = {
    "account_name": ("AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    "account_key": (
        "AZURE_ACCOUNT_ACCESS_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_KEY",
    ),
    "sas_key": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "tenant_id": ("AZURE_TENANT_ID", "AZURE_STORAGE_TENANT_ID"),
    "client_id": ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID"),
    "client_secret": ("AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
    "federated_token_file": ("AZURE_FEDERATED_TOKEN_FILE",),
}


# Settings by services: of obstore those with their shortest names (it knows more spellings), and of
# the stores of ours that have few.
SETTINGS: Mapping[str, frozenset[str]] = {
    "http": frozenset(),
    "s3": frozenset({*_AWS, *_AWS_KEYS}).union(
        (
            "checksum_algorithm",
            "conditional_put",
            "copy_if_not_exists",
            "disable_bulk_delete",
            "disable_tagging",
            "imdsv1_fallback",
            "request_payer",
            "s3_express",
            "server_side_encryption",
            "skip_signature",
            "sse_bucket_key_enabled",
            "sse_customer_key_base64",
            "sse_kms_key_id",
            "unsigned_payload",
            "virtual_hosted_style_request",
        )
    ),
    "gs": frozenset(
        (
            "access_key_id",
            "application_credentials",
            "base_url",
            "bearer_token",
            "secret_access_key",
            "service_account",
            "service_account_key",
            "skip_signature",
        )
    ),
    "az": frozenset(_AZURE).union(
        (
            "authority_host",
            "credential_type",
            "disable_tagging",
            "encryption_key",
            "fabric_cluster_identifier",
            "fabric_session_token",
            "fabric_token_service_url",
            "fabric_workload_host",
            "msi_endpoint",
            "msi_resource_id",
            "object_id",
            "skip_signature",
            "token",
            "use_azure_cli",
            "use_emulator",
            "use_fabric_endpoint",
        )
    ),
    "sftp": frozenset(("key_filename", "known_hosts")),
    "hf": frozenset(("token",)),
    "dbfs": frozenset(("host", "token")),
    "oci": frozenset(("config", "profile")),
    "alipan": frozenset(("refresh_token", "encrypt_password", "encrypt_type")),
}
# Where nothing is set, such as on this machine, stand what the options are meant for elsewhere.
_ANY = frozenset[str]().union(*SETTINGS.values())


def check_unused(where: str, options: "Mapping[str, Any] | StoreOptions | None") -> StoreOptions:
    """Options for a place where they have no effect, but for `timeout`: they may be of another.

    Raises:
        ConfigError: A name is one of no service.
    """
    prefixes = "aws_", "google_", "azure_"  # of obstore's longer spellings
    return (
        StoreOptions()
        .updated(options)
        .checked(where, _ANY, lambda name: name.lower().startswith(prefixes))
    )


def _read_aws() -> StoreOptions:
    settings, keys = _settings(_AWS), _settings(_AWS_KEYS)
    credentials, origin = None, "what the client finds by itself"
    if _is_true("AWS_SKIP_SIGNATURE"):
        keys, origin = {}, "nothing (AWS_SKIP_SIGNATURE)"
    elif "access_key_id" in keys and "secret_access_key" in keys:
        origin = "AWS_ACCESS_KEY_ID"
    elif not settings.keys() & {"web_identity_token_file", "container_credentials_full_uri"}:
        credentials = _aws_profile()
        origin = repr(credentials) if credentials else origin
    return StoreOptions(
        endpoint=_first("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        region=_first("AWS_REGION", "AWS_DEFAULT_REGION"),
        anonymous=_is_true("AWS_SKIP_SIGNATURE"),
        requester_pays=tuple(
            name.strip()
            for name in os.environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
            if name.strip()
        ),
        credentials=credentials,
        settings=tuple(sorted({**settings, **keys}.items())),
        origin=origin,
    )


def _aws_profile() -> Callable[[], Any] | None:
    """A recipe for the profiles of AWS, which only its own SDK can read; None if there are none."""
    files = (
        (_first("AWS_SHARED_CREDENTIALS_FILE"), "~/.aws/credentials"),
        (_first("AWS_CONFIG_FILE"), "~/.aws/config"),
    )
    paths = [Path(named or usual).expanduser() for named, usual in files]
    profile = _first("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    if profile is None and not any(path.is_file() for path in paths):
        return None
    from streaming.storage.stores.credentials import AwsProfile

    return AwsProfile(profile)


def _read_google() -> StoreOptions:
    key, secret = _first("GCS_KEY"), _first("GCS_SECRET")
    endpoint = _first("STORAGE_EMULATOR_HOST")
    if key and secret:
        return StoreOptions(
            endpoint=_first("GCS_ENDPOINT_URL") or "https://storage.googleapis.com",
            region="auto",
            settings=(("access_key_id", key), ("secret_access_key", secret)),
            origin="GCS_KEY",
        )
    if endpoint:
        url = endpoint if "://" in endpoint else f"http://{endpoint}"
        return StoreOptions(endpoint=url, anonymous=True, origin="nothing (STORAGE_EMULATOR_HOST)")
    settings = _settings(
        {
            "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
            "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        }
    )
    if settings:
        return StoreOptions(settings=tuple(settings.items()), origin="GOOGLE_SERVICE_ACCOUNT")
    from streaming.storage.stores.credentials import google_default

    path = _first("GOOGLE_APPLICATION_CREDENTIALS")
    return StoreOptions(
        credentials=google_default(Path(path) if path else None),
        settings=(("application_credentials", path),) if path else (),
        origin="Google's application default credentials",
    )


def _read_azure() -> StoreOptions:
    settings = _settings(_AZURE)
    credentials, origin = None, "AZURE_* variables"
    anonymous = _is_true("AZURE_SKIP_SIGNATURE")
    if anonymous:
        origin = "nothing (AZURE_SKIP_SIGNATURE)"
    elif settings.keys() <= {"account_name", "tenant_id", "client_id"}:
        from streaming.storage.stores.credentials import azure_default

        credentials, origin = azure_default(), "Azure's default credential chain"
    return StoreOptions(
        endpoint=_first("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        anonymous=anonymous,
        credentials=credentials,
        settings=tuple(sorted(settings.items())),
        origin=origin,
    )


def _read_hub() -> StoreOptions:
    settings = _settings({"token": ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")})
    return StoreOptions(
        endpoint=_first("HF_ENDPOINT"),
        settings=tuple(settings.items()),
        origin="HF_TOKEN" if settings else "the token that huggingface_hub has saved, if any",
    )


def _read_sftp() -> StoreOptions:
    settings = _settings(
        {
            "key_filename": ("COMPOSER_SFTP_KEY_FILE",),
            "known_hosts": ("COMPOSER_SFTP_KNOWN_HOSTS_FILE",),
        }
    )
    return StoreOptions(settings=tuple(settings.items()), origin="the URL, key files and the agent")


def _read_databricks() -> StoreOptions:
    return StoreOptions(origin="the configuration of the Databricks SDK")


def _read_oracle() -> StoreOptions:
    """The file that the service's SDK reads; without it, a machine's or function's own identity."""
    named = _first("OCI_CONFIG_FILE", "OCI_CLI_CONFIG_FILE", "OCIFS_CONFIG_LOCATION")
    config = Path(named or "~/.oci/config").expanduser()
    profile = _first("OCI_CONFIG_PROFILE", "OCI_CLI_PROFILE", "OCIFS_CONFIG_PROFILE")
    settings = {"config": str(config), **({"profile": profile} if profile else {})}
    if not config.is_file() or _first("OCIFS_IAM_TYPE"):
        return StoreOptions(origin="OCIFS_IAM_TYPE, or the principal of this machine")
    return StoreOptions(settings=tuple(sorted(settings.items())), origin=str(config))


def _read_alipan() -> StoreOptions:
    settings = _settings(
        {
            "refresh_token": ("ALIPAN_WEB_REFRESH_TOKEN",),
            "encrypt_password": ("ALIPAN_ENCRYPT_PASSWORD",),
            "encrypt_type": ("ALIPAN_ENCRYPT_TYPE",),
        }
    )
    return StoreOptions(settings=tuple(settings.items()), origin="ALIPAN_WEB_REFRESH_TOKEN")


_READERS: dict[str, Callable[[], StoreOptions]] = {
    "s3": _read_aws,
    "gs": _read_google,
    "az": _read_azure,
    "hf": _read_hub,
    "sftp": _read_sftp,
    "dbfs": _read_databricks,
    "alipan": _read_alipan,
    "oci": _read_oracle,
}
