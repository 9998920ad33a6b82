from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.hub_server import FakeHub
from tests.fakes.range_server import Fault, RangeServer, Request
from tests.fakes.repositories import Heard, blobs, brought, content, left_over, missed
from worker.errors import WeightsUnavailable
from worker.location import Located, locate
from worker.references import from_repository, from_text
from worker.sources import chain, hub
from worker.sources.base import Offer
from worker.sources.hub import Hub
from worker.store import Store
from worker.transfer import Terms

huggingface_hub = pytest.importorskip(
    "huggingface_hub", reason="install huggingface_hub to ask a Hub with its own client"
)

REPO = "unsloth/Qwen-Tiny-GGUF"
PATHS = [
    "Q-Q2_K.gguf",
    "Q-Q4_K_M.gguf",
    "big/Q-Q8_0-00001-of-00002.gguf",
    "big/Q-Q8_0-00002-of-00002.gguf",
    "mmproj-F16.gguf",
]
TERMS = Terms(connections=3, piece_bytes=3000, patience_s=1.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    scratch = tmp_path_factory.mktemp("scratch")
    return {path: content(path, scratch) for path in PATHS} | {"README.md": b"# read me", ".gitattributes": b"x"}


Serve = Callable[..., RangeServer]


@pytest.fixture
def serve(files: dict[str, bytes]) -> Iterator[Serve]:
    """Start a Hub with one repository, open or gated."""
    with ExitStack() as stack:

        def start(*, faults: Any = None, **settings: Any) -> RangeServer:
            fake = FakeHub({REPO: files, "gated/repo": files}, gated=frozenset({"gated/repo"}), **settings)
            server = stack.enter_context(RangeServer(fake.app, faults=faults))
            server.fake = fake
            return server

        yield start


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits many seconds before it gives a listing up."""
    http = importlib.import_module("huggingface_hub.utils._http")
    monkeypatch.setattr(http.time, "sleep", lambda _: None)


def asked(server: RangeServer, token: str = "", **more: Any) -> Hub:
    return Hub(token, server.url, terms=TERMS, **more)


@pytest.mark.parametrize("own_transfer", [False, True])
def test_a_model_comes_from_the_hub(
    serve: Serve,
    store: Store,
    files: dict[str, bytes],
    own_transfer: bool,  # noqa: FBT001 - a parameter
) -> None:
    server = serve()
    heard = Heard()
    wanted = from_repository(REPO)
    made = brought(asked(server, own_transfer=own_transfer), wanted, store, heard)
    assert made.name.short == "hf/unsloth-qwen-tiny-gguf:q4_k_m"
    assert [layer.kind for layer in made.layers] == ["config", "model", "projector"]
    assert made.layers[1].path(store.root).read_bytes() == files["Q-Q4_K_M.gguf"]
    assert made.layers[2].path(store.root).read_bytes() == files["mmproj-F16.gguf"]
    assert isinstance(locate([store.root], wanted), Located)
    assert any("no quantization was asked for" in note for note in heard.notes)
    assert not left_over(store)


def test_only_what_is_needed_is_fetched_and_by_ranges(serve: Serve, store: Store, files: dict[str, bytes]) -> None:
    server = serve()
    wanted = replace(from_repository(f"{REPO}:q2_k"), skip_projector=True)
    brought(asked(server), wanted, store)
    fetched = [request for request in server.requests if request.path.startswith("/storage/")]
    assert {request.path.partition("?")[0] for request in fetched} == {f"/storage/{REPO}/Q-Q2_K.gguf"}
    assert sum(end - start for start, end in {request.span for request in fetched if request.span}) == len(
        files["Q-Q2_K.gguf"]
    )
    # The parts of the file were given where the Hub had sent us, without asking it each time.
    assert len(server.asked(f"/{REPO}/resolve/main/Q-Q2_K.gguf")) <= TERMS.connections


@pytest.mark.parametrize("own_transfer", [False, True])
def test_a_split_model_is_merged(serve: Serve, store: Store, own_transfer: bool) -> None:  # noqa: FBT001 - a parameter
    made = brought(asked(serve(), own_transfer=own_transfer), from_repository(f"{REPO}:Q8_0"), store)
    assert made.name.short == "hf/unsloth-qwen-tiny-gguf:q8_0"
    assert made.lacks(store.root) == []
    assert len(blobs(store)) == 3
    assert not left_over(store)


def test_a_blob_that_is_there_is_not_fetched_again(serve: Serve, store: Store) -> None:
    wanted = from_repository(f"{REPO}:Q4_K_M")
    brought(asked(serve()), wanted, store)
    server = serve()
    brought(asked(server), replace(wanted, template="{{ .Prompt }}"), store)
    assert not [request for request in server.requests if "/storage/" in request.path]


def test_a_gated_repository_wants_its_token(serve: Serve, store: Store) -> None:
    server = serve()
    wanted = from_repository("gated/repo:Q2_K")
    assert missed(asked(server), wanted) == "gated/repo is gated: accept its terms on its page and set HF_TOKEN"
    assert brought(asked(server, "hf_secret"), wanted, store).lacks(store.root) == []
    # The storage the Hub sends to refuses requests that carry the token.
    assert all("authorization" not in request.headers for request in server.requests if "/storage/" in request.path)


def test_a_token_is_not_shown() -> None:
    assert "hf_secret" not in repr(Hub("hf_secret"))


@pytest.mark.usefixtures("few_retries")
@pytest.mark.parametrize(
    ("text", "faults", "words"),
    [
        ("nobody/nothing", [], "there is no repository nobody/nothing, or it is private and HF_TOKEN may not read it"),
        (f"https://huggingface.co/{REPO}/tree/dev", [], f"{REPO} has no revision dev"),
        (f"{REPO}:Q5_K_M", [], f"{REPO} has no Q5_K_M; it has: Q2_K (0.0 MB), Q4_K_M (0.0 MB), Q8_0 (0.0 MB)"),
        (REPO, [Fault(status=503)] * 9, "HF_ENDPOINT=http://127.0.0.1:PORT answers HTTP 503"),
        (REPO, [Fault(status=500)] * 9, "HF_ENDPOINT=http://127.0.0.1:PORT answers HTTP 500"),
        (REPO, [Fault(status=429)] * 9, "HF_ENDPOINT=http://127.0.0.1:PORT answers HTTP 429"),
        (REPO, [Fault(reset_at=0)] * 9, "HF_ENDPOINT=http://127.0.0.1:PORT cannot be reached ("),
    ],
)
def test_why_there_is_no_offer_is_said(serve: Serve, text: str, faults: list[Fault], words: str) -> None:
    server = serve(faults=faults)
    told = words.replace("http://127.0.0.1:PORT", server.url)
    assert missed(asked(server), from_repository(text)).startswith(told)


@pytest.mark.usefixtures("few_retries")
def test_an_outage_is_said(serve: Serve) -> None:
    server = serve()
    gone = replace(asked(server), endpoint="http://127.0.0.1:9")
    told = missed(gone, from_repository(REPO))
    assert told.startswith("HF_ENDPOINT=http://127.0.0.1:9 cannot be reached (ConnectError: ")
    assert told.endswith("): set it to a hub's address, as https://huggingface.co")


@pytest.mark.usefixtures("few_retries")
def test_an_endpoint_that_is_no_address_is_told_with_its_variable(serve: Serve) -> None:
    told = missed(replace(asked(serve()), endpoint="foo"), from_repository(REPO))
    assert told.startswith("HF_ENDPOINT=foo cannot be reached (")
    assert told.endswith("): set it to a hub's address, as https://huggingface.co")


def test_the_usual_hub_is_named_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", unreachable)
    assert missed(Hub(), from_repository(REPO)) == "the Hub cannot be reached (OSError: no route)"


def test_a_hub_that_does_not_answer_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "LISTING_LIMIT_S", 0.5)
    server = serve(faults=[Fault(stall_at=10)] * 9)
    assert missed(asked(server), from_repository(REPO)) == f"HF_ENDPOINT={server.url}: no answer within 0.5 s"


def test_offline_mode_is_said(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    server = serve()
    assert missed(asked(server), from_repository(REPO)) == "HF_HUB_OFFLINE is set: unset it"
    assert server.requests == []


def test_without_the_package_there_is_no_hub(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(hub.importlib, "import_module", no_module)
    assert missed(asked(serve()), from_repository(REPO)) == "the package huggingface_hub is not installed"


def test_only_repositories_are_its_business() -> None:
    assert missed(Hub(), from_text("smol")) == "it has Hugging Face repositories only"


def storage_only(fault: Fault, count: int = 1) -> Callable[[Request], Fault | None]:
    left = [fault] * count

    def faults(request: Request) -> Fault | None:
        return left.pop() if left and "/storage/" in request.path and request.method == "GET" else None

    return faults


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=429, headers={"Retry-After": "0"}),
        Fault(status=503),
        Fault(cut_at=100),
        Fault(reset_at=1000),
        Fault(whole=True),
        Fault(status=403),
    ],
    ids=["429", "503", "cut", "reset", "range ignored", "ticket refused"],
)
def test_what_passes_leaves_a_whole_model(serve: Serve, store: Store, fault: Fault, files: dict[str, bytes]) -> None:
    made = brought(asked(serve(faults=storage_only(fault))), from_repository(f"{REPO}:Q4_K_M"), store)
    assert made.layers[1].path(store.root).read_bytes() == files["Q-Q4_K_M.gguf"]
    assert not left_over(store)


def test_tickets_that_run_out_are_renewed(serve: Serve, store: Store) -> None:
    server = serve(uses=2)
    made = brought(asked(server), from_repository(f"{REPO}:Q4_K_M"), store)
    assert made.lacks(store.root) == []
    assert len(server.fake.tickets) > 2


@pytest.mark.parametrize("own_transfer", [False, True])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(flip_at=50), "the bytes have sha256"),
        (Fault(status=404), "HTTP 404|there is no such file"),
    ],
    ids=["wrong bytes", "gone"],
)
def test_what_does_not_pass_leaves_nothing(
    serve: Serve,
    store: Store,
    fault: Fault,
    words: str,
    own_transfer: bool,  # noqa: FBT001 - a parameter
) -> None:
    server = serve(faults=storage_only(fault, 99))
    source = asked(server, own_transfer=own_transfer)
    wanted = replace(from_repository(f"{REPO}:Q4_K_M"), skip_projector=True)
    with pytest.raises(Exception, match=words):
        brought(source, wanted, store)
    assert not blobs(store)
    with pytest.raises(WeightsUnavailable, match=f"no source has '{wanted.text}': hub: ") as caught:
        chain.place(wanted, [source], store)
    assert "HF_TOKEN" in caught.value.hint
    assert not blobs(store)


def test_a_download_goes_on_where_another_worker_stopped(serve: Serve, store: Store, files: dict[str, bytes]) -> None:
    size = len(files["Q-Q4_K_M.gguf"])
    broken = serve(faults=lambda request: None if (request.span or (0, 0))[0] < size // 2 else Fault(status=404))
    wanted = replace(from_repository(f"{REPO}:Q4_K_M"), skip_projector=True)
    with pytest.raises(Exception, match="no such file"):
        brought(replace(asked(broken), terms=replace(TERMS, connections=1)), wanted, store)
    server = serve()
    brought(asked(server), wanted, store)
    first, second = (
        sum(request.span[1] - request.span[0] for request in s.requests if request.span and "/storage/" in request.path)
        for s in (broken, server)
    )
    assert second <= size - size // 4
    assert first + second >= size


def test_files_too_large_for_plain_http_are_left_to_the_library(
    serve: Serve, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "LARGEST_BY_HTTP_BYTES", 1000)
    server = serve()
    heard = Heard()
    monkeypatch.setattr("worker.progress.REPORT_INTERVAL_S", 0.0)
    brought(asked(server), from_repository(f"{REPO}:Q4_K_M"), store, heard)
    assert all(request.span is None for request in server.requests if "/storage/" in request.path)
    assert [source for source, _ in heard.progress][:1] == ["hub"]


def test_an_offer_tells_its_size(serve: Serve, files: dict[str, bytes]) -> None:
    offer = asked(serve()).offer(from_repository(f"{REPO}:Q4_K_M"))
    assert isinstance(offer, Offer)
    assert offer.moved_bytes == len(files["Q-Q4_K_M.gguf"]) + len(files["mmproj-F16.gguf"])


def test_a_local_copy_needs_no_hub(serve: Serve, store: Store) -> None:
    wanted = from_repository(REPO)
    brought(asked(serve()), wanted, store)
    server = serve()
    placed = chain.place(wanted, [asked(server)], store)
    assert (placed.name, placed.source) == ("hf/unsloth-qwen-tiny-gguf:q4_k_m", "local")
    assert server.requests == []
