"""A dissector for Wireshark of frames between devices, made of the one definition of the frame."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hdl.link.ethernet.frame import (
    CRC_BYTES,
    CRC_POLYNOMIAL,
    DESCRIPTOR,
    DESCRIPTOR_BITS,
    DTL_BYTES,
    HEADER,
    HOST,
    TAG_BYTES,
    UDP_PORT,
    DescriptorFlag,
    Field,
    FrameFlag,
    FrameType,
)

FILE = "dagtrain.lua"
# fields that people read as hexadecimal
_HEXADECIMAL = frozenset({"dtl.flags", "dtl.digest", "descriptor.flags"})

_BODY = """
local dtl = Proto("dtl", "dagtrain link")
local fields = {{
{fields}
    crc = ProtoField.uint32("dtl.crc", "CRC-32C", base.HEX),
    tag = ProtoField.uint64("dtl.tag", "tag", base.HEX),
    words = ProtoField.bytes("dtl.words", "words"),
}}
local list = {{}}
for _, field in pairs(fields) do list[#list + 1] = field end
dtl.fields = list
local bad_crc = ProtoExpert.new("dtl.bad_crc", "CRC-32C is wrong", expert.group.CHECKSUM, expert.severity.ERROR)
local bad_length = ProtoExpert.new("dtl.bad_length", "lengths disagree", expert.group.MALFORMED, expert.severity.ERROR)
dtl.experts = {{ bad_crc, bad_length }}

local table_of_bytes = {{}}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local shifted = bit.rshift(crc, 1)
        crc = bit.band(crc, 1) == 1 and bit.bxor(shifted, {polynomial:#x}) or shifted
    end
    table_of_bytes[byte] = crc
end

local function crc32c(buffer)
    local crc, bytes = 0xffffffff, buffer:bytes()
    for at = 0, bytes:len() - 1 do
        local entry = table_of_bytes[bit.band(bit.bxor(crc, bytes:get_index(at)), 255)]
        crc = bit.bxor(bit.rshift(crc, 8), entry)
    end
    return bit.band(bit.bxor(crc, 0xffffffff), 0xffffffff) % 0x100000000
end

local function device(number)
    return number == {host:#x} and "host" or tostring(number)
end

local function dissect_payload(buffer, tree, beat)
    local at, size = 0, buffer:len()
    while at + beat <= size do
        local group = tree:add(dtl, buffer(at, beat), "descriptors")
        local after = at + beat
        for place = at, at + beat - {descriptor}, {descriptor} do
            local cell = buffer(place, {descriptor})
            local stream, words = {stream}, {words}
            local flags, credits = {descriptor_flags}, {credits}
            if words > 0 or flags > 0 then
                local text = words .. " words of stream " .. stream
                if bit.band(flags, {credit}) > 0 then text = credits .. " credits for stream " .. stream end
                local entry = group:add(dtl, cell, text)
{descriptor_adds}
                if after + words * beat > size then
                    entry:add_proto_expert_info(bad_length)
                    return
                end
                if words > 0 then entry:add(fields.words, buffer(after, words * beat)) end
                after = after + words * beat
            end
        end
        group:set_len(after - at)
        at = after
    end
end

function dtl.dissector(buffer, packet, tree)
    if buffer:len() < {header} + {crc_bytes} then return 0 end
    packet.cols.protocol = "DTL"
    local root = tree:add(dtl, buffer(), "dagtrain link")
{header_adds}
    local kinds = {{ {kinds} }}
    local kind, beats = {type}, {beats}
    local trailer = bit.band({flags}, {keyed}) > 0 and {crc_bytes} + {tag_bytes} or {crc_bytes}
    local size = buffer:len() - {header} - trailer
    local name = kinds[kind] or ("type " .. kind)
    packet.cols.info = name .. " " .. device({source}) .. " > " .. device({target})
        .. " sequence " .. {sequence} .. " acknowledge " .. {acknowledge} .. " beats " .. beats
    if size < 0 or (beats == 0) ~= (size == 0) or (beats > 0 and size % beats ~= 0) then
        root:add_proto_expert_info(bad_length)
        return buffer:len()
    end
    local crc = root:add(fields.crc, buffer({header} + size, {crc_bytes}))
    if crc32c(buffer(0, {header} + size)) ~= buffer({header} + size, {crc_bytes}):uint() then
        crc:add_proto_expert_info(bad_crc)
    elseif kind == {data} and beats > 0 then
        dissect_payload(buffer({header}, size):tvb(), root, size / beats)
    end
    if trailer > {crc_bytes} then root:add(fields.tag, buffer({header} + size + {crc_bytes}, {tag_bytes})) end
    return buffer:len()
end

DissectorTable.get("udp.port"):add({port}, dtl)
"""


def dissector() -> str:
    """The text of `FILE`, for Wireshark 3 or later with Lua."""
    dtl = [field for field in HEADER.values() if field.layer == "dtl"]
    start = dtl[0].offset

    def number(field: Field, buffer: str, base: int = 0) -> str:
        """A field's value as Lua."""
        first, last = (field.offset - base) // 8, (field.offset - base + field.bits - 1) // 8
        if field.bits % 8:
            return f"{buffer}({first}, 1):bitfield({(field.offset - base) % 8}, {field.bits})"
        return f"{buffer}({first}, {last - first + 1}):uint()"

    told = {field.name: number(field, "buffer", start) for field in dtl}
    cells = {field.name: number(field, "cell") for field in DESCRIPTOR.values()}
    return "-- Frames between devices of dagtrain.  Generated.\n" + _BODY.format(
        fields="\n".join(_declared([*dtl, *DESCRIPTOR.values()])),
        polynomial=CRC_POLYNOMIAL,
        host=HOST,
        header=DTL_BYTES,
        crc_bytes=CRC_BYTES,
        tag_bytes=TAG_BYTES,
        port=UDP_PORT,
        keyed=FrameFlag.KEYED.value,
        credit=DescriptorFlag.CREDIT.value,
        data=FrameType.DATA.value,
        kinds=", ".join(f'[{kind.value}] = "{kind.name}"' for kind in FrameType),
        descriptor=DESCRIPTOR_BITS // 8,
        descriptor_flags=cells["flags"],
        stream=cells["stream"],
        words=cells["words"],
        credits=cells["credits"],
        header_adds="\n".join(_added(field, "root", "buffer", start, 4) for field in dtl),
        descriptor_adds="\n".join(_added(field, "entry", "cell", 0, 16) for field in DESCRIPTOR.values()),
        **{name: told[name] for name in ("type", "flags", "source", "target", "sequence", "acknowledge", "beats")},
    )


def write_dissector(folder: Path) -> Path:
    """Writes `FILE` into a folder; its path."""
    path = folder / FILE
    path.write_text(dissector(), encoding="utf-8")
    return path


def _variable(field: Field) -> str:
    return field.label.replace(".", "_")


def _declared(fields: Iterable[Field]) -> Iterable[str]:
    """A line of Lua for each field: a nibble is shown through a mask of its byte."""
    for field in fields:
        base = "base.HEX" if field.label in _HEXADECIMAL else "base.DEC"
        name = field.label if field.layer == "dtl" else f"dtl.{field.label}"
        width = -(-field.bits // 8) * 8
        mask = (
            f", nil, {((1 << field.bits) - 1) << (width - field.offset % 8 - field.bits):#x}" if field.bits % 8 else ""
        )
        yield f'    {_variable(field)} = ProtoField.uint{width}("{name}", "{field.name}", {base}{mask}),'


def _added(field: Field, tree: str, buffer: str, start: int, indent: int) -> str:
    """A line of Lua that shows a field."""
    offset = field.offset - start
    place = f"{buffer}({offset // 8}, {-(-(offset % 8 + field.bits) // 8)})"
    return f"{' ' * indent}{tree}:add(fields.{_variable(field)}, {place})"
