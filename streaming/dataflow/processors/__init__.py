"""Processors: what a sample is made of an item by."""

from streaming.dataflow.processors.basic import (
    Chain,
    ExpandProcessor,
    FilterProcessor,
    IdentityProcessor,
    MapProcessor,
)
from streaming.dataflow.processors.image import ImageProcessor
from streaming.dataflow.processors.text import ChatProcessor, TextProcessor
from streaming.dataflow.processors.video import VideoProcessor

__all__ = [
    "Chain",
    "ChatProcessor",
    "ExpandProcessor",
    "FilterProcessor",
    "IdentityProcessor",
    "ImageProcessor",
    "MapProcessor",
    "TextProcessor",
    "VideoProcessor",
]
