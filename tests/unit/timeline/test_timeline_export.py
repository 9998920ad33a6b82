import json
from collections.abc import Callable

from worker.timeline import export, model, parse


def test_a_timeline_survives_json_and_its_times_add_up(own_log: str) -> None:
    (timeline,) = model.timelines(parse.read(own_log))
    told = json.loads(json.dumps(export.to_dict(timeline)))
    assert told["own"]
    assert told["covered_ns"] + told["gap_ns"] == told["total_ns"] == 5_425_000_000
    path = told["critical_path"]
    assert path[0]["start_ns"] == 0
    assert path[-1]["end_ns"] == told["total_ns"]
    assert sum(step["end_ns"] - step["start_ns"] for step in path) == told["total_ns"]
    load = next(span for span in told["spans"] if span["name"] == "load")
    assert (load["state"], load["meaning"]) == ("closed", "weights into (video) memory")
    assert load["parts"][0]["start_ns"] == load["start_ns"]
    assert load["parts"][-1]["end_ns"] == load["end_ns"]
    (job,) = told["jobs"]
    assert (job["job_id"], job["accepted_ns"], job["ttft_ns"]) == ("job-1", 5_300_000_000, 105_000_000)


def test_findings_carry_their_sentence(log: Callable[[str], str]) -> None:
    (timeline,) = model.timelines(parse.read(log("stock_docker.log")))
    first = export.to_dict(timeline)["findings"][0]
    assert set(first) == {"code", "evidence", "cost_ns", "sentence"}
    assert first["sentence"].startswith("The weights came in at the speed of a single reader")


def test_a_comparison_holds_both_and_their_differences(own_log: str, log: Callable[[str], str]) -> None:
    (before,), (after,) = (model.timelines(parse.read(text)) for text in (log("stock_docker.log"), own_log))
    told = json.loads(json.dumps(export.comparison(before, after)))
    rows = {row["name"]: row for row in told["differences"]}
    assert rows["total"]["change_ns"] == told["after"]["total_ns"] - told["before"]["total_ns"]
    assert rows["sdk"]["before_ns"] is None
