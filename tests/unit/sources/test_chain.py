from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.repositories import Heard, folder
from worker.errors import WeightsUnavailable
from worker.http_answer import TransferFailed
from worker.known_digest import Damaged
from worker.lease import Lease
from worker.location import Located, locate
from worker.manifest import Manifest
from worker.progress import Halted, Progress
from worker.references import Wanted, from_repository, from_text
from worker.registration import Registration
from worker.sources import turn
from worker.sources.base import SOURCES, Delivery, Miss, Offer, SourceFailed
from worker.sources.chain import Placed, Policy, chosen, place, ranked, tiers
from worker.sources.turn import Fence, Turn, WaitedInVain
from worker.store import Store

WANTED = from_text("smol:135m")
QUICK = Policy(limit_s=10.0, term_s=1.0)


@dataclass
class Fake:
    """A source that says what it is told to say, and notes what it was asked."""

    name: str
    far: bool
    answer: Miss | None = None
    moved_bytes: int | None = 100
    rate: float = 100.0
    failure: Exception | None = None
    bring: Callable[[Delivery], Manifest] | None = None
    asked: list[str] = field(default_factory=list)

    def offer(self, wanted: Wanted) -> Offer | Miss:  # noqa: ARG002 - a source is asked for something
        self.asked.append("offer")
        if self.answer is not None:
            return self.answer
        return Offer(self.name, self.moved_bytes, self.rate, self._bring)

    def _bring(self, delivery: Delivery) -> Manifest:
        self.asked.append("bring")
        if self.failure is not None:
            raise self.failure
        assert self.bring is not None
        return self.bring(delivery)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def bring(tmp_path: Path) -> Callable[[Delivery], Manifest]:
    gguf = folder(tmp_path / "files", "M-Q8_0.gguf") / "M-Q8_0.gguf"

    def register(delivery: Delivery) -> Manifest:
        return Registration(gguf).into(delivery.store, delivery.wanted.name).manifest

    return register


def missing(name: str, *, far: bool = False) -> Fake:
    return Fake(name, far, Miss(name, f"{name} has it not"))


def test_the_first_source_that_has_it_brings_it(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    heard = Heard()
    sources = [missing("local"), Fake("model_store", far=False, bring=bring), Fake("hub", far=True, bring=bring)]
    placed = place(WANTED, sources, store, heard.listener, QUICK)
    found = locate([store.root], WANTED)
    assert isinstance(found, Located)
    assert placed == Placed("smol:135m", store.root, "model_store", found.manifest)
    assert heard.misses == [Miss("local", "local has it not")]
    # No network is asked when something near has it.
    assert [source.asked for source in sources] == [["offer"], ["offer", "bring"], []]
    assert list(store.leases.iterdir()) == []


def test_what_is_there_is_not_asked_for(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    source = Fake("hub", far=True, bring=bring)
    place(WANTED, [source], store, policy=QUICK)
    source.asked.clear()
    assert place(WANTED, [source], store, policy=QUICK).source == "local"
    assert source.asked == []


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SourceFailed("it broke"), "it broke"),
        (TransferFailed("there is no such file"), "there is no such file"),
        (Damaged("m.gguf", "a" * 64, "b" * 64), "m.gguf: the bytes have sha256"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ValueError("unreadable"), "unreadable"),
    ],
)
def test_a_source_that_fails_is_passed_over(
    store: Store, bring: Callable[[Delivery], Manifest], failure: Exception, reason: str
) -> None:
    heard = Heard()
    sources = [Fake("object_store", far=True, failure=failure), Fake("hub", far=True, rate=1.0, bring=bring)]
    assert place(WANTED, sources, store, heard.listener, QUICK).source == "hub"
    assert [(miss.source, miss.reason.startswith(reason)) for miss in heard.misses] == [("object_store", True)]


def test_every_miss_is_in_the_error(store: Store) -> None:
    wanted = from_text("org/repo-GGUF")
    sources = [missing("local"), Fake("hub", far=True, failure=SourceFailed("gated")), missing("registry", far=True)]
    with pytest.raises(WeightsUnavailable) as caught:
        place(wanted, sources, store, policy=QUICK)
    assert caught.value.message == (
        "no source has 'org/repo-GGUF': local: local has it not; registry: registry has it not; hub: gated"
    )
    assert "HF_MODEL=org/repo-GGUF" in caught.value.sentence()
    assert list(store.leases.iterdir()) == []


def test_a_source_that_could_not_have_it_is_named_only_when_no_other_was_asked(store: Store) -> None:
    beside = Fake("hub", far=True, answer=Miss("hub", "it has repositories only", beside=True))
    heard = Heard()
    for sources, told in (
        ([missing("local"), beside], "local: local has it not"),
        ([beside], f"hub: {beside.answer.reason}"),
    ):
        with pytest.raises(WeightsUnavailable) as caught:
            place(WANTED, sources, store, heard.listener, QUICK)
        assert caught.value.message == f"no source has 'smol:135m': {told}"
    # In the log each of them is.
    assert [miss.source for miss in heard.misses] == ["local", "hub", "hub"]


def test_no_source_is_said(store: Store) -> None:
    with pytest.raises(WeightsUnavailable, match="no source has 'smol:135m': there is no source"):
        place(WANTED, [], store, policy=QUICK)


def test_a_bug_is_not_taken_for_a_miss(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        place(WANTED, [Fake("hub", far=True, failure=ZeroDivisionError())], store, policy=QUICK)
    assert list(store.leases.iterdir()) == []


def test_far_sources_are_asked_together(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    together = threading.Barrier(2, timeout=10)

    class Slow(Fake):
        def offer(self, wanted: Wanted) -> Offer | Miss:
            together.wait()
            return super().offer(wanted)

    sources = [Slow("object_store", far=True, bring=bring), Slow("hub", far=True, bring=bring)]
    assert place(WANTED, sources, store, policy=QUICK).source == "object_store"


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WeightsUnavailable, match=r"store cannot be used: Not a directory") as caught:
        place(WANTED, [], Store(tmp_path / "file" / "store"), policy=QUICK)
    assert "OLLAMA_MODELS" in caught.value.hint


def test_a_model_that_only_has_to_be_dressed_asks_nobody(store: Store, tmp_path: Path) -> None:
    gguf = folder(tmp_path / "files", "M-Q8_0.gguf") / "M-Q8_0.gguf"
    wanted = from_repository("org/repo:Q8_0")
    Registration(gguf).into(store, wanted.name)
    gguf.unlink()
    dressed = replace(wanted, template="{{ .Prompt }}")
    source = Fake("hub", far=True)
    placed = place(dressed, [source], store, policy=QUICK)
    assert (placed.source, source.asked) == ("local", [])
    assert placed.manifest.layer("template") is not None
    assert isinstance(locate([store.root], dressed), Located)


def test_a_model_that_cannot_be_dressed_is_brought_again(store: Store, tmp_path: Path) -> None:
    gguf = folder(tmp_path / "files", "M-Q8_0.gguf") / "M-Q8_0.gguf"
    wanted = from_repository("org/repo:Q8_0")
    Registration(gguf, skip_projector=True).into(store, wanted.name)

    projector = folder(tmp_path / "files", "mmproj-F16.gguf") / "mmproj-F16.gguf"

    def again(delivery: Delivery) -> Manifest:
        return Registration(gguf, projector=projector).into(delivery.store, wanted.name).manifest

    placed = place(wanted, [Fake("hub", far=True, bring=again)], store, policy=QUICK)
    assert (placed.source, placed.manifest.layer("projector") is not None) == ("hub", True)


# --- Policy, pure


offers = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.none() | st.integers(0, 10**12), st.floats(1e3, 1e10)).map(
        lambda o: Offer(*o, bring=lambda _: pytest.fail("not asked to"))
    )
)


@given(offers)
def test_the_fastest_offer_comes_first_and_none_is_lost(found: list[Offer]) -> None:
    order = ranked(found, in_order=False)
    assert sorted(map(id, order)) == sorted(map(id, found))
    times = [offer.expected_s for offer in order]
    assert times == sorted(times)
    for one, other in itertools.pairwise(order):
        if one.expected_s == other.expected_s:
            assert found.index(one) <= found.index(other)
    assert ranked(found, in_order=True) == found


def test_who_is_asked_before_whom() -> None:
    local, hub, cache = Fake("local", far=False), Fake("hub", far=True), Fake("model_store", far=False)
    assert tiers([local, hub, cache], in_order=False) == [[local, cache], [hub]]
    assert tiers([hub, local], in_order=True) == [[hub], [local]]
    assert tiers([hub], in_order=False) == [[hub]]


def test_names_choose_and_order_sources() -> None:
    sources = [Fake(name, far=False) for name in SOURCES]
    baked = Fake("local", far=False)
    assert [source.name for source in chosen(sources, ["hub", "local"])] == ["hub", "local"]
    assert chosen([*sources, baked], ["local"]) == [sources[0], baked]
    assert chosen(sources, []) == sources
    with pytest.raises(ValueError, match="there is no source 'hubb'; there are local, volume, model_store"):
        chosen(sources, ["hubb"])


# --- One after another


def test_one_worker_brings_it_and_the_others_wait(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    brought: list[int] = []
    told: list[tuple[str, Progress]] = []

    def slow(delivery: Delivery) -> Manifest:
        brought.append(1)
        for done in range(4):
            delivery.listener.progressed("hub", Progress(25 * done, 100, 50.0))
            time.sleep(0.5)
        return bring(delivery)

    results: list[Placed] = []

    def work() -> None:
        heard = Heard()
        results.append(place(WANTED, [Fake("hub", far=True, bring=slow)], store, heard.listener, QUICK))
        told.extend(heard.progress)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert brought == [1]
    assert sorted(placed.source for placed in results) == ["hub", "volume", "volume", "volume", "volume"]
    # Those who waited were told how far the other was.
    assert len([source for source, _ in told]) > 4
    assert list(store.leases.iterdir()) == []


def test_who_waits_too_long_gives_up(store: Store) -> None:
    lease = Lease.acquire(Turn(store, WANTED)._lease, term_s=60.0)
    assert lease is not None
    with pytest.raises(WeightsUnavailable, match="another worker holds smol_135m-"):
        place(WANTED, [], store, policy=Policy(limit_s=0.2))
    with pytest.raises(WaitedInVain):
        Turn(store, WANTED).take(0.0)


def test_a_worker_that_died_is_taken_over_from(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    assert Lease.acquire(Turn(store, WANTED)._lease, term_s=0.5) is not None
    began_s = time.monotonic()
    assert place(WANTED, [Fake("hub", far=True, bring=bring)], store, policy=QUICK).source == "hub"
    assert time.monotonic() - began_s >= 0.4


def test_who_lost_the_lease_stops_and_waits_for_the_other(store: Store, bring: Callable[[Delivery], Manifest]) -> None:
    heard = Heard()
    attempts: list[int] = []

    def overtaken(delivery: Delivery) -> Manifest:
        attempts.append(1)
        path = Turn(store, WANTED)._lease
        path.unlink()
        other = Lease.acquire(path, term_s=60.0)
        assert other is not None
        bring(delivery)
        other.release()
        while True:
            delivery.halt()
            time.sleep(0.01)

    placed = place(WANTED, [Fake("hub", far=True, bring=overtaken)], store, heard.listener, QUICK)
    assert (placed.source, attempts) == ("volume", [1])
    assert heard.notes == [f"another worker goes on with it: {Turn(store, WANTED)._lease.name} was taken over"]


def test_a_fence_looks_at_the_lease_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease.acquire(tmp_path / "x.lease", term_s=6.0)
    assert lease is not None
    now = [1000.0]
    monkeypatch.setattr(turn.time, "monotonic", lambda: now[0])
    fence = Fence(lease, now[0])
    lease.path.unlink()
    fence.halt()
    now[0] += 1.1
    with pytest.raises(Halted, match="was taken over"):
        fence.halt()


def test_a_fence_bears_with_storage_for_a_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease.acquire(tmp_path / "x.lease", term_s=6.0)
    assert lease is not None
    now = [1000.0]
    monkeypatch.setattr(turn.time, "monotonic", lambda: now[0])
    fence = Fence(lease, now[0])

    def fail(_: Lease) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Lease, "check", fail)
    now[0] += 5.9
    fence.halt()
    now[0] += 0.2
    with pytest.raises(Halted, match="the lease cannot be read: Input/output error"):
        fence.halt()


def test_news_that_cannot_be_read_are_no_news(store: Store) -> None:
    mine = Turn(store, WANTED)
    assert mine._news() is None
    store.leases.mkdir(parents=True)
    mine.tell("hub", Progress(1, 2, 3.0))
    assert mine._news() == ("hub", Progress(1, 2, 3.0))
    for content in ("{", "[]", '{"source": "hub"}', '{"source": "hub", "done": "x", "total": 1, "rate": 1}'):
        mine._progress.write_text(content)
        assert mine._news() is None
    mine.over()
    assert not mine._progress.exists()
