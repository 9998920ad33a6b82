from worker.timeline import boots
from worker.timeline.parse import Entry


def entries(*names: str) -> list[Entry]:
    return [Entry(at_ns, 0, name, {}) for at_ns, name in enumerate(names)]


def split(*names: str) -> list[list[str]]:
    return [[entry.name for entry in boot] for boot in boots.split(entries(*names))]


def test_one_start_stays_whole() -> None:
    whole = ["container.created", "container.begun", "container.started", "worker.started", "server.configured", "x"]
    assert split(*whole) == [whole]


def test_an_earlier_stage_met_again_begins_another_start() -> None:
    assert split("container.begun", "server.configured", "x", "container.begun", "server.configured") == [
        ["container.begun", "server.configured", "x"],
        ["container.begun", "server.configured"],
    ]
    assert split("server.configured", "x", "server.configured") == [["server.configured", "x"], ["server.configured"]]
    assert split("container.started", "worker.started", "worker.started")[1] == ["worker.started"]


def test_a_tail_of_the_start_before_belongs_to_the_first() -> None:
    assert split("job.finished", "container.started", "x") == [["job.finished", "container.started", "x"]]


def test_a_container_that_never_spoke_is_no_start() -> None:
    assert split("container.begun", "container.created", "container.begun", "server.configured") == [
        ["container.created", "container.begun", "server.configured"]
    ]
    assert split("container.begun", "container.begun") == [["container.begun", "container.begun"]]


def test_a_line_without_a_time_begins_nothing() -> None:
    first, second = entries("server.configured", "server.configured")
    timeless = Entry(second.at_ns, 0, second.name, {}, exact=False)
    assert boots.split([first, timeless]) == [(first, timeless)]
