"""The last post of a job, kept below what the platform takes."""

from __future__ import annotations

import json
from typing import Any

# The platform's 20 MB, less what it may add.
RESULT_BYTES = 19_900_000


def within_limit(job_data: str) -> str:
    """Return a post's JSON text, or what takes its place when it is larger than a result may be.

    The SDK gathers every chunk of a stream for the last post. The stream itself was delivered whole by then, so a
    marker that says so replaces the gathering; an answer that was not streamed has no other way, and its job fails.
    """
    # Four bytes are the most a character can have: nearly every post is told by its length.
    if len(job_data) * 4 <= RESULT_BYTES:
        return job_data
    size = len(job_data.encode("utf-8", "replace"))
    if size <= RESULT_BYTES:
        return job_data
    told = f"the answer has {size:,} bytes, more than the {RESULT_BYTES:,} of a result"
    output: Any = json.loads(job_data).get("output")
    if isinstance(output, list) and len(output) > 1:
        return json.dumps({"output": [{"omitted": f"{told}; its {len(output)} chunks were all sent to /stream"}]})
    return json.dumps({"error": f"{told}. Ask for less, or stream it"})
