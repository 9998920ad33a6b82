"""What one job's sender experienced, in the words vLLM uses for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.timeline.parse import Entry

_ENDS = {"job.finished": "finished", "job.failed": "failed", "job.cancelled": "cancelled"}
_LOST = "result.undelivered"


@dataclass(frozen=True)
class Job:
    """One job as far as its events go, None where one is missing; how long it queued no worker's log can say."""

    job_id: str
    accepted_ns: int
    outcome: str
    """`finished`, `failed <code>`, `cancelled`, `undelivered` or `running`."""
    undelivered: bool
    ttft_ns: int | None
    """Accepted to the first token at the worker."""
    first_chunk_ns: int | None
    """Accepted to the first chunk at the platform."""
    e2el_ns: int | None
    """Accepted to the end of the answer."""
    tpot_ns: int | None
    """Time per output token after the first."""
    prompt_tokens: int | None
    output_tokens: int | None
    prefill_tokens_per_s: float | None
    """By the server's own clock, as is the next."""
    decode_tokens_per_s: float | None


def collect(entries: Iterable[Entry]) -> tuple[Job, ...]:
    """Gather the jobs of sorted entries, in order of acceptance."""
    told: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        job_id = entry.text("job_id")
        if job_id and entry.exact and entry.name.startswith(("job.", "result.")):
            told.setdefault(job_id, {}).setdefault(entry.name, entry)
    jobs = [_job(job_id, events) for job_id, events in told.items() if "job.accepted" in events]
    return tuple(sorted(jobs, key=lambda job: (job.accepted_ns, job.job_id)))


def _job(job_id: str, events: dict[str, Entry]) -> Job:
    accepted_ns = events["job.accepted"].at_ns
    end = next((events[name] for name in _ENDS if name in events), None)
    alone = "undelivered" if _LOST in events else "running"
    outcome = alone if end is None else f"{_ENDS[end.name]} {end.text('code')}".strip()
    finished = events.get("job.finished")
    token = events.get("job.token_received")
    prompt_tokens = _count(finished, "prompt_tokens")
    output_tokens = _count(finished, "output_tokens")

    def since_accepted(entry: Entry | None) -> int | None:
        return entry.at_ns - accepted_ns if entry is not None and entry.at_ns >= accepted_ns else None

    tpot_ns = None
    if finished is not None and token is not None and output_tokens is not None and output_tokens > 1:
        tpot_ns = (finished.at_ns - token.at_ns) // (output_tokens - 1)
    return Job(
        job_id=job_id,
        accepted_ns=accepted_ns,
        outcome=outcome,
        undelivered=_LOST in events,
        ttft_ns=since_accepted(token),
        first_chunk_ns=since_accepted(events.get("job.chunk_posted")),
        e2el_ns=since_accepted(finished),
        tpot_ns=tpot_ns if tpot_ns is not None and tpot_ns >= 0 else None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prefill_tokens_per_s=_rate(prompt_tokens, finished, "prefill_ms"),
        decode_tokens_per_s=_rate(output_tokens, finished, "decode_ms"),
    )


def _count(entry: Entry | None, key: str) -> int | None:
    number = entry.number(key) if entry is not None else None
    return int(number) if number is not None and number >= 0 else None


def _rate(tokens: int | None, entry: Entry | None, key: str) -> float | None:
    took_ms = entry.number(key) if entry is not None else None
    return tokens / took_ms * 1000 if tokens and took_ms is not None and took_ms > 0 else None
