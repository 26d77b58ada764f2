"""From files that others wrote to datasets.

A source (`folder.FolderSource`, `jsonl.JsonlSource`) reads samples; `writing.write_dataset` writes
them.
"""

__all__: list[str] = []
