"""The stores: each turns one kind of place into objects under keys."""

__all__: list[str] = []
