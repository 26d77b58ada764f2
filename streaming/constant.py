"""Defaults that more than one module uses, each with its unit and its reason."""

__all__ = ["DEFAULT_RETRY", "DEFAULT_TIMEOUT", "DEFAULT_UPLOADS", "DEFAULT_UPLOADS_AHEAD", "TICK"]

DEFAULT_TIMEOUT: float = 60.0  # seconds without an answer from a store; as the predecessor
DEFAULT_RETRY: int = 2  # attempts in all for one object; as the predecessor
DEFAULT_UPLOADS: int = 8  # threads; a few large objects at a time fill most links
DEFAULT_UPLOADS_AHEAD: int = 16  # finished files that may wait on disk before a writer has to
TICK: float = 0.007  # seconds; an old name for code that imports it, nothing here polls
