import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.timeline import main

STOCK = str(Path(__file__).parent / "logs" / "stock_docker.log")
COMMAND = [sys.executable, "-c", "import sys; from worker.timeline import main; sys.exit(main(sys.argv[1:]))"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def own_file(own_log: str, tmp_path: Path) -> str:
    path = tmp_path / "own.log"
    path.write_text(own_log, encoding="utf-8")
    return str(path)


def test_one_log_is_drawn(own_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([own_file, "--width", "80"]) == 0
    assert capsys.readouterr().out.startswith("Cold start: 5425 ms  container.started → job.chunk_posted\n")


def test_two_logs_are_compared(own_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([STOCK, own_file]) == 0
    out = capsys.readouterr().out
    assert "total                        60.650      5.425    -55.225      -91%" in out
    assert "note: they end at different events: job.token_received, job.chunk_posted" in out


def test_data_instead_of_a_picture(own_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([own_file, "--json"]) == 0
    assert [boot["total_ns"] for boot in json.loads(capsys.readouterr().out)["boots"]] == [5_425_000_000]
    assert main([STOCK, own_file, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"before", "after", "differences"}


@pytest.mark.parametrize("width", [72, 120])
def test_the_width_is_taken(own_file: str, capsys: pytest.CaptureFixture[str], width: int) -> None:
    assert main([own_file, "--width", str(width)]) == 0
    axis = capsys.readouterr().out.splitlines()[2]
    assert len(axis) == width


@pytest.mark.parametrize("width", ["-3", "5", "71", "wide", "²", ""])
def test_a_width_in_which_nothing_would_fit_is_refused(
    own_file: str, capsys: pytest.CaptureFixture[str], width: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([own_file, f"--width={width}"])
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"argument --width: {width!r} is no width the picture fits in: say 72 or more")


def test_a_narrow_terminal_gets_the_least_that_can_be_read(
    own_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main([own_file]) == 0
    assert len(capsys.readouterr().out.splitlines()[2]) == 72


def test_ascii_and_colour_can_be_asked_for(own_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([own_file, "--ascii"]) == 0
    assert capsys.readouterr().out.isascii()
    assert main([own_file, "--colour"]) == 0
    assert "\x1b[1mCold start" in capsys.readouterr().out


def test_a_terminal_without_unicode_gets_ascii(own_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert main([own_file]) == 0
    sys.stdout.flush()
    assert b"container.started -> job.chunk_posted" in raw.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_log_is_read_in_the_encodings_shells_write(
    log: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str], encoding: str
) -> None:
    path = tmp_path / "shell.log"
    path.write_bytes(log("stock_docker.log").encode(encoding))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.startswith("Cold start: 60.650 s")


def test_standard_input_is_a_log_too(own_log: str) -> None:
    done = subprocess.run(
        [*COMMAND, "-", "--json"], input=own_log.encode(), capture_output=True, check=True, cwd=ROOT, timeout=60
    )
    assert json.loads(done.stdout)["boots"][0]["own"]


def test_a_reader_that_leaves_early_is_no_error(own_file: str) -> None:
    process = subprocess.Popen([*COMMAND, own_file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.log")
    assert main([missing]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"timeline: {missing}: No such file or directory\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the log is empty"),
        (bytes(range(256)) * 9, "the log has neither the worker's events nor a line of Ollama's start"),
        (b"just\nwords\n", "the log has neither the worker's events nor a line of Ollama's start"),
        (b"llama_context: constructing llama_context\n", "no line of Ollama in it has a time"),
    ],
)
def test_an_unusable_log_is_one_sentence(
    tmp_path: Path, own_file: str, capsys: pytest.CaptureFixture[str], content: bytes, reason: str
) -> None:
    path = tmp_path / "bad.log"
    path.write_bytes(content)
    for argv in ([str(path)], [own_file, str(path)]):
        assert main(argv) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"timeline: {path}: {reason}")
        assert captured.err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["a", "b", "c"], ["a", "--width", "wide"]])
def test_a_wrong_command_line_is_explained(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage: python -m worker timeline" in capsys.readouterr().err
