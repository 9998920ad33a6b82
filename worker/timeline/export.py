"""Timelines as plain data for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from worker.timeline.compare import differences
from worker.timeline.findings import findings
from worker.timeline.model import Timeline
from worker.timeline.spans import Stretch


def to_dict(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON-able data; times are nanoseconds after `start_ns`, which is nanoseconds since 1970."""
    start_ns = timeline.start_ns
    return {
        "start_ns": start_ns,
        "start_event": timeline.start_event,
        "end_event": timeline.end_event,
        "own": timeline.own,
        "total_ns": timeline.total_ns,
        "covered_ns": timeline.covered_ns,
        "gap_ns": timeline.gap_ns,
        "idle_ns": timeline.idle_ns,
        "spans": [_stretch(span, start_ns) for span in timeline.spans],
        "gaps": [_stretch(gap, start_ns) for gap in timeline.gaps],
        "critical_path": [_stretch(step, start_ns) for step in timeline.path],
        "jobs": [dataclasses.asdict(job) | {"accepted_ns": job.accepted_ns - start_ns} for job in timeline.jobs],
        "findings": [dataclasses.asdict(found) | {"sentence": found.sentence} for found in findings(timeline)],
        "notes": list(timeline.notes),
    }


def comparison(before: Timeline, after: Timeline) -> dict[str, Any]:
    """Return both timelines and their differences as JSON-able data."""
    rows = [dataclasses.asdict(row) | {"change_ns": row.change_ns} for row in differences(before, after)]
    return {"before": to_dict(before), "after": to_dict(after), "differences": rows}


def _stretch(stretch: Stretch, start_ns: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": stretch.name,
        "start_ns": stretch.start_ns - start_ns,
        "end_ns": stretch.end_ns - start_ns,
        "state": stretch.state.value,
    }
    if stretch.meaning:
        told["meaning"] = stretch.meaning
    if stretch.parts:
        told["parts"] = [_stretch(part, start_ns) for part in stretch.parts]
    return told
