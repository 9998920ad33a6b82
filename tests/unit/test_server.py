from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from worker.errors import ServerExited, ServerTimeout
from worker.local.process import ROOT, wait_for
from worker.server import LINE_BYTES, TAIL_LINES, Server

if TYPE_CHECKING:
    from tests.conftest import Marked, Written

LIMIT_S = 30.0
SILENT = "It logged nothing, as no Ollama does: check WORKER_SERVER_COMMAND (with `make run`: OLLAMA_BIN)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
# A parent that ends when asked, and a child of its group that does not.
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print("child", child.pid, flush=True)
"""

Spawn = Callable[..., Server]


@pytest.fixture
def exits() -> list[str]:
    return []


@pytest.fixture
def spawn(written: Written, marked: Marked, exits: list[str]) -> Iterator[Spawn]:
    """Start `python -c code`, or `argv`, as the server."""
    servers = []

    def _spawn(code: str = "", *, argv: list[str] | None = None, **environ: str) -> Server:
        server = Server(written.writer, on_exit=lambda: exits.append(threading.current_thread().name))
        servers.append(server)
        environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", **marked.environ, **environ}
        server.spawn(argv or [sys.executable, "-c", code], environment)
        return server

    yield _spawn
    for server in servers:
        server.stop(grace_s=0.1)


def wait_logged(written: Written, start: str) -> str:
    def lines() -> list[str]:
        return [record["line"] for record in written.all("server.logged") if record["line"].startswith(start)]

    assert wait_for(lambda: bool(lines()), LIMIT_S), written.records
    return lines()[0]


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_server_leads_a_process_group_of_its_own(spawn: Spawn, written: Written) -> None:
    spawn("import time; time.sleep(600)")
    record = written.one("server.spawned")
    assert record["argv"] == [sys.executable, "-c", "import time; time.sleep(600)"]
    assert os.getpgid(record["pid"]) == record["pid"] != os.getpgid(0)


def test_its_environment_is_the_given_one_and_no_other(
    spawn: Spawn, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "1")
    server = spawn("import os; print('has', 'GIVEN' in os.environ, 'SECRET_OF_THE_WORKER' in os.environ)", GIVEN="1")
    assert server.wait_ended(LIMIT_S)
    assert wait_logged(written, "has") == "has True False"


def test_both_of_its_outputs_are_logged_in_order(spawn: Spawn, written: Written) -> None:
    server = spawn("import sys; print('one'); print('two', file=sys.stderr); print(); print('three')")
    assert server.wait_ended(LIMIT_S)
    assert [record["line"] for record in written.all("server.logged")] == ["one", "two", "three"]
    assert server.tail_hint() == "Last of its log: one | two | three"


def test_a_long_line_is_cut_and_nothing_of_it_is_lost(spawn: Spawn, written: Written) -> None:
    server = spawn("print('x' * 100_000 + 'end')")
    assert server.wait_ended(LIMIT_S)
    lines = [record["line"] for record in written.all("server.logged")]
    assert "".join(lines) == "x" * 100_000 + "end"
    assert max(map(len, lines)) <= LINE_BYTES


def test_binary_output_stays_readable_text(spawn: Spawn, written: Written) -> None:
    server = spawn(r"import os; os.write(1, b'\xff\xfe\x00caf\xc3\xa9\r\nnext\n')")
    assert server.wait_ended(LIMIT_S)
    assert [r["line"] for r in written.all("server.logged")] == ["\\xff\\xfe\x00caf\u00e9", "next"]


def test_only_the_end_of_a_long_log_is_kept(spawn: Spawn) -> None:
    server = spawn("for n in range(500): print('line', n)\nraise SystemExit(3)")
    assert server.wait_ended(LIMIT_S)
    with pytest.raises(ServerExited) as caught:
        server.check()
    assert caught.value.log_tail == [f"line {n}" for n in range(500 - TAIL_LINES, 500)]
    assert caught.value.sentence().startswith(
        "the server exited with code 3: line 499. Before that it logged: line 497 | line 498"
    )


def test_a_program_that_is_not_there_is_named(spawn: Spawn, written: Written) -> None:
    with pytest.raises(ServerExited, match="no-such-server: not found or not executable") as caught:
        spawn(argv=["no-such-server", "serve"])
    assert caught.value.return_code == 127
    assert caught.value.hint.startswith("Install Ollama, or set WORKER_SERVER_COMMAND")
    with pytest.raises(ServerExited) as caught:
        spawn(argv=["/nosuch/ollama", "serve"], WORKER_SERVER_COMMAND="/nosuch/ollama serve")
    assert caught.value.hint.startswith("Check WORKER_SERVER_COMMAND (with `make run`: OLLAMA_BIN): the program must")
    assert written.records == []


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127.0.0.1:{taken}", "end what listens there, or set OLLAMA_HOST to a free port"),
        ("192.0.2.1:bar", "set it to an address of this machine and a port, as 127.0.0.1:11434"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_told_once_with_its_variable(
    spawn: Spawn, host: str, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = host.format(taken=taken.getsockname()[1])
        environ = {"OLLAMA_HOST": host, "HOME": "/nowhere", "PYTHONPATH": str(ROOT)}
        server = spawn(argv=[sys.executable, "-m", "worker.local.engine", "serve"], **environ)
        assert server.wait_ended(LIMIT_S)
    with pytest.raises(ServerExited, match="exited with code 1: Error: listen tcp: ") as caught:
        server.check()
    assert caught.value.sentence().count("listen tcp") == 1
    assert caught.value.hint.startswith(f"OLLAMA_HOST is {host}: {said}")


def test_a_program_that_cannot_be_executed_ends_the_server(spawn: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    server = spawn(argv=[str(program)])
    assert server.wait_ended(LIMIT_S)
    with pytest.raises(ServerExited, match=r"exited with code 12[67]: .*broken.*No such file"):
        server.check()


@pytest.mark.parametrize(
    ("code", "return_code", "sentence"),
    [
        ("raise SystemExit(7)", 7, f"the server exited with code 7. {SILENT}"),
        ("", 0, f"the server exited with code 0. {SILENT}"),
        ("import os; os.kill(os.getpid(), 9)", -9, "the server was killed by signal 9. It logged nothing"),
    ],
)
def test_an_end_of_its_own_is_reported_once_and_is_terminal(
    spawn: Spawn, written: Written, exits: list[str], code: str, return_code: int, sentence: str
) -> None:
    server = spawn(code)
    assert wait_for(lambda: bool(exits), LIMIT_S)
    assert server.ended
    assert written.one("server.exited")["return_code"] == return_code
    for _ in range(2):
        with pytest.raises(ServerExited) as caught:
            server.check()
        assert (caught.value.return_code, caught.value.sentence()) == (return_code, sentence)
    server.stop()
    assert exits == ["server-watch"]
    assert written.all("server.stopped") == []


def test_the_last_line_is_known_when_the_end_is_known(spawn: Spawn) -> None:
    # More output than a pipe holds: the reader is still at work when the process is gone.
    server = spawn("import os; os.write(1, b'filler\\n' * 9000 + b'the reason\\n'); os._exit(1)")
    assert server.wait_ended(LIMIT_S)
    with pytest.raises(ServerExited, match="exited with code 1: the reason"):
        server.check()


def test_stopping_is_no_exit(spawn: Spawn, written: Written, exits: list[str]) -> None:
    server = spawn("import time; print('up'); time.sleep(600)")
    wait_logged(written, "up")
    server.stop()
    server.stop()
    assert server.ended
    assert exits == []
    assert written.all("server.exited") == []
    assert written.one("server.stopped")["return_code"] == -signal.SIGTERM


def test_stopping_before_the_start_keeps_it_from_starting(written: Written) -> None:
    server = Server(written.writer)
    server.stop()
    server.check()
    assert not server.ended
    with pytest.raises(ServerExited, match="stopped before it was started"):
        server.spawn([sys.executable, "-c", ""], {"PATH": os.environ["PATH"]})
    assert written.records == []


def test_two_threads_may_stop_it_at_once(spawn: Spawn, written: Written) -> None:
    server = spawn(STUBBORN)
    wait_logged(written, "up")
    threads = [threading.Thread(target=server.stop, args=(0.2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert server.ended
    assert written.one("server.stopped")["return_code"] == -signal.SIGKILL


def test_a_grandchild_that_ignores_sigterm_goes_with_it(spawn: Spawn, written: Written) -> None:
    server = spawn(f"{FAMILY}\nimport time; time.sleep(600)")
    child = int(wait_logged(written, "child").split()[1])
    server.stop()
    assert wait_for(lambda: is_gone(child), LIMIT_S)


def test_a_crashed_server_leaves_no_grandchild(spawn: Spawn, written: Written) -> None:
    server = spawn(f"{FAMILY}\nraise SystemExit(1)")
    child = int(wait_logged(written, "child").split()[1])
    assert server.wait_ended(LIMIT_S)
    assert wait_for(lambda: is_gone(child), LIMIT_S)


def test_a_killed_worker_takes_its_server_along(marked: Marked) -> None:
    code = """
import os, sys
from worker.events import EventWriter
from worker.server import Server
server = Server(EventWriter())
server.spawn([sys.executable, "-c", "import time; time.sleep(600)"], dict(os.environ))
server.wait_ended(600)
"""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **marked.environ}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True) as worker:
        assert '"event":"server.spawned"' in worker.stdout.readline()
        (server,) = psutil.Process(worker.pid).children()
        worker.kill()
    assert wait_for(lambda: is_gone(server.pid), LIMIT_S)


def test_without_setpriv_it_starts_all_the_same(
    spawn: Spawn, written: Written, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert shutil.which("setpriv"), "this image has no setpriv: a killed worker would leave its server behind"
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    spawn("import time; print('up'); time.sleep(600)", PATH=path)
    wait_logged(written, "up")


def test_waiting_ends_when_the_attempt_succeeds(spawn: Spawn) -> None:
    server = spawn("import time; time.sleep(600)")
    answers = iter([False, False, True])
    server.wait_until(lambda: next(answers), "start", LIMIT_S)
    assert next(answers, None) is None


def test_waiting_ends_when_the_server_does(spawn: Spawn) -> None:
    server = spawn("print('no GPU'); raise SystemExit(2)")
    with pytest.raises(ServerExited, match="exited with code 2: no GPU"):
        server.wait_until(lambda: False, "start", LIMIT_S)


def test_waiting_has_a_limit(spawn: Spawn, written: Written) -> None:
    server = spawn("import time; print('thinking'); time.sleep(600)")
    wait_logged(written, "thinking")
    with pytest.raises(ServerTimeout) as caught:
        server.wait_until(lambda: False, "start", 0.05)
    assert caught.value.sentence() == "stage 'start' did not finish within 0.05 s. Last of its log: thinking"


def test_an_answer_of_a_server_that_has_ended_does_not_count(spawn: Spawn) -> None:
    # Somebody else may be listening on the port.
    server = spawn("raise SystemExit(1)")
    assert server.wait_ended(LIMIT_S)
    with pytest.raises(ServerExited):
        server.wait_until(lambda: True, "start", LIMIT_S)
