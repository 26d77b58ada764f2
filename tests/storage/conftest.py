"""Servers for tests of stores, each started once a process when the first test asks for it."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from streaming.storage import guard
from tests.servers import places
from tests.servers.places import Opened
from tests.servers.running import Running, running

# What is written to and read back: a server, and how a place on it is named and reached.
WRITABLE = {
    "s3-moto": ("moto", places.s3),
    "s3-ministack": ("ministack", places.s3),
    "gs-ministack": ("ministack", places.gs_on_s3),
    "gs-hmac-moto": ("moto", places.gs_hmac),
    "azure-azurite": ("azurite", places.azure),
    "azure-dl-azurite": ("azurite", places.azure_dl),
    "sftp-asyncssh": ("asyncssh", places.sftp),
    "sftp-sshd": ("sshd", places.sftp),
}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Give a running server by its name. Only fixtures of the session may ask, as it lives on."""
    up: dict[str, Running] = {}
    with ExitStack() as stack:

        def get(name: str) -> Running:
            if name not in up:
                up[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name)))
            return up[name]

        yield get


# What pip brings with the test group; the others take longer than they may in every run.
QUICK = ("s3-moto", "sftp-asyncssh")


@pytest.fixture(
    scope="session",
    params=[
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WRITABLE
    ],
)
def new_place(
    request: pytest.FixtureRequest, servers: Callable[[str], Running]
) -> Callable[[], Opened]:
    """Makes empty places, of one kind after the other."""
    name, opener = WRITABLE[request.param]
    server = servers(name)
    return lambda: opener(server)


@pytest.fixture
def place(new_place: Callable[[], Opened]) -> Opened:
    """An empty place, of one kind after the other."""
    return new_place()


@pytest.fixture(scope="session")
def new_bucket(servers: Callable[[str], Running]) -> Callable[[], Opened]:
    """Makes empty places in buckets of S3, for what is the same everywhere."""
    server = servers("moto")
    return lambda: places.s3(server)


@pytest.fixture(scope="session")
def helper_pid() -> Iterator[int]:
    """The helper of this process, started once: that takes longer than most tests."""
    helper = guard.helper()
    assert helper is not None
    yield helper.call(os.getpid)
    guard.end_helper()


@pytest.fixture(autouse=True)
def nothing_kept(helper_pid: int) -> Iterator[None]:
    """Let go of connections with the test, and of a helper that the test has started anew."""
    yield
    guard.drop_kept()
    helper = guard.helper()
    if helper is not None and helper.pid != helper_pid:
        guard.end_helper()
    elif helper is not None:
        helper.call(guard.drop_kept)


CLOUD_VARIABLES = (
    "S3_", "AWS_", "GCS_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "AZURE_", "HF_", "COMPOSER_SFTP_",
    "ALIPAN_", "DATABRICKS_", "MOSAICML_STREAMING_", "HTTP_PROXY", "http_proxy",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hide the credentials and settings of whoever runs the tests: nothing leaves this machine."""
    for name in list(os.environ):
        if name.startswith(CLOUD_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
