"""Whatever a job's input is, parse makes a request of it or says what is wrong; FUZZ_EXAMPLES says how many."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.job_inputs import JOBS, LEVELS, deepened, examples
from worker import job
from worker.errors import JobError
from worker.job import Request
from worker.routes import Framing


@settings(deadline=None, database=None, max_examples=examples(3000), suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.timeout(3600)
@given(template=JOBS, levels=LEVELS, allow_admin=st.booleans(), allow_images=st.booleans())
def test_any_json_is_a_request_or_an_error_with_a_sentence(
    template: Any, levels: int, *, allow_admin: bool, allow_images: bool
) -> None:
    value = deepened(template, levels)
    request = parsed(value, allow_admin=allow_admin, allow_images=allow_images)
    if isinstance(request, JobError):
        assert request.sentence()
        assert "\n" not in request.sentence()
        assert request.status in {400, 403}
        # Its sender can be told, whatever it sent.
        addressed = job.addressed(value)
        assert addressed is None or json.dumps(addressed.route.path)
        return
    assert (request.body is None) == (request.route.method == "GET")
    assert isinstance(request.model, str)
    assert allow_admin or not request.route.admin
    assert request.framing is (request.route.framing if request.stream else Framing.JSON)
    if isinstance(request.body, str):
        check_json(request, request.body)
    elif request.body is not None:
        assert request.route.form
        assert request.content_type.startswith("multipart/form-data; boundary=")


def parsed(value: Any, **allowed: bool) -> Request | JobError:
    try:
        return job.parse(value, default_model="default:1b", **allowed)
    except JobError as exc:
        return exc


def check_json(request: Request, text: str) -> None:
    """Read the body as strictly as the server does."""
    assert text.isascii()
    sent = json.loads(text, parse_constant=pytest.fail)
    assert isinstance(sent, dict)
    assert sent.get("model") or not request.route.needs_model
    # What the server is told and what is expected of it are the same.
    asked = bool(sent.get("stream", request.route.streams))
    assert request.stream == (asked and request.route.framing is not Framing.JSON)
