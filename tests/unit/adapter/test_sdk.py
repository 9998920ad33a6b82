from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

from worker.local.process import ROOT

WATCH = """
import json, sys
looked_up, started = [], []

class Watcher:
    def find_spec(self, name, path=None, target=None):
        looked_up.append(name)

STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system", "os.forkpty")
sys.meta_path.insert(0, Watcher())
sys.addaudithook(lambda event, args: started.append(event) if event in STARTS else None)
"""
TELL = """
print(json.dumps({
    "version": version,
    "slow": sorted({name.partition(".")[0] for name in looked_up} & {"cpuinfo", "paramiko"}),
    "left": sorted({"cpuinfo", "paramiko"} & set(sys.modules)),
    "started": started,
}))
"""


def interpret(*parts: str) -> Any:
    """Run the code in a fresh interpreter and return the JSON of its last line."""
    return json.loads(printed(*parts)[-1])


def printed(*parts: str) -> list[str]:
    """Run the code in a fresh interpreter and return the lines it prints."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": os.devnull, "PYTHONUNBUFFERED": "1"}
    code = "\n".join(parts)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_neither_looks_up_the_slow_modules_nor_starts_a_process() -> None:
    told = interpret(WATCH, "from worker.adapter.sdk import import_sdk", "version = import_sdk()", TELL)
    assert told == {"version": version("runpod"), "slow": [], "left": [], "started": []}


def test_the_watcher_would_have_seen_them() -> None:
    told = interpret(WATCH, "import cpuinfo, paramiko, subprocess", "subprocess.run('true')", "version = 0", TELL)
    assert told["slow"] == told["left"] == ["cpuinfo", "paramiko"]
    assert "subprocess.Popen" in told["started"]


def test_a_module_that_is_loaded_already_stays_as_it_is() -> None:
    code = """
import json, sys, types
mine = sys.modules["paramiko"] = types.ModuleType("paramiko")
from worker.adapter.sdk import import_sdk
import_sdk()
print(json.dumps({"same": sys.modules["paramiko"] is mine, "cpuinfo": "cpuinfo" in sys.modules}))
"""
    assert interpret(code) == {"same": True, "cpuinfo": False}


def test_a_failing_import_leaves_no_empty_modules_behind() -> None:
    code = """
import json, sys
from worker.adapter.sdk import import_sdk
sys.modules["runpod"] = None
try:
    import_sdk()
except ImportError as exc:
    print(json.dumps({"error": str(exc), "left": sorted({"cpuinfo", "paramiko"} & set(sys.modules))}))
"""
    told = interpret(code)
    assert "runpod" in told["error"]
    assert told["left"] == []


def test_what_was_left_out_can_be_imported_afterwards() -> None:
    code = """
import json
from worker.adapter.sdk import import_sdk
import_sdk()
import paramiko
print(json.dumps(hasattr(paramiko, "SSHClient")))
"""
    assert interpret(code) is True


@pytest.mark.parametrize("name", ["rp_scale.JobScaler", "rp_http._transmit", "rp_ping.Heartbeat.process_loop"])
def test_what_the_sdk_looks_up_is_ours(name: str) -> None:
    code = f"""
import json
from worker.adapter.sdk import import_sdk
import_sdk()
from runpod.serverless.modules import rp_http, rp_ping, rp_scale
from worker.adapter import delivery, loop
before = {name}
loop.install(loop.Loop, delivery.Delivery(None, limit_s=1))
print(json.dumps([before.__module__.partition(".")[0], {name}.__module__.partition(".")[0]]))
"""
    assert interpret(code) == ["runpod", "worker"]


def test_the_ping_process_is_a_fork_whatever_python_prefers() -> None:
    code = """
import json, multiprocessing, os, sys
multiprocessing.set_start_method("spawn")
os.environ.update(RUNPOD_AI_API_KEY="key", RUNPOD_POD_ID="pod", RUNPOD_WEBHOOK_PING="http://127.0.0.1:9/ping")
from worker.adapter.sdk import import_sdk
import_sdk()
from runpod.serverless.modules import rp_ping
from worker.adapter import delivery, loop
loop.install(loop.Loop, delivery.Delivery(None, limit_s=1))
rp_ping.Heartbeat().start_ping()
(child,) = multiprocessing.active_children()
print(json.dumps([type(child).__name__, child.is_alive()]))
child.kill()
"""
    assert interpret(code) == ["ForkProcess", True]


def test_the_sdks_lines_and_ours_stay_apart() -> None:
    code = """
import threading
from worker.adapter.sdk import import_sdk
from worker.events import EventWriter, ServerLogged
import_sdk()
from runpod.serverless.modules import rp_logger
from worker.adapter import delivery, loop
loop.install(loop.Loop, delivery.Delivery(None, limit_s=1))
log, writer, done = rp_logger.RunPodLogger(), EventWriter(), threading.Event()

def write():
    while not done.is_set():
        writer.write(ServerLogged(line="x"))

thread = threading.Thread(target=write)
thread.start()
for number in range(3000):
    log.info("the SDK says so", "J")
done.set()
thread.join()
"""
    lines = printed(code)
    theirs = [line for line in lines if line.endswith("the SDK says so")]
    assert len(theirs) == 3000
    assert [line for line in lines if line.find('{"at_ns"') > 0] == []
