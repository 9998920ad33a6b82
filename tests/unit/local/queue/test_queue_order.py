from __future__ import annotations

import json
from typing import Any

import pytest

from worker.local.queue import Limits, Refused
from worker.local.queue.order import parse_json, parse_ms, parse_order

LIMITS = Limits(execution_timeout_s=600, ttl_s=3600, run_retention_s=1800, runsync_retention_s=60)


def test_an_order_without_policy_has_the_defaults() -> None:
    order = parse_order({"input": {"n": 1}}, LIMITS, is_sync=False)
    assert order.job_input == {"n": 1}
    assert (order.execution_timeout_s, order.ttl_s, order.retention_s) == (600, 3600, 1800)
    assert (order.low_priority, order.webhook, order.extras) == (False, None, {})


def test_results_of_runsync_are_kept_for_less_time() -> None:
    assert parse_order({"input": {}}, LIMITS, is_sync=True).retention_s == 60


def test_the_policy_is_in_milliseconds() -> None:
    policy = {"executionTimeout": 5000, "ttl": 86_400_000, "lowPriority": True}
    order = parse_order({"input": {}, "policy": policy}, LIMITS, is_sync=False)
    assert (order.execution_timeout_s, order.ttl_s, order.low_priority) == (5, 86_400, True)


def test_known_top_level_keys_travel_to_the_worker_and_others_are_dropped() -> None:
    body = {"input": {}, "webhook": "https://x/y", "s3Config": {"bucketName": "b"}, "id": "mine", "anything": 1}
    order = parse_order(body, LIMITS, is_sync=False)
    assert order.extras == {"webhook": "https://x/y", "s3Config": {"bucketName": "b"}}
    assert order.webhook == "https://x/y"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ([], "must be a JSON object"),
        ("text", "must be a JSON object"),
        ({}, '"input" is missing'),
        ({"input": None}, '"input" is missing'),
        ({"input": {}, "policy": 5}, '"policy" must be an object'),
        ({"input": {}, "webhook": "ftp://x"}, '"webhook" must be'),
        ({"input": {}, "webhook": 5}, '"webhook" must be'),
        ({"input": {}, "policy": {"executionTimeout": 4999}}, "between 5000 and 604800000 ms"),
        ({"input": {}, "policy": {"executionTimeout": "6000"}}, "must be a number"),
        ({"input": {}, "policy": {"executionTimeout": True}}, "must be a number"),
        ({"input": {}, "policy": {"ttl": 9999}}, "between 10000 and 604800000 ms"),
        ({"input": {}, "policy": {"ttl": 604_800_001}}, '"policy.ttl"'),
    ],
)
def test_a_bad_order_is_refused_with_a_sentence(body: Any, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        parse_order(body, LIMITS, is_sync=False)


def test_falsy_inputs_are_inputs() -> None:
    assert [parse_order({"input": value}, LIMITS, is_sync=False).job_input for value in ({}, [], 0, "")] == [
        {},
        [],
        0,
        "",
    ]


def test_the_size_limit_is_inclusive() -> None:
    raw = json.dumps("x" * 98).encode()
    assert len(raw) == 100
    assert parse_json(raw, 100) == "x" * 98
    with pytest.raises(Refused, match="100 bytes, 99 are allowed"):
        parse_json(raw, 99)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused, match="not valid JSON"):
        parse_json(raw, 1_000_000)


@pytest.mark.parametrize("text", ["", "abc", "1.5", "-1", "999", "300001", "1e3"])
def test_a_bad_wait_is_refused(text: str) -> None:
    with pytest.raises(Refused, match='"wait" must be'):
        parse_ms(text, "wait", (1.0, 300.0))


def test_a_wait_is_returned_in_seconds() -> None:
    assert parse_ms("1500", "wait", (1.0, 300.0)) == 1.5
