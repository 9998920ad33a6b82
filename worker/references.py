"""What the user asked for, in every spelling they may use, and the name it has in the store; pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import unquote

from worker.names import DEFAULT_TAG, ModelName, NameInvalid
from worker.quantization import label_of, normalised, stem

DEFAULT_MODEL = "llama3.2:3b"
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_HUB_PREFIX = re.compile(rf"(?:https?://)?(?:{'|'.join(map(re.escape, _HUB_HOSTS))})/", re.IGNORECASE)
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
_PLACES = ("s3://", "file://", "/", "./", "../", "~/")
_NAME_CHARS = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Wanted:
    """One model as asked for: the name it gets in the store, and where else than under that name it can be found.

    `repo` is a Hugging Face repository, `place` a path or an s3:// URL; both may be empty. When `settled` is false the
    tag of `name` follows from the quantization that is taken. `template` and `skip_projector` say how to register it.
    """

    text: str
    name: ModelName
    settled: bool = True
    repo: str = ""
    revision: str = "main"
    place: str = ""
    quantization: str = ""
    file: str = ""
    template: str = ""
    skip_projector: bool = False

    def named(self, label: str, model_stem: str) -> ModelName:
        """Return the name to register under once a file with `label` (or, without one, `model_stem`) was chosen."""
        if self.settled:
            return self.name
        return replace(self.name, tag=_part(label or PurePosixPath(model_stem).name).lower()).checked()

    @property
    def shelf(self) -> str:
        """A file name that stands for this request, equal in every worker that asks for the same."""
        key = repr((self.name.full.lower(), self.repo, self.revision, self.place, self.quantization, self.file))
        return f"{_UNSAFE.sub('_', self.name.short)[:60]}-{_sha256(key)[:16]}"

    @property
    def hint(self) -> str:
        """What to do when no source has it."""
        if "://" in self.place:
            keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            return f"Check the URL, AWS_ENDPOINT_URL_S3 for other storage than Amazon's, and {keys} if it is private"
        if self.place:
            return "Check the path, and that the worker may read it"
        if self.repo:
            return "Check HF_MODEL, HF_QUANTIZATION and HF_MODEL_FILE, HF_TOKEN for a gated repository, and the network"
        if self.name.namespace != "library":
            # A repository's name parses as a name of Ollama's library, where it does not exist.
            repo = f"{self.name.namespace}/{self.name.model}"
            return f"Check OLLAMA_MODEL and the network; if {repo} is a Hugging Face repository, set HF_MODEL={repo}"
        return "Check OLLAMA_MODEL and the network, or put the model into the OLLAMA_MODELS folder"


@dataclass(frozen=True)
class Asked:
    """The variables that name models, as they are in the environment; "" is unset."""

    models: Sequence[str] = ()
    hf_model: str = ""
    hf_quantization: str = ""
    hf_model_file: str = ""
    ollama_model: str = ""

    def resident(self) -> tuple[Wanted, list[str]]:
        """Return the model to keep resident, and a sentence for each variable that another one outranks.

        Raises:
            NameInvalid: the variable that counts cannot be understood; the message names it.
        """
        if self.models:
            ignored = [
                f"WORKER_MODELS is set: {name}={value!r} is ignored"
                for name, value in (("HF_MODEL", self.hf_model), ("OLLAMA_MODEL", self.ollama_model))
                if value
            ]
            return _named("WORKER_MODELS", from_text, self.models[0]), ignored
        if self.hf_model:
            ignored = [f"HF_MODEL is set: OLLAMA_MODEL={self.ollama_model!r} is ignored"] if self.ollama_model else []
            wanted = _named("HF_MODEL", from_repository, self.hf_model)
            return _completed(wanted, self.hf_quantization, self.hf_model_file), ignored
        orphans = {"HF_QUANTIZATION": self.hf_quantization, "HF_MODEL_FILE": self.hf_model_file}
        wanted = _named("OLLAMA_MODEL", from_text, self.ollama_model or DEFAULT_MODEL)
        if wanted.place:
            return _completed(wanted, self.hf_quantization, self.hf_model_file), []
        return wanted, [f"HF_MODEL is not set: {name} is ignored" for name, value in orphans.items() if value]

    def others(self) -> list[Wanted]:
        """Return the models of WORKER_MODELS that are served on demand; raise NameInvalid."""
        return [_named("WORKER_MODELS", from_text, text) for text in self.models[1:]]


def listed(text: str) -> tuple[str, ...]:
    """Return the items of a list separated by commas, spaces or lines."""
    return tuple(text.replace(",", " ").split())


def from_text(text: str) -> Wanted:
    """Read what OLLAMA_MODEL may be: a name of Ollama's library, hf.co/…, a path, an s3:// URL; raise NameInvalid."""
    text = text.strip()
    if text.startswith(_PLACES):
        return _place(text)
    if not _HUB_PREFIX.match(text):
        return Wanted(text, _registry_name(text))
    wanted = from_repository(text)
    if wanted.file:
        return wanted
    # Ollama's own way to a repository keeps Ollama's own name for it.
    owner, repo = wanted.repo.split("/")
    tag = text.rpartition(":")[2] if wanted.quantization else DEFAULT_TAG
    return replace(wanted, name=ModelName("hf.co", owner, repo, tag).checked(), settled=True)


def from_request(text: str) -> Wanted:
    """Read a job's `model`, which may not make the worker read paths and buckets; raise NameInvalid."""
    if text.strip().startswith(_PLACES):
        raise NameInvalid(f"{text.strip()!r:.120} is a place, not a model name")
    return from_text(text)


def from_repository(text: str) -> Wanted:
    """Read what HF_MODEL may be: `org/repo`, hf.co/org/repo, a huggingface.co URL, each with `:quant`, or a place.

    Raises:
        NameInvalid: it is none of these.
    """
    text = text.strip()
    if text.startswith(_PLACES):
        return _place(text)
    path = unquote(_HUB_PREFIX.sub("", text).split("?")[0].split("#")[0]).strip("/")
    path, _, quantization = path.partition(":")
    owner_repo, revision, file = _taken_apart(path)
    if not _REPO.fullmatch(owner_repo):
        advice = "" if "/" in path else "; for a model of Ollama's library set OLLAMA_MODEL"
        raise NameInvalid(f"{text!r:.120} is not a Hugging Face repository (owner/name){advice}")
    name = _hub_name(owner_repo)
    wanted = Wanted(text, name, settled=False, repo=owner_repo, revision=revision)
    return _completed(wanted, quantization, file)


def _registry_name(text: str) -> ModelName:
    """Return the name a registry has a model by; with http:// before it, one without TLS. Raise NameInvalid."""
    scheme, mark, _ = text.partition("://")
    if not mark:
        return ModelName.parse(text)
    with contextlib.suppress(NameInvalid):
        name = ModelName.parse(text)
        if scheme in {"http", "https"} and not name.model.lower().endswith(".gguf"):
            return name
    understood = "of URLs only s3:// and Hugging Face's are understood"
    raise NameInvalid(f"{text!r:.120} names no model: {understood}; download the file and give its path")


def _completed(wanted: Wanted, quantization: str, file: str) -> Wanted:
    """Add quantization and file where the reference has none, and the tag that follows from them."""
    if _HUB_PREFIX.match(file):
        _, _, file = _taken_apart(unquote(_HUB_PREFIX.sub("", file).split("?")[0]))
    file = wanted.file or file.strip().strip("/")
    quantization = normalised(wanted.quantization or quantization)
    wanted = replace(wanted, file=file, quantization=quantization)
    if wanted.settled or not (file or quantization):
        return wanted
    return replace(wanted, name=wanted.named(label_of(file) if file else quantization, stem(file)), settled=True)


def _taken_apart(path: str) -> tuple[str, str, str]:
    """Return repository, revision and file of a path as in huggingface.co/org/repo/blob/main/folder/model.gguf."""
    parts = path.split("/")
    if len(parts) > 3 and parts[2] in {"tree", "blob", "resolve"}:  # noqa: PLR2004 - owner, repo, kind, revision
        return "/".join(parts[:2]), parts[3], "/".join(parts[4:]) if parts[2] != "tree" else ""
    return path, "main", ""


def _place(text: str) -> Wanted:
    """Return a model asked for by path or URL; its name is made of the last parts of both."""
    path = text.removeprefix("file://")
    scheme, mark, rest = path.partition("://")
    parts = [part for part in (rest if mark else path).split("/") if part not in {"", ".", "..", "~"}]
    if not parts:
        raise NameInvalid(f"{text!r:.120} names no file and no folder")
    last = stem(parts[-1])
    is_file = parts[-1].lower().endswith(".gguf")
    label = label_of(last) if is_file else ""
    model = re.sub(rf"[-_.]{re.escape(label)}$", "", last, flags=re.IGNORECASE) if label else last
    if mark:
        model = f"{parts[0]}-{model}"
    name = ModelName(
        "registry.ollama.ai", scheme if mark else "local", _part(model).lower(), (label or DEFAULT_TAG).lower()
    )
    return Wanted(text, name.checked(), settled=is_file, place=path)


def _hub_name(repo: str) -> ModelName:
    """Return `hf/<org>-<repo>`, as the stock worker registers it."""
    return ModelName("registry.ollama.ai", "hf", _part(repo.replace("/", "-")).lower(), DEFAULT_TAG).checked()


def _part(text: str) -> str:
    """Return a text as one part of a name: unsafe characters replaced, long ones cut and made unique by a digest."""
    safe = _UNSAFE.sub("-", text).lstrip("-.") or "model"
    if len(safe) <= _NAME_CHARS:
        return safe
    return f"{safe[: _NAME_CHARS - 9]}-{_sha256(text)[:8]}"


def _named(variable: str, read: Callable[[str], Wanted], text: str) -> Wanted:
    try:
        return read(text)
    except ValueError as exc:
        said = str(exc)
        shown = said if repr(text)[:40] in said else f"{text!r:.120} names no model ({said})"
        raise NameInvalid(f"{variable}: {shown}") from exc


def _sha256(text: str) -> str:
    import hashlib  # noqa: PLC0415 - it takes milliseconds to import and most references do without

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
