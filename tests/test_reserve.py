"""What is left free of a cluster while placements are looked for that hold."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dagtrain.planning.carry import reserving
from placement.problem.instance import Configuration, Device, Instance, Item
from placement.problem.routes import Cable


def test_a_share_of_all_that_placements_are_priced_too_low_for_is_left_free() -> None:
    made = Configuration(label="c", cycles_per_frame=1)
    items = (Item(name="a", configurations={"P": (made,)}, layer="a"),)
    devices = tuple(
        Device(name=name, part="P", dsp=100, m20k=200, alm=300, dram_bytes_per_s=400, link_bits_per_s=500)
        for name in ("d0", "d1")
    )
    instance = Instance(name="i", clock_hz=1, items=items, links=(), devices=devices)
    (found, other) = reserving(instance, Fraction(3, 100)).devices
    # engines take no more multipliers than is reckoned with
    assert (found.dsp, found.m20k, found.alm, found.dram_bytes_per_s, found.link_bits_per_s) == (
        100,
        194,
        291,
        388,
        485,
    )
    assert replace(other, name="d0") == found
    assert reserving(instance, Fraction(0)) == instance
    cable = Cable(a="d0", a_port=0, b="d1", b_port=0, bits_per_s=700)
    cabled = replace(
        instance, cables=(cable,), devices=tuple(replace(device, link_bits_per_s=700) for device in devices)
    )
    reserved = reserving(cabled, Fraction(3, 100))
    assert [one.bits_per_s for one in reserved.cables] == [679]
    assert {device.link_bits_per_s for device in reserved.devices} == {679}
