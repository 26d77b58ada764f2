"""What some trainers need to carry a loader's state; most need nothing, see docs/migrating.md."""

__all__: list[str] = []
