"""A client's JSON body, judged and turned into an order."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from worker.local.queue.errors import Refused
from worker.local.queue.job import Order
from worker.local.queue.limits import Limits


async def read_json(request: web.Request, limit_bytes: int) -> Any:
    """Return the JSON value of a body; raises Refused when it is too large or no JSON."""
    return parse_json(await request.read(), limit_bytes)


def parse_json(raw: bytes, limit_bytes: int) -> Any:
    """Return the JSON value of `raw`; raises Refused when it is too large or no JSON."""
    if len(raw) > limit_bytes:
        raise Refused(f"the body has {len(raw)} bytes, {limit_bytes} are allowed")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not valid JSON: {error}") from None


def parse_order(body: Any, limits: Limits, *, is_sync: bool) -> Order:
    """Return the order in the body of /run or /runsync; raises Refused. Unknown top-level keys are dropped."""
    if not isinstance(body, dict):
        raise Refused('the body must be a JSON object like {"input": {...}}')
    if body.get("input") is None:
        raise Refused('"input" is missing from the body')
    policy = body.get("policy") or {}
    if not isinstance(policy, dict):
        raise Refused('"policy" must be an object')
    webhook = body.get("webhook")
    if webhook is not None and not (isinstance(webhook, str) and webhook.startswith(("http://", "https://"))):
        raise Refused('"webhook" must be an http or https URL')
    timeout_s = _seconds(policy, "executionTimeout", limits.execution_timeout_range_s)
    ttl_s = _seconds(policy, "ttl", limits.ttl_range_s)
    return Order(
        job_input=body["input"],
        execution_timeout_s=limits.execution_timeout_s if timeout_s is None else timeout_s,
        ttl_s=limits.ttl_s if ttl_s is None else ttl_s,
        retention_s=limits.runsync_retention_s if is_sync else limits.run_retention_s,
        low_priority=bool(policy.get("lowPriority", False)),
        webhook=webhook,
        extras={key: body[key] for key in ("webhook", "s3Config") if body.get(key) is not None},
        is_sync=is_sync,
    )


def parse_ms(text: str, name: str, allowed_s: tuple[float, float]) -> float:
    """Return a query parameter given in milliseconds as seconds; raises Refused."""
    try:
        value_ms = int(text)
    except ValueError:
        raise Refused(f'"{name}" must be a whole number of milliseconds') from None
    return _within(value_ms, name, allowed_s)


def _seconds(policy: dict[str, Any], name: str, allowed_s: tuple[float, float]) -> float | None:
    value_ms = policy.get(name)
    if value_ms is None:
        return None
    if isinstance(value_ms, bool) or not isinstance(value_ms, (int, float)):
        raise Refused(f'"policy.{name}" must be a number of milliseconds')
    return _within(value_ms, f"policy.{name}", allowed_s)


def _within(value_ms: float, name: str, allowed_s: tuple[float, float]) -> float:
    low_s, high_s = allowed_s
    if not low_s <= value_ms / 1000 <= high_s:
        raise Refused(f'"{name}" must be between {low_s * 1000:.0f} and {high_s * 1000:.0f} ms')
    return value_ms / 1000
