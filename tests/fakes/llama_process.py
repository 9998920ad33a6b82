"""A runner process without llama.cpp: `llama_process.py MODE` loads nothing and answers like llama-server.

Modes: `serve`; `quiet` never gets ready; `chatty` gets ready late but keeps logging; `broken` fails as llama.cpp does
on a damaged file; `mute` fails without a word. Like a real runner it ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHATTY_S = 1.0


def log(line: str) -> None:
    sys.stderr.write(f"0.00.012.345 I {line}\n")
    sys.stderr.flush()


class Handler(BaseHTTPRequestHandler):
    """Streams as many tokens as asked for, a hundred a second; tokens are words, and a prompt can order faults."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/completion", "/v1/chat/completions"):
            self.stream(body)
        elif self.path == "/tokenize":
            self.answer({"tokens": list(range(len(body["content"].split())))})
        elif self.path == "/detokenize":
            self.answer({"content": " ".join(f"t{token}" for token in body["tokens"])})
        elif self.path == "/apply-template":
            rows = [f"{message['role']}: {message['content']}" for message in body["messages"]]
            rows += [f"{name}={value}" for name, value in body.get("chat_template_kwargs", {}).items()]
            self.answer({"prompt": "\n".join(rows)})
        elif "refuse" in body["input"]:
            self.answer({"error": {"message": "input is too large to process", "code": 500}}, 500)
        else:
            words = len(body["input"].split())
            self.answer({"data": [{"embedding": [float(words), 0.0]}], "usage": {"prompt_tokens": words}})

    def stream(self, body: dict[str, Any]) -> None:
        prompt = str(body.get("prompt", body.get("messages")))
        if "refuse" in prompt:
            self.answer({"error": {"message": "no", "code": 400}}, 400)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(body["n_predict"]):
            if "die" in prompt and number == 1:
                os._exit(1)
            self.event({"content": f"t{number} ", "stop": False})
            time.sleep(0.01)
        timings = {"cache_n": 1, "prompt_n": 2, "prompt_ms": 3.0, "predicted_n": body["n_predict"], "predicted_ms": 4.0}
        if "forget" not in prompt:
            self.event({"content": "", "stop": True, "stop_type": "limit", "timings": timings})
        self.wfile.write(b"0\r\n\r\n")

    def event(self, event: dict[str, Any]) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


def main(mode: str) -> int:
    threading.Thread(target=end_with_parent, daemon=True).start()
    log("load_tensors: CPU_Mapped model buffer size =    2.50 MiB")
    if mode == "broken":
        log("llama_model_load: error loading model: tensor 'a' is not within the file bounds")
    if mode in ("broken", "mute"):
        return 7
    if mode == "quiet":
        threading.Event().wait()
    if mode == "chatty":
        for _ in range(20):
            log("still loading")
            time.sleep(CHATTY_S / 20)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
