from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from worker.config import Config, load, variables
from worker.errors import ConfigInvalid
from worker.sources.base import SOURCES

ROOT = Path(__file__).parents[2]
TAKE = {"RUNPOD_WEBHOOK_GET_JOB": "http://platform/job-take/$ID?gpu=x"}
KNOWN = sorted({name for names in variables().values() for name in names})

# By field: its variable, what is written, and what is understood.
SET: dict[str, tuple[str, str, Any]] = {
    "model": ("OLLAMA_MODEL", "qwen3:8b", "qwen3:8b"),
    "hf_model": ("HF_MODEL", "org/repo", "org/repo"),
    "hf_quantization": ("HF_QUANTIZATION", "Q8_0", "Q8_0"),
    "hf_model_file": ("HF_MODEL_FILE", "a.gguf", "a.gguf"),
    "hf_token": ("HF_TOKEN", "hf_x", "hf_x"),
    "hf_endpoint": ("HF_ENDPOINT", "https://hub.example", "https://hub.example"),
    "model_cache": ("RUNPOD_MODEL_CACHE_DIR", "/cache", "/cache"),
    "template": ("OLLAMA_TEMPLATE", "{{ .Prompt }}", "{{ .Prompt }}"),
    "model_list": ("WORKER_MODELS", "a, b", ("a", "b")),
    "pull_on_demand": ("WORKER_PULL_ON_DEMAND", "1", True),
    "sources": ("WORKER_SOURCES", "hub local", ("hub", "local")),
    "object_store": ("WORKER_OBJECT_STORE", "s3://bucket/models", "s3://bucket/models"),
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "https://s3.example", "https://s3.example"),
    "aws_region": ("AWS_REGION", "eu-west-1", "eu-west-1"),
    "aws_key_id": ("AWS_ACCESS_KEY_ID", "id", "id"),
    "aws_secret": ("AWS_SECRET_ACCESS_KEY", "secret", "secret"),
    "aws_session": ("AWS_SESSION_TOKEN", "session", "session"),
    "hub_transfer": ("WORKER_HUB_TRANSFER", "1", True),
    "models": ("OLLAMA_MODELS", "/store", "/store"),
    "landing": ("WORKER_LANDING", "0", False),
    "landing_dir": ("WORKER_LANDING_DIR", "/landed", "/landed"),
    "jit_cache": ("WORKER_JIT_CACHE", "mirror", "mirror"),
    "prime": ("WORKER_PRIME", "1", True),
    "num_parallel": ("OLLAMA_NUM_PARALLEL", "4", 4),
    "max_concurrency": ("MAX_CONCURRENCY", "9", 9),
    "skip_projector": ("OLLAMA_SKIP_MMPROJ", "t", True),
    "host": ("OLLAMA_HOST", "127.0.0.1:9", "127.0.0.1:9"),
    "server_command": ("WORKER_SERVER_COMMAND", "ollama serve --x", "ollama serve --x"),
    "api_key": ("WORKER_API_KEY", "a key", "a key"),
    "allow_cpu": ("WORKER_ALLOW_CPU", "1", True),
    "allow_model_admin": ("WORKER_ALLOW_MODEL_ADMIN", "true", True),
    "openai_errors": ("WORKER_OPENAI_ERRORS", "fail", "fail"),
    "server_timeout_s": ("WORKER_SERVER_TIMEOUT_S", "1.5", 1.5),
    "weights_timeout_s": ("WORKER_WEIGHTS_TIMEOUT_S", "7200", 7200.0),
    "load_timeout_s": ("WORKER_LOAD_TIMEOUT_S", "60", 60.0),
    "stall_timeout_s": ("WORKER_STALL_TIMEOUT_S", "30", 30.0),
    "drain_timeout_s": ("WORKER_DRAIN_TIMEOUT_S", "5", 5.0),
    "delivery_timeout_s": ("WORKER_DELIVERY_TIMEOUT_S", "0.1", 0.1),
    "start_ns": ("WORKER_START_NS", "1700000000000000001", 1700000000000000001),
    "volume": ("WORKER_VOLUME", "/mnt", "/mnt"),
    "mode": ("WORKER_MODE", "load_balancer", "load_balancer"),
    "port": ("PORT", "8000", 8000),
    "port_health": ("PORT_HEALTH", "8001", 8001),
    "health_path": ("HEALTH_CHECK_PATH", "/health", "/health"),
    "port_metrics": ("PORT_METRICS", "9400", 9400),
    "cors_origins": ("WORKER_CORS_ORIGINS", "https://a.example", "https://a.example"),
    "take_url": ("RUNPOD_WEBHOOK_GET_JOB", "http://other/?x", "http://other/?x"),
}
FIELDS = pytest.mark.parametrize("field", Config.model_fields)


def config(**environ: str) -> Config:
    return load(TAKE | environ)


def problems(environ: Mapping[str, str]) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        load(environ)
    return caught.value.message


@FIELDS
def test_every_setting_is_read_from_its_variable(field: str) -> None:
    variable, written, understood = SET[field]
    assert variable in variables()[field]
    changed = config(**{variable: written})
    assert getattr(changed, field) == understood
    assert changed.model_dump(exclude={field}) == config().model_dump(exclude={field})
    assert Config.model_fields[field].default != understood


@FIELDS
@pytest.mark.parametrize("blank", ["", "  ", "\t\n"])
def test_a_blank_setting_is_unset(field: str, blank: str) -> None:
    if field == "take_url":
        assert "is missing" in problems({SET[field][0]: blank})
    else:
        assert config(**{SET[field][0]: blank}) == config()


@FIELDS
def test_a_setting_is_described(field: str) -> None:
    text = Config.model_fields[field].description or ""
    assert text.endswith(".")
    assert not set(text) & set("|\n"), "the text is a cell of a table"


@FIELDS
def test_space_around_a_value_does_not_count(field: str) -> None:
    variable, written, understood = SET[field]
    assert getattr(config(**{variable: f" {written}\n"}), field) == understood


def test_names_follow_the_rule() -> None:
    stock = ("OLLAMA_", "RUNPOD_", "MAX_CONCURRENCY", "PORT", "HEALTH_CHECK_PATH", "HF_", "AWS_")
    assert all(name.startswith(("WORKER_", *stock)) for name in KNOWN)
    assert "MODEL_NAME" not in KNOWN, "the console takes it for a Hugging Face repository and wants a token"
    assert len(KNOWN) == sum(map(len, variables().values())), "two settings read one variable"


def test_what_start_sh_sets_is_known() -> None:
    told = set(re.findall(r"\bWORKER_[A-Z_]+", (ROOT / "start.sh").read_text()))
    assert told
    assert told <= set(KNOWN)


def test_the_older_name_of_the_model_gives_way() -> None:
    assert config(OLLAMA_MODEL_NAME="b").model == "b"
    assert config(OLLAMA_MODEL="a", OLLAMA_MODEL_NAME="b").model == "a"
    assert config(OLLAMA_MODEL="", OLLAMA_MODEL_NAME="b").model == "b"


@pytest.mark.parametrize(
    ("given_", "taken"), [({}, 1), ({"OLLAMA_NUM_PARALLEL": "3"}, 3), ({"MAX_CONCURRENCY": "5"}, 5)]
)
def test_concurrency_is_the_servers_slots_unless_set(given_: dict[str, str], taken: int) -> None:
    assert config(**given_).concurrency == taken
    assert config(OLLAMA_NUM_PARALLEL="3", MAX_CONCURRENCY="2").concurrency == 2


@pytest.mark.parametrize("word", ["1", "true", "TRUE", "yes", "on", " True "])
def test_words_for_yes(word: str) -> None:
    assert config(WORKER_ALLOW_CPU=word).allow_cpu is True


@pytest.mark.parametrize("word", ["0", "false", "No", "off"])
def test_words_for_no(word: str) -> None:
    assert config(WORKER_ALLOW_CPU=word).allow_cpu is False


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("WORKER_ALLOW_CPU", "maybe", "valid boolean"),
        ("OLLAMA_NUM_PARALLEL", "0", "greater than or equal to 1"),
        ("OLLAMA_NUM_PARALLEL", "two", "valid integer"),
        ("MAX_CONCURRENCY", "-1", "greater than or equal to 1"),
        ("MAX_CONCURRENCY", "9" * 5000, "integer"),
        ("WORKER_STALL_TIMEOUT_S", "0", "greater than 0"),
        ("WORKER_STALL_TIMEOUT_S", "-3", "greater than 0"),
        ("WORKER_STALL_TIMEOUT_S", "nan", "greater than 0"),
        ("WORKER_STALL_TIMEOUT_S", "inf", "less than or equal to"),
        ("WORKER_STALL_TIMEOUT_S", "1e999", "less than or equal to"),
        ("WORKER_STALL_TIMEOUT_S", "10 minutes", "valid number"),
        ("WORKER_STALL_TIMEOUT_S", "1e10", "less than or equal to"),
        ("WORKER_OPENAI_ERRORS", "object", "'body' or 'fail'"),
        ("WORKER_START_NS", "0", "greater than 0"),
        ("WORKER_START_NS", "soon", "valid integer"),
    ],
)
def test_a_wrong_value_is_named_and_not_shown(variable: str, value: str, words: str) -> None:
    told = problems(TAKE | {variable: value})
    assert told.startswith(f"{variable}: ")
    assert words in told
    if len(value) > 2:
        assert value not in told


def test_every_limit_is_one_a_socket_takes() -> None:
    # Larger numbers, which some people write for "never", fail as late as in the first wait.
    longest = config(WORKER_LOAD_TIMEOUT_S="315360000").load_timeout_s
    with socket.socket() as peer:
        peer.settimeout(longest)
        with pytest.raises(OverflowError):
            peer.settimeout(1e10)


def test_a_missing_queue_is_explained() -> None:
    told = problems({})
    assert told.startswith("RUNPOD_WEBHOOK_GET_JOB is missing")
    assert "make run" in told


def test_every_problem_is_told_at_once() -> None:
    wrong = {"WORKER_ALOW_CPU": "1", "MAX_CONCURRENCY": "x", "WORKER_LOAD_TIMEOUT_S": "-1", "WORKER_ZZZZZZ": "1"}
    told = problems(wrong).split("; ")
    assert len(told) == 5
    assert sorted(line.partition(" ")[0].rstrip(":") for line in told) == sorted([*wrong, *TAKE])
    assert "WORKER_ALOW_CPU is not a setting of this worker (did you mean WORKER_ALLOW_CPU?)" in told


def test_names_of_others_are_left_alone() -> None:
    assert config(OLLAMA_DEBUG="1", MODEL_NAME="x", PATH="/bin", worker_allow_cpu="maybe") == config()
    assert config(WORKER_UNKNOWN="") == config()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().model = "other"  # type: ignore[misc]


# Left: OLLAMA_HOST. Right: where a server with that setting is reached, as Ollama's own envconfig reads it.
@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("127.0.0.1", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),  # noqa: S104 - read, not bound
        ("0.0.0.0:80", "http://127.0.0.1:80"),
        (":8080", "http://127.0.0.1:8080"),
        ("localhost", "http://localhost:11434"),
        ("localhost:", "http://localhost:11434"),
        ("http://127.0.0.1", "http://127.0.0.1:80"),
        ("http://127.0.0.1:99/", "http://127.0.0.1:99"),
        ("http://h/path", "http://h:80"),
        ("https://h", "http://h:443"),
        ("other://h", "http://h:11434"),
        ("h:1/path", "http://h:1"),
        ("h:abc", "http://h:11434"),
        ("h:65535", "http://h:65535"),
        ("h:65536", "http://h:11434"),
        ("h:-1", "http://h:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:80", "http://[::1]:80"),
        ("[::]:5", "http://127.0.0.1:5"),
        ("::", "http://127.0.0.1:11434"),
        ('"1.2.3.4:5"', "http://1.2.3.4:5"),
    ],
)
def test_the_servers_address_is_read_as_the_server_reads_it(host: str, url: str) -> None:
    assert config(OLLAMA_HOST=host).server_url == url


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LIKELY = st.sampled_from(["", " ", "0", "1", "-1", "1e400", "٣", "1_000", "true", "body", "nan", "::1", "h:9", "a b'"])


@settings(deadline=None, database=None, max_examples=400)
@given(
    environ=st.dictionaries(st.sampled_from(KNOWN) | ANY_TEXT.map("WORKER_{}".format) | ANY_TEXT, LIKELY | ANY_TEXT),
    take=st.sampled_from([TAKE, {}]),
)
def test_any_environment_makes_a_config_or_one_sentence(environ: dict[str, str], take: dict[str, str]) -> None:
    try:
        made = load(environ | take)
    except ConfigInvalid as exc:
        made, told = None, exc.sentence()
    if made is None:
        assert told
        assert "\n" not in told
        return
    assert made.concurrency >= 1
    assert made.model.strip()
    for name, value in made.model_dump().items():
        assert not name.endswith("_timeout_s") or 0 < value < 1e9
    assert all(not name.startswith("WORKER_") or name in KNOWN or not environ[name].strip() for name in environ)


@settings(deadline=None, database=None, max_examples=300)
@given(host=st.text(st.sampled_from(":/[]0.9a"), min_size=1, max_size=12))
def test_any_host_makes_an_address_with_a_port(host: str) -> None:
    url = config(OLLAMA_HOST=host).server_url
    assert re.fullmatch(r"http://[^/]+:\d{1,5}", url)
    if re.fullmatch(r"[a0-9.]+(:\d+)?", host):
        parts = urlsplit(url)
        assert parts.hostname
        assert 0 <= (parts.port or 0) <= 65535


@pytest.mark.parametrize(("word", "truth"), [("1", True), ("TRUE", True), ("True", True), ("0", False), ("f", False)])
def test_the_servers_truth_values_are_read_as_the_server_reads_them(word: str, *, truth: bool) -> None:
    assert config(OLLAMA_SKIP_MMPROJ=word).skip_projector is truth


@pytest.mark.parametrize("word", ["yes", "on", "2", "tRUE"])
def test_a_truth_value_the_server_would_not_understand_is_a_mistake(word: str) -> None:
    assert "OLLAMA_SKIP_MMPROJ: value error, should be 1 or 0" in problems(TAKE | {"OLLAMA_SKIP_MMPROJ": word})


def test_a_load_balancers_worker_needs_no_queue() -> None:
    assert load({"WORKER_MODE": "load_balancer"}).take_url is None
    assert "RUNPOD_WEBHOOK_GET_JOB is missing" in problems({"WORKER_MODE": " queue "})
    assert load({"WORKER_MODE": "local"}).take_url is None


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "80.5"])
def test_a_port_is_a_port(port: str) -> None:
    for name in ("PORT", "PORT_HEALTH", "PORT_METRICS"):
        assert f"{name}: input should be" in problems(TAKE | {name: port})


@pytest.mark.parametrize("path", ["ping", "/a b", "/a?b", "/{a}", "/#"])
def test_the_path_of_health_is_a_path(path: str) -> None:
    assert "HEALTH_CHECK_PATH" in problems(TAKE | {"HEALTH_CHECK_PATH": path})


@pytest.mark.parametrize("name", ["HF_MODEL", "OLLAMA_MODEL", "WORKER_MODELS"])
def test_a_model_that_cannot_be_named_is_told_with_all_other_mistakes(name: str) -> None:
    found = problems(TAKE | {name: "a/b/c/d/e", "PORT": "x"})
    assert f"{name}: 'a/b/c/d/e'" in found
    assert "PORT: " in found


def test_sources_are_those_of_the_chain() -> None:
    assert config(WORKER_SOURCES=" ".join(SOURCES)).sources == SOURCES
    assert "WORKER_SOURCES: input should be 'local', " in problems(TAKE | {"WORKER_SOURCES": "hub,disk"})


def test_secrets_are_not_shown() -> None:
    secret = config(HF_TOKEN="hf_x1", AWS_SECRET_ACCESS_KEY="s3_x2", AWS_SESSION_TOKEN="s3_x3", WORKER_API_KEY="key_x4")
    assert not re.search(r"x[1-4]", repr(secret))


def test_a_template_that_is_plainly_broken_is_told() -> None:
    told = problems(TAKE | {"OLLAMA_TEMPLATE": "{{ if .System }}{{ .System }}"})
    assert told == "OLLAMA_TEMPLATE: value error, the template's {{ if }} is not closed: it needs an {{ end }}"
