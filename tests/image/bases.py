"""Stand-ins for the Dockerfile's base images under their real names, for machines that reach no registry."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.fakes.cuda_library import library, ptx, sass
from tests.image.engine import Engine, debian_tree

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("80", "86", "89", "90", "100", "120")
# Debian's llama-server needs a newer C library than the images have, so it brings its own.
RUNTIME = "/opt/llama-runtime"
_GO_PACKAGES = "ca-certificates,gcc,g++,libc6-dev,git,make,pkg-config"
_TRUST = """
COPY --from=host ca-certificates.crt /usr/local/share/ca-certificates/host.crt
"""
_DEBIAN = f"""
FROM stand-in/debian
{_TRUST}
COPY --from=llama runtime {RUNTIME}
"""
_GOLANG = f"""
FROM stand-in/golang
{_TRUST}
RUN update-ca-certificates
COPY --from=go / /usr/local/go
ENV PATH=/go/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
    GOPATH=/go GOTOOLCHAIN=local
"""
_OLLAMA = """
FROM {debian}
COPY --from=llama ollama /usr/lib/ollama
"""


def references() -> dict[str, str]:
    """Return the Dockerfile's base images by argument, with its own arguments filled in."""
    lines = re.findall(r"^ARG (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    values: dict[str, str] = {}
    for name, value in lines:
        values.setdefault(name, re.sub(r"\$\{(\w+)\}", lambda match: values.get(match[1], ""), value))
    return {name: values[name] for name in ("DEBIAN", "GOLANG", "OLLAMA")}


def go_root() -> Path:
    """Return the Go installation of this machine."""
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError("Go is not installed")
    done = subprocess.run([go, "env", "GOROOT"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def make(engine: Engine, work: Path) -> None:
    """Make the stand-ins unless they are there and as new as this file; `work` is shared with the engine."""
    names = references()
    files = [Path(__file__), ROOT / "tests/fakes/cuda_library.py"]
    stamp = sha256(b"".join([*(file.read_bytes() for file in files), repr(names).encode()])).hexdigest()[:16]
    if all(_stamp_of(engine, name) == stamp for name in names.values()):
        return
    llama, host = work / "llama", work / "host"
    _llama_tree(engine, llama)
    host.mkdir()
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", host)
    _import(engine, "trixie", "apt", "stand-in/debian")
    _import(engine, "bookworm", _GO_PACKAGES, "stand-in/golang")
    for argument, dockerfile, contexts in (
        ("DEBIAN", _DEBIAN, {"host": host, "llama": llama}),
        ("GOLANG", _GOLANG, {"host": host, "go": go_root()}),
        ("OLLAMA", _OLLAMA.format(debian=names["DEBIAN"]), {"llama": llama}),
    ):
        text = f"{dockerfile}\nLABEL stand-in={stamp}\n"
        build(engine, work / argument, text, names[argument], contexts)


def build(engine: Engine, work: Path, dockerfile: str, name: str, contexts: dict[str, Path]) -> None:
    """Build the image `name` from a Dockerfile's text and named contexts."""
    work.mkdir()
    (work / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    places = [f"--build-context={key}={path}" for key, path in contexts.items()]
    engine.docker("build", "-q", "--network=host", "-t", name, *places, str(work), timeout_s=600.0)


def _stamp_of(engine: Engine, name: str) -> str:
    label = engine.docker("image", "inspect", "--format", '{{index .Config.Labels "stand-in"}}', name, check=False)
    return label.stdout.strip()


def _import(engine: Engine, suite: str, packages: str, name: str) -> None:
    if engine.docker("image", "inspect", name, check=False).returncode == 0:
        return
    tar = engine.cache / f"{suite}.tar"
    debian_tree(suite, packages, tar)
    with tar.open("rb") as content:
        engine.docker("import", "-", name, stdin=content, timeout_s=300.0)
    tar.unlink()


def _llama_tree(engine: Engine, target: Path) -> None:
    """Lay out `ollama`, what upstream's image has in /usr/lib/ollama, and `runtime`, the libraries it needs."""
    tree = engine.cache / "llama-sid"
    debian_tree("sid", "llama.cpp-tools", tree, "--variant=extract", '--aptopt=Acquire::Check-Valid-Until "false"')
    library_dir = tree / "usr/lib/x86_64-linux-gnu"
    programs = [tree / "usr/bin/llama-server", tree / "usr/bin/llama-quantize"]
    own = [*library_dir.glob("lib*llama*.so*"), *library_dir.glob("libggml*.so*"), *library_dir.glob("libmtmd.so*")]
    own += [*library_dir.glob("llama/*.so*"), *library_dir.glob("ggml/backends0/*.so*")]
    _copy([*programs, *own], target / "ollama")
    known = {path.name for path in own}
    _copy([path for path in library_dir.glob("*.so*") if path.name not in known], target / "runtime")
    _point(engine, target / "ollama")
    for name, content in variants().items():
        (target / "ollama" / name).mkdir(exist_ok=True)
        (target / "ollama" / name / f"libggml-{name.partition('_')[0]}.so").write_bytes(content)


def variants() -> dict[str, bytes]:
    """Return a backend library for each directory of upstream's image: v12 has machine code, v13 only PTX."""
    return {
        "cuda_v12": library([*(sass(target) for target in TARGETS), ptx("120")]),
        "cuda_v13": library([ptx(target, version=(9, 0)) for target in ("75", *TARGETS)]),
        "vulkan": b"\x7fELF",
        "mlx_cuda_v13": b"\x7fELF",
    }


def _copy(files: Sequence[Path], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy2(file, target, follow_symlinks=False)


def _point(engine: Engine, directory: Path) -> None:
    """Let every program and library there find its own libraries and then those of RUNTIME, before any other."""
    programs = ["llama-server", "llama-quantize"]
    script = (
        f'cd "$1"; patchelf --set-interpreter {RUNTIME}/ld-linux-x86-64.so.2 {" ".join(programs)}; '
        f"for file in {' '.join(programs)} lib*; do [ -L $file ] || "
        f"patchelf --force-rpath --set-rpath '$ORIGIN:{RUNTIME}' $file; done"
    )
    done = engine.inside("sh", "-euc", script, "patchelf", str(directory))
    if done.returncode:
        raise RuntimeError(f"patchelf: {done.stderr[-1000:]}")
