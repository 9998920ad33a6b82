"""Devices, drivers and what CUDA_VISIBLE_DEVICES leaves of them."""

from __future__ import annotations

import pytest

from worker.device import Device, Driver, Found, capability_of, visible

H100 = (9, 0)
PAIR = Found(
    (Device(0, "NVIDIA H100", "GPU-aaaa-1", H100), Device(1, "NVIDIA H100", "GPU-aabb-2", H100)),
    Driver("550.127.05"),
    "test",
)
UNEQUAL = Found((Device(0, "NVIDIA L4", "GPU-1", (8, 9)), Device(1, "NVIDIA H100", "GPU-2", H100)), None, "test")


@pytest.mark.parametrize("text", ["9.0", "90", "90a", "sm_90", "compute_90a", " 9.0 ", "SM_90A"])
def test_every_spelling_of_a_compute_capability_is_read(text: str) -> None:
    assert capability_of(text) == (9, 0)


def test_capabilities_of_three_digits_are_read() -> None:
    assert [capability_of(text) for text in ("10.3", "103", "120f", "12.1")] == [(10, 3), (10, 3), (12, 0), (12, 1)]


@pytest.mark.parametrize("text", ["", "9", "9.", ".0", "H100", "9.0.1", "[N/A]", "-9.0", "sm_", "9,0", "all"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no compute capability") as caught:
        capability_of(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("version", "branch", "cuda"),
    [
        ("550.127.05", 550, (12, 4)),
        ("570.86.15", 570, (12, 8)),
        ("580.65.06", 580, (13, 0)),
        ("573.1", 573, (12, 8)),  # between two known branches: what the older one is good for
        ("999.1", 999, (13, 1)),  # newer than the table: at least the newest known
        ("390.48", 390, (0, 0)),
    ],
)
def test_a_driver_that_says_no_cuda_version_is_judged_by_its_branch(
    version: str, branch: int, cuda: tuple[int, int]
) -> None:
    assert (Driver(version).branch, Driver(version).cuda) == (branch, cuda)


def test_what_the_driver_says_counts_more_than_its_branch() -> None:
    driver = Driver("580.65.06", (13, 5))
    assert driver.cuda == (13, 5)
    assert str(driver) == "580.65.06 (CUDA 13.5)"


@pytest.mark.parametrize("version", ["", "[N/A]", "R550", "."])
def test_what_is_no_version_makes_no_driver(version: str) -> None:
    with pytest.raises(ValueError, match="is no driver version"):
        Driver(version)


def shown(found: Found, **environ: str) -> list[str]:
    return [device.uuid for device in visible(found, environ).devices]


def test_without_the_variable_every_device_is_visible() -> None:
    assert visible(PAIR, {}) is PAIR


@pytest.mark.parametrize(
    ("value", "uuids"),
    [
        ("0", ["GPU-aaaa-1"]),
        ("1,0", ["GPU-aabb-2", "GPU-aaaa-1"]),
        ("1, 1", ["GPU-aabb-2"]),
        ("0,7,1", ["GPU-aaaa-1"]),
        ("0,-1,1", ["GPU-aaaa-1"]),
        ("7", []),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
        ("GPU-aab", ["GPU-aabb-2"]),
        ("GPU-aabb-2,GPU-aaaa-1", ["GPU-aabb-2", "GPU-aaaa-1"]),
        ("GPU-aa", []),  # two devices start like this
        ("GPU-zz", []),
        ("aabb", []),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(value: str, uuids: list[str]) -> None:
    assert shown(PAIR, CUDA_VISIBLE_DEVICES=value) == uuids


def test_the_visible_devices_are_counted_from_0_again() -> None:
    assert [device.index for device in visible(PAIR, {"CUDA_VISIBLE_DEVICES": "1,0"}).devices] == [0, 1]


def test_hidden_devices_leave_a_note_and_visible_ones_do_not() -> None:
    assert visible(PAIR, {"CUDA_VISIBLE_DEVICES": "1"}).notes == ("CUDA_VISIBLE_DEVICES=1 hides 1 of 2 devices",)
    assert visible(PAIR, {"CUDA_VISIBLE_DEVICES": "0,1"}).notes == ()


def test_numbers_say_nothing_between_unequal_devices_unless_the_order_is_fixed() -> None:
    assert shown(UNEQUAL, CUDA_VISIBLE_DEVICES="1") == ["GPU-1", "GPU-2"]
    assert "ambiguous" in visible(UNEQUAL, {"CUDA_VISIBLE_DEVICES": "1"}).notes[0]
    assert shown(UNEQUAL, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-2"]
    assert shown(UNEQUAL, CUDA_VISIBLE_DEVICES="GPU-2") == ["GPU-2"]


def test_mig_instances_are_named_by_their_own_uuid() -> None:
    parts = tuple(Device(index, "NVIDIA H100", f"MIG-{index}", H100, mig=True) for index in range(2))
    assert shown(Found(parts, None, "test"), CUDA_VISIBLE_DEVICES="MIG-1") == ["MIG-1"]


def test_a_device_reads_as_name_and_capability() -> None:
    assert str(Device(0, "NVIDIA L4", capability=(8, 9))) == "NVIDIA L4 (8.9)"
    assert str(Device(0, "NVIDIA L4")) == "NVIDIA L4 (?)"
