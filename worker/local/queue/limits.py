"""What the queue allows, keeps and waits for: Runpod's published numbers as defaults."""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 24 * 3600.0
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Every number of the queue. Sizes are decimal megabytes, the stricter reading of "MB".

    Runpod publishes neither how long it holds a poll nor after how many pings that do not name a job it gives
    the job to another worker nor how often it does so; those defaults are chosen, not known.
    `kept_calls` is how many calls and changes of state the record keeps; None is all of them.
    """

    run_bytes: int = 10 * MEGABYTE
    runsync_bytes: int = 20 * MEGABYTE
    done_bytes: int = 20 * MEGABYTE
    chunk_bytes: int = 1 * MEGABYTE

    take_hold_s: float = 5.0
    stop_hold_s: float = 5.0
    sync_wait_s: float = 90.0
    sync_wait_range_s: tuple[float, float] = (1.0, 300.0)

    execution_timeout_s: float = 600.0
    execution_timeout_range_s: tuple[float, float] = (5.0, 7 * DAY_S)
    ttl_s: float = DAY_S
    ttl_range_s: tuple[float, float] = (10.0, 7 * DAY_S)
    run_retention_s: float = 1800.0
    runsync_retention_s: float = 60.0

    ping_interval_s: float = 10.0
    missed_pings: float = 3.0
    max_retries: int = 3

    kept_calls: int | None = None

    webhook_tries: int = 3
    webhook_gap_s: float = 10.0
