import pytest

from worker.events import VOCABULARY
from worker.timeline import foreign, landmarks, phases
from worker.timeline.landmarks import Landmark

SLOG = 'time=2026-11-30T03:22:13.204Z level=INFO source=x.go:1 msg="{}"'


@pytest.mark.parametrize(
    ("line", "name", "fields"),
    [
        (SLOG.format("server config") + ' env="map[A:1 B:]"', "server.configured", {"env": "map[A:1 B:]"}),
        ('routes.go:1125: INFO server config env="map[]"', "server.configured", {"env": '"map[]"'}),
        (SLOG.format("Listening on [::]:11434 (version 0.32.15)"), "server.listened", {"version": "0.32.15"}),
        (SLOG.format("discovering available GPUs..."), "discovery.started", {}),
        (SLOG.format("looking for compatible GPUs"), "discovery.started", {}),
        (
            SLOG.format("inference compute") + " id=cpu library=cpu compute=",
            "gpu.discovered",
            {"library": "cpu", "compute": ""},
        ),
        (
            SLOG.format("vram-based default context") + " default_num_ctx=262144",
            "context.defaulted",
            {"default_num_ctx": 262144},
        ),
        (SLOG.format("downloading 6a0746a1ec1a in 16 291 MB part(s)"), "download.started", {"digest": "6a0746a1ec1a"}),
        (SLOG.format("starting llama-server") + ' cmd="/x -m \\"y\\""', "runner.spawned", {"cmd": '/x -m "y"'}),
        (SLOG.format("starting llama server") + " cmd=/x", "runner.spawned", {"cmd": "/x"}),
        (SLOG.format("llama-server started in 40.81 seconds"), "runner.started", {"took_s": 40.81}),
        (SLOG.format("llama runner started in 2.50 seconds"), "runner.started", {"took_s": 2.5}),
        (SLOG.format("disabling mmap for llama-server load due to host memory pressure"), "mmap.disabled", {}),
        ("start container for example/image:1: begin", "container.begun", {}),
        ("--- Starting Serverless Worker |  Version 1.12.0 ---", "sdk_loop.announced", {"version": "1.12.0"}),
        (
            "load_backend: loaded CUDA backend from /x/cuda_v12/y.so",
            "backend.loaded",
            {"backend": "CUDA", "path": "/x/cuda_v12/y.so"},
        ),
        ("common_fit_para: fitting params to free memory took 0.80 seconds", "fit.finished", {"took_s": 0.8}),
        ("print_info: file size   = 18.40 GiB (4.89 BPW)", "file.sized", {"size": 18.4, "unit": "GiB"}),
        (
            "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
            "tensors.started",
            {"mode": "mmap"},
        ),
        (
            "load_tensors: loading model tensors, this can take a while... (mmap = true)",
            "tensors.started",
            {"mmap": "true"},
        ),
        ("load_tensors: loading model tensors, this can take a while...", "tensors.started", {}),
        ("load_tensors: offloading output layer to GPU", "tensors.mapped", {}),
        ("load_tensors: offloaded 48/49 layers to GPU", "layers.offloaded", {"on_gpu": 48, "layers": 49}),
        ("llama_context: n_ctx         = 8192", "context.sized", {"n_ctx": 8192}),
        ("srv    load_model: initializing slots, n_slots = 2", "slots.started", {"slots": 2}),
        ("srv  llama_server: model loaded", "model.loaded", {}),
        ("main: server is listening on http://127.0.0.1:1 - starting", "runner.listened", {}),
        ("slot launch_slot_: id  0 | task 0 | processing task, is_child = 0", "slot.launched", {"task": 0}),
        (
            "slot print_timing: id  1 | task 35 |        eval time =  21564.81 ms /   120 tokens (181.22 ms)",
            "output.timed",
            {"task": 35, "decode_ms": 21564.81, "output_tokens": 120},
        ),
        (
            "slot print_timing: id  1 | task 35 | prompt eval time =   2212.26 ms /    36 tokens (61.45 ms)",
            "prompt.timed",
            {"task": 35, "prefill_ms": 2212.26, "prompt_tokens": 36},
        ),
        (
            "prompt eval time =     182.78 ms /   237 tokens ( 0.77 ms)",
            "prompt.timed",
            {"prefill_ms": 182.78, "prompt_tokens": 237},
        ),
        (
            "       eval time =     342.29 ms /    13 tokens (26.33 ms)",
            "output.timed",
            {"decode_ms": 342.29, "output_tokens": 13},
        ),
    ],
)
def test_a_line_is_named_and_its_numbers_read(line: str, name: str, fields: dict[str, object]) -> None:
    assert landmarks.recognize(line) == Landmark(name, fields)


def test_an_access_line_tells_a_request() -> None:
    line = '[GIN] 2026/11/30 - 03:23:14 | 200 |  50.05s |       127.0.0.1 | POST     "/api/chat"'
    found = landmarks.recognize(line)
    assert found is not None
    assert found.name == "request.finished"
    assert found.fields == {
        "date": "2026/11/30 - 03:23:14",
        "status": 200,
        "took": "50.05s",
        "verb": "POST",
        "route": "/api/chat",
    }


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        SLOG.format("waiting for llama-server to start responding"),
        # The message decides, not what an argument happens to say.
        SLOG.format("subprocess") + ' note="starting llama-server"',
        "llama_model_loader: - kv 3: general.name str = warming up",
        "the model loaded: fine",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert landmarks.recognize(line) is None


def test_the_sdk_tells_when_a_job_starts_and_ends() -> None:
    assert landmarks.recognize_sdk({"requestId": "a", "message": "Started."}) == Landmark(
        "sdk_job.started", {"job_id": "a"}
    )
    assert landmarks.recognize_sdk({"requestId": "a", "message": "Finished."}) == Landmark(
        "sdk_job.finished", {"job_id": "a"}
    )
    assert landmarks.recognize_sdk({"requestId": None, "message": "Started."}) is None
    assert landmarks.recognize_sdk({"requestId": "a", "message": "Stopping job."}) is None


def test_ollamas_own_time_is_found_only_where_its_logger_writes_it() -> None:
    assert landmarks.slog_time(SLOG.format("x")) == "2026-11-30T03:22:13.204Z"
    assert landmarks.slog_time('say time=2026-11-30T03:22:13.204Z level=INFO msg="x"') is None


def test_landmarks_and_events_never_share_a_name() -> None:
    names = {name for name, _ in (*landmarks._MESSAGES, *landmarks._LINES)} | set(landmarks._SDK_MESSAGES.values())
    assert not names & set(VOCABULARY)
    opened = {name for table, _ in phases.PHASES.values() for name in table}
    assert opened <= names
    assert set(foreign._SAME) <= names
