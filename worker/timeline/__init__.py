"""Where the seconds of a cold start went: logs in, spans, gaps, the critical path and findings out."""

from worker.timeline.cli import main

__all__ = ["main"]
