"""What a run will do, worked out without running it: who reads what, when, and what it costs."""

from streaming.explain.downloads import Downloads, Network, foresee_downloads
from streaming.explain.epoch import Drawn, Occurrence, WholeEpoch
from streaming.explain.quality import Quality, measure_quality
from streaming.explain.report import Question, explain
from streaming.explain.summary import EpochSummary, StreamSummary, summarise

__all__ = [
    "Downloads",
    "Drawn",
    "EpochSummary",
    "Network",
    "Occurrence",
    "Quality",
    "Question",
    "StreamSummary",
    "WholeEpoch",
    "explain",
    "foresee_downloads",
    "measure_quality",
    "summarise",
]
