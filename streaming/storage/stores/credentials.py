"""Recipes for credentials: plain data that makes a token when and where one is needed.

A recipe is called by the client when it has no token, or its token is about to expire. All clients
of a process that share a recipe share its token, so a token is asked for once in its life.
"""

import importlib.util
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from streaming.errors import AccessDeniedError
from streaming.storage.guard import kept
from streaming.util.importing import lazy

__all__ = [
    "AwsProfile",
    "AzureDefault",
    "GoogleDefault",
    "StaticKeys",
    "azure_default",
    "google_default",
]

# How long before its end a token counts as spent: longer than a request takes to be sent.
_MARGIN = timedelta(minutes=3)
# AWS's SDK renews its credentials by itself and does not say when they end: ask it this often.
_AWS_TOKEN_LIFE = timedelta(minutes=10)


class _Token:
    """The newest token of one recipe in this process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Any = None

    def get(self) -> Any:
        with self._lock:
            if self._value is None or self._is_spent():
                self._value = self._make()
            return self._value

    def _is_spent(self) -> bool:
        expires_at = self._value.get("expires_at")
        return expires_at is not None and expires_at - _MARGIN <= datetime.now(UTC)


@dataclass(frozen=True)
class StaticKeys:
    """Keys of AWS, or of who speaks S3, that somebody gave.

    As a recipe, so that the client does not mix them with others of the environment.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    def __call__(self) -> Any:
        """The keys, as obstore wants them."""
        return {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "token": self.session_token,
            "expires_at": None,
        }


@dataclass(frozen=True)
class AwsProfile:
    """The chain of AWS's own SDK: profiles, SSO, assumed roles.

    Attributes:
        profile: Name in the configuration files; None: the default one.
    """

    profile: str | None = None

    def __call__(self) -> Any:
        """A token, as obstore wants it."""
        return kept(self, lambda: _Token(self._asker())).get()

    def region(self) -> str | None:
        """The region that the profile names, if any."""
        return self._session().region_name  # type: ignore[no-any-return]

    def _session(self) -> Any:
        return lazy("boto3", "aws").Session(profile_name=self.profile)

    def _asker(self) -> Callable[[], Any]:
        credentials = self._session().get_credentials()
        if credentials is None:
            raise AccessDeniedError(f"{self!r} holds no credentials.")

        def ask() -> dict[str, Any]:
            frozen = credentials.get_frozen_credentials()  # Renews them if they are about to end.
            return {
                "access_key_id": frozen.access_key,
                "secret_access_key": frozen.secret_key,
                "token": frozen.token,
                "expires_at": datetime.now(UTC) + _AWS_TOKEN_LIFE,
            }

        return ask


@dataclass(frozen=True)
class GoogleDefault:
    """Application default credentials of Google's SDK, also those that a company federates."""

    def __call__(self) -> Any:
        """A token, as obstore wants it."""
        return kept(self, lambda: _Token(self._asker())).get()

    def _asker(self) -> Callable[[], Any]:
        scope = "https://www.googleapis.com/auth/devstorage.read_write"
        credentials, _ = lazy("google.auth", "gcp").default(scopes=[scope])
        request = lazy("google.auth.transport.requests", "gcp").Request()

        def ask() -> dict[str, Any]:
            credentials.refresh(request)
            expiry = credentials.expiry  # In UTC, which it does not say.
            return {"token": credentials.token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

        return ask


@dataclass(frozen=True)
class AzureDefault:
    """The default chain of Azure's SDK: environment, managed identity, command line, ..."""

    def __call__(self) -> Any:
        """A token, as obstore wants it."""
        return kept(self, lambda: _Token(self._asker())).get()

    def _asker(self) -> Callable[[], Any]:
        credential = lazy("azure.identity", "azure").DefaultAzureCredential()

        def ask() -> dict[str, Any]:
            token = credential.get_token("https://storage.azure.com/.default")
            expires_at = datetime.fromtimestamp(token.expires_on, UTC)
            return {"token": token.token, "expires_at": expires_at}

        return ask


def google_default(path: Path | None) -> Callable[[], Any] | None:
    """The recipe for Google's default credentials; None where obstore reads them itself.

    Args:
        path: The file that GOOGLE_APPLICATION_CREDENTIALS names.
    """
    if not _is_installed("google.auth"):
        return None
    try:
        found = json.loads(path.read_bytes()) if path else None
    except (OSError, ValueError):
        return None  # The client's message names the file.
    if found is not None and found.get("type") in ("service_account", "authorized_user"):
        return None
    return GoogleDefault()


def azure_default() -> Callable[[], Any] | None:
    """The recipe for Azure's default credentials; None without its SDK."""
    return AzureDefault() if _is_installed("azure.identity") else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # Not even the package that it would be in.
        return False
