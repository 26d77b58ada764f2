"""What processes of a node share: mapped files and kernel locks. Nothing has a global name."""

from streaming.shared.lock import FileLock, Stripes
from streaming.shared.table import SharedTable

__all__ = ["FileLock", "SharedTable", "Stripes"]
