from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.range_server import Answer, Fault, RangeServer
from tests.fakes.repositories import cache, folder
from tests.fakes.s3_server import ACCESS_KEY, SECRET_KEY, FakeS3
from worker import manifest
from worker.models_command import main
from worker.store import Store

ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a store in the test's folder; return code, output and errors."""

    def command(*argv: str, **environ: str) -> tuple[int, str, str]:
        places = {"OLLAMA_MODELS": str(tmp_path / "models"), "RUNPOD_MODEL_CACHE_DIR": str(tmp_path / "hub")}
        code = main(list(argv), places | {"HF_ENDPOINT": "http://127.0.0.1:9"} | environ)
        output = capsys.readouterr()
        return code, output.out, output.err

    return command


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return folder(tmp_path / "files", "M-Q8_0.gguf", "mmproj-F16.gguf") / "M-Q8_0.gguf"


def test_a_file_is_registered_listed_and_verified(run: Run, gguf: Path, tmp_path: Path) -> None:
    store = tmp_path / "models"
    assert run("register", str(gguf)) == (0, f"local/m:q8_0 is in {store}\n", "")
    projector = str(gguf.with_name("mmproj-F16.gguf"))
    code, out, _ = run(
        "register", str(gguf), "--name", "me/vision:1", "--projector", projector, "--template", "{{ .Prompt }}"
    )
    assert (code, out) == (0, f"me/vision:1 is in {store}\n")
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["local/m:q8_0", "0.00", "GB"],
        ["me/vision:1", "0.00", "GB"],
    ]
    assert run("verify") == (0, "2 models: all blobs are whole\n", "")
    assert run("verify", "ME/Vision:1", "--jobs", "1") == (0, "1 model: all blobs are whole\n", "")


def test_an_empty_store_is_no_error(run: Run, tmp_path: Path) -> None:
    for command in ("list", "verify"):
        assert run(command) == (0, f"{tmp_path / 'models'} has no models\n", "")


def test_damage_is_told(run: Run, gguf: Path, tmp_path: Path) -> None:
    run("register", str(gguf), "--name", "a")
    largest = max((tmp_path / "models" / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    largest.unlink()
    assert run("list")[1].rstrip().endswith("is not in the store")
    largest.write_bytes(content[:-1] + b"x")
    code, out, _ = run("verify")
    assert code == 1
    assert out.startswith(f"{largest}: its bytes have sha256 ")
    assert out.endswith("it is part of a:latest\n1 model: 1 blob is damaged\n")
    for blob in (tmp_path / "models" / "blobs").iterdir():
        blob.write_bytes(b"x")
    assert run("verify")[1].endswith("\n1 model: 2 blobs are damaged\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["verify", "smol"], "smol is not in "),
        (["register", "/nowhere/m.gguf"], "/nowhere/m.gguf does not exist: name a GGUF file\n"),
        (["register", str(Path(__file__).parent)], "is a folder: name a GGUF file\n"),
        (["register", __file__, "--projector", "/nowhere/p.gguf"], "/nowhere/p.gguf does not exist: name a GGUF file"),
        (["register", __file__], "is no GGUF file"),
        (["register", __file__, "--name", "a b!"], "'a b!' cannot be a model's name: say [namespace/]model[:tag], of"),
        (["verify", "a b!"], "'a b!' cannot be a model's name: say [namespace/]model[:tag], of"),
        (["pull", "org", "--hub"], "'org' is not a Hugging Face repository"),
        (["pull", "smol", "--from", "moon"], "there is no source 'moon'; there are local, volume"),
        (["pull", "smol", "--from", "local"], "no source has 'smol': local: no path was asked for. No registry was"),
        (["pull", "smol"], "No registry was asked: --server names a running Ollama that uses this store and pulls\n"),
        (["pull", "no/such"], "and pulls; if no/such is on Hugging Face, add --hub\n"),
        (["pull", "smol", "--server", "127.0.0.1:9"], "no server answers at http://127.0.0.1:9 (Connection refused)"),
        (["pull", "no/such", "--server", "127.0.0.1:9"], "Check the name and --server; if no/such is on Hugging Face"),
        (["pull", "http://127.0.0.1:1/x.gguf"], "'http://127.0.0.1:1/x.gguf' names no model: of URLs only s3:// and"),
        (["pull", "/nowhere/m.gguf"], "local: /nowhere/m.gguf does not exist. Check the path, and that the worker may"),
        (
            ["prune", "--keep", "1G", "--server", "http://127.0.0.1:9"],
            "http://127.0.0.1:9 cannot be asked what is loaded (Connection refused): start it, or leave --server out",
        ),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, argv: list[str], words: str) -> None:
    code, _, err = run(*argv)
    assert code == 1
    assert err.startswith("models: ")
    assert words in err


def test_a_hub_that_is_none_is_named_with_its_variable(run: Run) -> None:
    code, _, err = run("pull", "no/such", "--hub", HF_ENDPOINT="foo")
    assert code == 1
    assert "hub: HF_ENDPOINT=foo cannot be reached (" in err
    assert "set it to a hub's address, as https://huggingface.co. Check the name and --file, HF_TOKEN" in err


def test_models_are_pulled_from_where_they_are(run: Run, gguf: Path, tmp_path: Path) -> None:
    cache(tmp_path / "hub", "org/repo", "R-Q4_K_M.gguf", "R-Q8_0.gguf")
    store = tmp_path / "models"
    code, out, _ = run("pull", "org/repo:Q8_0", "--hub")
    assert (code, out.splitlines()[-1]) == (0, f"hf/org-repo:q8_0 is in {store} (from: model_store)")
    code, out, _ = run("pull", "org/repo", "--hub", OLLAMA_TEMPLATE="{{ .Prompt }}")
    assert code == 0
    assert "Note: org/repo: no quantization was asked for; taking Q4_K_M" in out
    code, out, _ = run("pull", str(gguf))
    assert out.splitlines()[-1] == f"local/m:q8_0 is in {store} (from: local)"
    assert {"hf/org-repo:latest", "hf/org-repo:q4_k_m"} <= {model.name.short for model in manifest.every(store)}


def test_models_are_pulled_from_a_bucket(run: Run, gguf: Path, tmp_path: Path) -> None:
    fake = FakeS3({"models": {"m/M-Q8_0.gguf": gguf.read_bytes(), "mirror/org/repo/R-Q4_0.gguf": gguf.read_bytes()}})
    with RangeServer(fake.app, faults=[Fault(status=503)]) as server:
        account = {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "WORKER_OBJECT_STORE": "s3://models/mirror",
        }
        code, out, err = run("pull", "s3://models/m/M-Q8_0.gguf", **account)
        assert (code, "object_store: HTTP 503" in err) == (1, True)
        assert "no bucket" not in err
        assert "local:" not in err, "a source that could not have it is no news"
        code, out, _ = run("pull", "s3://models/m/M-Q8_0.gguf", **account)
        assert (code, out.splitlines()[-1].partition(" is")[0]) == (0, "s3/models-m:q8_0")
        code, out, _ = run("pull", "org/repo", "--hub", "--from", "object_store", **account)
        assert out.splitlines()[-1] == f"hf/org-repo:q4_0 is in {tmp_path / 'models'} (from: object_store)"


def test_the_oldest_are_pruned_and_the_loaded_stay(run: Run, tmp_path: Path) -> None:
    place = folder(tmp_path / "files", "A-Q8_0.gguf", "B-Q8_0.gguf", "C-Q8_0.gguf")
    for name in "ABC":
        run("register", str(place / f"{name}-Q8_0.gguf"), "--name", name.lower())
    loaded = json.dumps({"models": [{"name": "a:latest"}]}).encode()
    with RangeServer(lambda _: Answer(body=loaded)) as server:
        code, out, _ = run("prune", "--keep", "40K", "--dry-run", "--server", server.url)
        assert (code, out.splitlines()[0]) == (0, "would go: b:latest")
        assert len(list(manifest.every(tmp_path / "models"))) == 3
        code, out, _ = run("prune", "--keep", "40K", "--server", server.url)
        assert (code, out) == (0, "goes: b:latest\n0.00 GB stay\n")
        code, out, err = run("prune", "--keep", "0", "--server", server.url)
        assert (code, out.splitlines()[0]) == (1, "goes: c:latest")
        assert "more than allowed are loaded or leased" in err
    assert [model.name.short for model in manifest.every(tmp_path / "models")] == ["a:latest"]


def test_a_server_that_says_nonsense_is_told(run: Run) -> None:
    with RangeServer(lambda _: Answer(body=b"{}")) as server:
        code, _, err = run("prune", "--keep", "1G", "--server", server.url)
    assert (code, "does not say what is loaded" in err) == (1, True)


def test_what_interrupted_work_left_goes_too(
    run: Run, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("register", str(gguf), "--name", "a")
    left = Store(tmp_path / "models").partials / "x.data"
    left.write_bytes(b"x")
    monkeypatch.setattr("worker.pruning.ABANDONED_S", -10.0)
    assert run("prune", "--keep", "1G", "--dry-run")[1].startswith("would go: 1 file of interrupted work\n")
    assert left.exists()
    run("prune", "--keep", "1G")
    assert not left.exists()


def test_a_person_at_a_terminal_sees_progress(run: Run, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = run("register", str(gguf), "--name", "a")
    assert "reading: 100% of 0.0 MB" in err
    assert err.endswith("\r\x1b[K")


def test_a_negative_size_deletes_nothing(gguf: Path, tmp_path: Path) -> None:
    store = tmp_path / "models"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OLLAMA_MODELS": str(store)}

    def models(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "worker", "models", *argv]
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert models("register", str(gguf)).returncode == 0
    before = sorted(store.rglob("*"))
    refused = models("prune", "--store", str(store), "--keep=-5G")
    assert refused.returncode == 2
    assert "'-5G' is no number of bytes: say 500M, 100G or 1.5T" in refused.stderr
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("command", [["list"], ["verify"], ["prune", "--keep", "0"]])
def test_a_store_that_is_named_has_to_be_one(run: Run, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place, wrong in ((tmp_path / "nowhere", "does not exist"), (tmp_path / "file", "is no folder")):
        told = f"models: {place} {wrong}: name a store of Ollama's, as --store ~/.ollama/models\n"
        assert run(*command, "--store", str(place)) == (1, "", told)


def test_a_store_that_is_filled_may_be_new_but_no_file(run: Run, gguf: Path, tmp_path: Path) -> None:
    assert run("register", str(gguf), "--store", str(tmp_path / "new"))[0] == 0
    assert len(list(manifest.every(tmp_path / "new"))) == 1
    code, _, err = run("register", str(gguf), "--store", str(gguf))
    assert (code, f"{gguf} is no folder" in err) == (1, True)


def test_what_a_server_could_not_use_is_not_registered(run: Run, gguf: Path, tmp_path: Path) -> None:
    code, _, err = run("register", str(gguf), "--template", "{{ .Nope")
    assert (code, err) == (1, "models: the template's '{{ .Nope' is not closed: it needs its }}\n")
    code, _, err = run("register", str(gguf), "--projector", str(gguf))
    assert (code, err.startswith("models: M-Q8_0.gguf is no projector: its architecture is llama")) == (1, True)
    assert list(manifest.every(tmp_path / "models")) == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["verify", "--jobs", "-1"], "'-1' is no count: say 1 or more"),
        (["pull", "smol", "--server", "127.0.0.1:99999"], "'127.0.0.1:99999' is no server's address: say http://127"),
        (["prune", "--keep", "1G", "--server", "ftp://h"], "'ftp://h' is no server's address: say http://127"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(argv, {"HOME": "/root"})
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["list", "--help"], ["prune"], ["prune", "--keep", "much"]])
def test_wrong_use_ends_with_a_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv, {"HOME": "/root"})
    output = capsys.readouterr()
    assert "python -m worker models" in output.out + output.err
