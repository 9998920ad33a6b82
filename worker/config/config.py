"""The worker's configuration: one frozen model made from the environment in one call, all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pydantic import AliasChoices, ValidationError

from worker.config.serving import TAKE_VARIABLE, Serving
from worker.errors import ConfigInvalid
from worker.names import NameInvalid
from worker.outset import outset, server_url


class Config(Serving):
    """What the person who deployed the worker asked for.

    Names without a prefix are those of the stock worker and keep its meaning; the worker's own start with `WORKER_`.
    """

    @property
    def concurrency(self) -> int:
        """Jobs taken at once."""
        return self.max_concurrency or self.num_parallel

    @property
    def server_url(self) -> str:
        """Base URL of the server as the worker calls it."""
        return server_url(self.host)


def variables() -> dict[str, tuple[str, ...]]:
    """Return each field's name and the environment variables it is read from, in order of precedence."""
    names = {}
    for field_name, field in Config.model_fields.items():
        alias = field.validation_alias
        names[field_name] = tuple(str(c) for c in alias.choices) if isinstance(alias, AliasChoices) else ()
    return names


def load(environ: Mapping[str, str]) -> Config:
    """Make a Config from `environ`.

    A blank value counts as unset, as it does for Ollama.

    Raises:
        ConfigInvalid: one sentence that names every problem found.
    """
    known = {name for names in variables().values() for name in names}
    given = {name: value for name, value in environ.items() if value.strip()}
    problems = [_unknown(name, known) for name in sorted(given) if name.startswith("WORKER_") and name not in known]
    # A load balancer calls the worker: there is no queue to take jobs from.
    if TAKE_VARIABLE not in given and given.get("WORKER_MODE", "queue").strip() == "queue":
        told = "this is not a Runpod worker (for a local run: `make run` or `make serve`)"
        problems.append(f"{TAKE_VARIABLE} is missing: {told}")
    try:
        outset(given)
    except NameInvalid as exc:
        problems.append(str(exc))
    config = None
    try:
        config = Config.model_validate({name: given[name] for name in known & given.keys()})
    except ValidationError as exc:
        problems += [_problem(str(error["loc"][0]), error["msg"]) for error in exc.errors()]
    if problems or config is None:
        raise ConfigInvalid("; ".join(problems), "Correct the endpoint's environment variables")
    return config


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name} is not a setting of this worker" + (f" (did you mean {near[0]}?)" if near else "")


def _problem(name: str, message: str) -> str:
    return f"{name}: {message[:1].lower()}{message[1:]}"
