"""A queue is read as it is: nothing is judged, nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.patches.queue import load_queue, parse_patch

PATCH = """Description: one line
 Why, first line:
 * and a second one.
Drop-When: never
Forwarded: no
---
diff --git a/llm/a.go b/llm/a.go
index 1111111..2222222 100644
--- a/llm/a.go
+++ b/llm/a.go
@@ -10,3 +10,4 @@ func f() {
 before
-old
+new
+newer
 after
@@ -30,2 +31 @@

-gone
--- a/llm/b.go\t2026-01-01
+++ b/llm/b.go
@@ -1 +1,2 @@
 kept
+--- looks like a file line, is text
"""


def test_fields_keep_their_further_lines() -> None:
    fields = parse_patch("p", PATCH).fields
    assert fields["Description"] == "one line\nWhy, first line:\n* and a second one."
    assert fields["Drop-When"] == "never"
    assert fields["Forwarded"] == "no"


def test_hunks_know_their_file_number_and_lines() -> None:
    patch = parse_patch("p", PATCH)
    first, second, third = patch.hunks
    assert patch.fault == ""
    assert patch.paths == ("llm/a.go", "llm/b.go")
    assert (first.path, first.number) == ("llm/a.go", 1)
    assert first.before == ("before", "old", "after")
    assert first.added == ("new", "newer")
    assert first.changed == 3
    assert first.context == (1, 1)
    assert second.before == ("", "gone")
    assert second.context == (1, 0)
    assert (third.path, third.number) == ("llm/b.go", 3)
    assert third.added == ("--- looks like a file line, is text",)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("@@ -10,3 +10,4 @@", "@@ -10,3 +10,3 @@", "hunk 1 has not the number of lines"),
        ("@@ -10,3 +10,4 @@", "@@ -10,5 +10,6 @@", "hunk 1 has not the number of lines"),
        ("+--- looks like a file line, is text\n", "", "hunk 3 has not the number of lines"),
        ("--- a/llm/b.go", "--- /dev/null", "it changes /dev/null, which is not a file of upstream"),
    ],
)
def test_a_diff_edited_by_hand_into_nonsense_is_a_fault_not_a_crash(old: str, new: str, fault: str) -> None:
    patch = parse_patch("p", PATCH.replace(old, new))
    assert fault in patch.fault
    assert patch.hunks == ()
    assert patch.fields["Forwarded"] == "no"


def test_a_patch_without_a_diff_says_so() -> None:
    assert parse_patch("p", "Description: nothing\n").fault == "it has no hunk after a line '---'"


def test_an_empty_directory_is_an_empty_queue(tmp_path: Path) -> None:
    queue = load_queue(tmp_path)
    assert (queue.upstream, queue.series, queue.patches, queue.overlay) == ({}, (), {}, {})


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="no patch queue at"):
        load_queue(tmp_path / "missing")


def test_the_order_is_that_of_series_and_skips_what_does_not_exist(queue_dir: Path) -> None:
    names = load_queue(queue_dir).series
    (queue_dir / "series").write_text("\n".join([*reversed(names), "0099-missing.patch"]) + "\n")
    assert [patch.name for patch in load_queue(queue_dir).in_order] == list(reversed(names))


def test_what_is_shipped_are_the_go_files_of_packages(queue_dir: Path) -> None:
    (queue_dir / "overlay" / "llm" / "testdata").mkdir()
    (queue_dir / "overlay" / "llm" / "testdata" / "x.go").write_text("package x\n")
    queue = load_queue(queue_dir)
    assert "go.mod" in queue.overlay
    assert "llm/testdata/x.go" in queue.overlay
    assert "go.mod" not in queue.shipped
    assert "llm/testdata/x.go" not in queue.shipped
    assert "llm/coldstart_poll.go" in queue.shipped
    assert "llm/coldstart_poll_test.go" in queue.shipped
