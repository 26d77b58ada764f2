"""What the formats of lines have in common: where records start, and reading them from a map."""

__all__: list[str] = []
