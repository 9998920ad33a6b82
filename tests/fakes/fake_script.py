"""What the fake server does wrong, and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_TEXT = 'Grüße 🦙 from 東京, the fake model says: "a < b & c".\nDone 👩‍🚀!'


@dataclass
class Script:
    """Every knob. Set one with FAKE_<NAME> in the environment, or later with POST /fake/script {"<name>": value}.

    Start and end of the process (environment only):
      listen_delay_s      the port is closed for so long
      answer_delay_s      the port is open at once, but HTTP is answered only after so long
      never_answer        the port is open and nothing is ever answered
      exit_after_s        the process ends by itself after so long (0: never), with `exit_code`
      ignore_sigterm      SIGTERM does nothing; only SIGKILL ends the process
      child               a child process is started, as a runner would be; it does not end with its parent
      log_lines           so many lines go to stderr before the first answer, each padded to `log_line_bytes`

    What is served:
      models              names, separated by commas, beside those with a manifest below OLLAMA_MODELS; what a model can
                          do may follow: `a,b=completion+tools+thinking,c=embedding`; `d=broken` cannot be loaded
      text                what the model says, token by token; `tokens` says how many (0: the text once)
      tokens_per_s        speed (0: at once); `first_token_delay_s` comes before
      load_s              how long the first request of a model waits; with `load_error` the load fails with 500
      vram_share          size_vram as a share of size in /api/ps
      compiled_bytes      each new size of prompt leaves a file of so many bytes in CUDA_CACHE_PATH (0: none)

    What goes wrong in an answer; tokens are counted from 0, and -1 is never:
      refuse_status       generation is refused with this status and `refuse_error`, `refuse_times` times (0: always)
      die_at_token        the process ends without a word, with `exit_code`
      drop_at_token       the connection is reset
      close_at_token      the answer ends as if it were complete, without its last object and without [DONE]
      error_at_token      the answer ends with `error` in the way of its API
      garbage_at_token    what is sent instead of this token is no frame of any API
      hang_at_token       nothing more is sent and the connection stays open
      split               every byte of a streamed answer is written on its own
    """

    listen_delay_s: float = 0.0
    answer_delay_s: float = 0.0
    never_answer: bool = False
    exit_after_s: float = 0.0
    exit_code: int = 3
    ignore_sigterm: bool = False
    child: bool = False
    log_lines: int = 0
    log_line_bytes: int = 80
    models: str = "smollm2:latest"
    text: str = DEFAULT_TEXT
    tokens: int = 0
    tokens_per_s: float = 0.0
    first_token_delay_s: float = 0.0
    load_s: float = 0.0
    load_error: str = ""
    vram_share: float = 1.0
    compiled_bytes: int = 0
    refuse_status: int = 0
    refuse_error: str = "server busy, please try again.  maximum pending requests exceeded"
    refuse_times: int = 0
    die_at_token: int = -1
    drop_at_token: int = -1
    close_at_token: int = -1
    error_at_token: int = -1
    error: str = "an error was encountered while running the model: CUDA error"
    garbage_at_token: int = -1
    hang_at_token: int = -1
    split: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Script:
        """Read FAKE_*; raise ValueError for a name that is no knob: a typing error must not make a test pass."""
        script = cls()
        script.update({name[5:].lower(): value for name, value in env.items() if name.startswith("FAKE_")})
        return script

    def update(self, changes: Mapping[str, Any]) -> None:
        """Set knobs by name, from text or JSON; raise ValueError when there is no such knob."""
        known = {knob.name: type(getattr(self, knob.name)) for knob in dataclasses.fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"the fake server has no knob {name!r}")
            truth = value in (True, "1", "true")
            setattr(self, name, truth if known[name] is bool else type(getattr(Script, name))(value))

    @property
    def catalogue(self) -> dict[str, list[str]]:
        """Return the capabilities of each model in `models`."""
        entries = [entry.partition("=") for entry in self.models.split(",") if entry]
        return {_tagged(name): (can or "completion").split("+") for name, _, can in entries}

    def can(self, model: str) -> list[str]:
        """Return what `model` can do; one that is only in the store can chat."""
        return self.catalogue.get(_tagged(model), ["completion"])


def _tagged(name: str) -> str:
    return name if ":" in name else f"{name}:latest"
