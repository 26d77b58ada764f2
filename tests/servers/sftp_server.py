"""An SFTP server on loopback: ``sftp_server.py PORT FOLDER``, with the keys that lie in FOLDER."""

import asyncio
import sys
from pathlib import Path

import asyncssh

__all__ = ["main"]


async def main(port: int, folder: Path) -> None:
    """Serve until the process is ended."""
    await asyncssh.listen(
        "127.0.0.1",
        port,
        server_host_keys=[str(folder / "host")],
        authorized_client_keys=str(folder / "user.pub"),
        sftp_factory=True,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
