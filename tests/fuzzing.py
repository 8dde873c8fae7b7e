"""Inputs spoilt by seed, and a place where a command meets them: a process of its own, with limits on time and memory.

A case fails when the command line shows a traceback or ends by its last resort, takes longer than `TIME_LIMIT_S` of
processor time, or more than `MEMORY_LIMIT` bytes.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from onnx import ModelProto

from dagtrain import cli

TIME_LIMIT_S = 10
MEMORY_LIMIT = 1_500_000_000
# what a command may end with: all is well, or one message
GOOD_CODES = (0, 1, 2)


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    # "" if as it should
    fault: str
    # what the command printed on standard error, cut
    error: str


def attempt(words: Sequence[object], folder: Path) -> Outcome:
    """The command line in a child of this process, inside ``folder``."""
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            _run(words, folder, printed.fileno())
        _, status, usage = os.wait4(child, 0)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    for crash in folder.glob("dagtrain-crash-*.txt"):
        text += crash.read_text()
        crash.unlink()
    return Outcome(_fault(status, usage, text), text[-4000:])


def _run(words: Sequence[object], folder: Path, printed: int) -> None:
    """Never returns."""
    code = 99
    try:
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT_S, TIME_LIMIT_S))
        # what a wild size asks for is refused, not taken from the machine
        resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY_LIMIT, 8 * MEMORY_LIMIT))
        os.chdir(folder)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        sys.argv = ["dagtrain", *map(str, words)]
        with open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as error:
            sys.stdout, sys.stderr = out, error
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _fault(status: int, usage: resource.struct_rusage, text: str) -> str:
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"more than {TIME_LIMIT_S} s" if name == "SIGXCPU" or name == "SIGKILL" else f"ended by {name}"
    code = os.waitstatus_to_exitcode(status)
    if "Traceback (most recent call last)" in text or code not in GOOD_CODES:
        return f"exit code {code}: {_last(text)}"
    used = usage.ru_maxrss * 1024
    if used > MEMORY_LIMIT:
        return f"{used / 1e9:.1f} GB of memory"
    if code and "error" not in text.lower():
        return f"exit code {code} without a word"
    return ""


def _last(text: str) -> str:
    """The place and the words of the innermost error of a traceback."""
    places = re.findall(r'File "[^"]*?([\w./-]+\.py)", line (\d+)', text)
    where = ":".join(places[-1]) if places else "?"
    lines = [line for line in text.strip().splitlines() if re.match(r"^[\w.]*(Error|Exception|Interrupt)\b", line)]
    return f"{where}: {lines[-1] if lines else text.strip()[-200:]}"


# ------------------------------------------------------------------------------------------------------- bytes

EXTREMES = (0, 1, 2, 7, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -(2**31), -(2**63))


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, cut out, doubled, swapped or put in."""
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        if not spoilt:
            return bytes(spoilt)
        at = rng.randrange(len(spoilt))
        length = min(rng.choice((1, 2, 8, 64)), len(spoilt) - at)
        match rng.randrange(6):
            case 0:
                spoilt[at] ^= 1 << rng.randrange(8)
            case 1:
                del spoilt[at : at + length]
            case 2:
                spoilt[at:at] = spoilt[at : at + length]
            case 3:
                spoilt[at:at] = rng.randbytes(length)
            case 4:
                spoilt[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x80")) * length
            case _:
                del spoilt[at if rng.random() < 0.2 else max(at, len(spoilt) - length) :]
    return bytes(spoilt)


# ------------------------------------------------------------------------------------------------------ fields


def spoil_fields(model: ModelProto, rng: random.Random) -> bytes:
    """The model with a few fields of its messages changed, removed, doubled or swapped."""
    spoilt = ModelProto()
    spoilt.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        messages = list(_messages(spoilt))
        # structure is rarer than data, and matters more
        message = rng.choice(messages)
        fields = [field for field in message.DESCRIPTOR.fields if rng.random() < 0.8 or _is_set(message, field)]
        if fields:
            _spoil_field(message, rng.choice(fields), messages, rng)
    return spoilt.SerializeToString()


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if _repeated(field) else [value]:
                yield from _messages(item)


def _repeated(field: Any) -> bool:
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


def _is_set(message: Any, field: Any) -> bool:
    return any(known.name == field.name for known, _ in message.ListFields())


def _spoil_field(message: Any, field: Any, messages: Sequence[Any], rng: random.Random) -> None:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    if rng.random() < 0.25:
        message.ClearField(field.name)
        return
    if not _repeated(field):
        if is_message:
            _copy(getattr(message, field.name), field, messages, rng)
        else:
            _set(message, field, rng)
        return
    values = getattr(message, field.name)
    at = rng.randrange(len(values)) if len(values) else 0
    match rng.randrange(4):
        case 0 if len(values):
            del values[at]
        case 1 if is_message:
            _copy(values.add(), field, messages, rng)
        case 2 if len(values) > 1 and not is_message:
            other = rng.randrange(len(values))
            values[at], values[other] = values[other], values[at]
        case _ if not is_message:
            with contextlib.suppress(ValueError, TypeError):
                made = _value(field, rng)
                if len(values) and rng.random() < 0.6:
                    values[at] = made
                else:
                    values.append(made)


def _copy(target: Any, field: Any, messages: Sequence[Any], rng: random.Random) -> None:
    """Another message of the kind in its place."""
    alike = [one for one in messages if one.DESCRIPTOR is field.message_type and one is not target]
    if alike:
        made = type(target)()
        made.CopyFrom(rng.choice(alike))
        target.CopyFrom(made)


def _set(message: Any, field: Any, rng: random.Random) -> None:
    with contextlib.suppress(ValueError, TypeError):
        setattr(message, field.name, _value(field, rng))


STRINGS = (
    "",
    "x",
    "y",
    "Conv",
    "Relu",
    "Gemm",
    "Loop",
    "ConstantOfShape",
    "com.foo",
    "ä\u0000b",
    "a" * 300,
    "../../x",
    "-1",
)


def _value(field: Any, rng: random.Random) -> Any:
    if field.enum_type is not None:
        return rng.choice([value.number for value in field.enum_type.values])
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_INT32:
            return rng.choice([number for number in EXTREMES if -(2**31) <= number < 2**31] + [rng.randrange(40)])
        case FieldDescriptor.CPPTYPE_INT64 | FieldDescriptor.CPPTYPE_UINT64:
            return rng.choice([number for number in EXTREMES if number < 2**63] + [rng.randrange(40)])
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-40, rng.random()))
        case _ if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice((b"", b"\xff\xfe", rng.randbytes(rng.randrange(64))))
        case _:
            return rng.choice(STRINGS)


# -------------------------------------------------------------------------------------------------------- text

WORDS = (
    "0", "-1", "1e400", "nan", "inf", "true", '""', '"x"', "[]", "{}", "[[[]]]", "99999999999999999999", "1.5", "0x1F",
    "1979-05-27", '"10AX115"', '"\\u0000"', "{a = 1}", "0.0000000001", "1e-300", "4_0", "[1, 2]", '"""x"""',
)  # fmt: skip


def spoil_toml(text: str, rng: random.Random) -> bytes:
    """Values, keys or headings of a TOML file changed, doubled, moved or removed, now and then bytes."""
    if rng.random() < 0.15:
        return spoil_bytes(text.encode(), rng)
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        match rng.randrange(7):
            case 0 | 1 if equals:
                lines[at] = f"{key}= {rng.choice(WORDS)}"
            case 2 if equals:
                lines[at] = (
                    f"{rng.choice(('name', 'part', 'count', 'x', 'clock_mhz', 'board'))} ={lines[at][len(key) + 1 :]}"
                )
            case 3:
                del lines[at]
            case 4:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            case 5:
                lines[at] = lines[at].replace("[[", "[").replace("]]", "]") if rng.random() < 0.5 else f"[{lines[at]}]"
            case _:
                lines.insert(at, "a = " + "[" * rng.choice((1, 50, 5000)) if rng.random() < 0.3 else rng.choice(WORDS))
        if not lines:
            return b""
    return ("\n".join(lines) + "\n").encode(errors="surrogatepass")


# --------------------------------------------------------------------------------------------------------- json


def spoil_folder(folder: Path, rng: random.Random) -> str:
    """One file of a working folder damaged; returns which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    name = str(path.relative_to(folder))
    match rng.randrange(6):
        case 0:
            path.unlink()
            return f"{name} removed"
        case 1:
            path.write_bytes(b"")
            return f"{name} emptied"
        case 2:
            other = rng.choice(files)
            path.write_bytes(other.read_bytes())
            return f"{name} holds {other.relative_to(folder)}"
        case 3 if path.suffix == ".json":
            path.write_text(rng.choice(("[]", "1", "null", '"x"', "{}", "[" * 3000)))
            return f"{name} is other JSON"
        case 4 if path.suffix == ".json":
            return f"{name}: {_spoil_json(path, rng)}"
        case _:
            path.write_bytes(spoil_bytes(path.read_bytes(), rng))
            return f"{name}: bytes"


def _spoil_json(path: Path, rng: random.Random) -> str:
    import json

    document = json.loads(path.read_text())
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        for key in keys:
            places.append((value, key))
            walk(value[key])

    walk(document)
    if not places:
        return "nothing to change"
    holder, key = rng.choice(places)
    if rng.random() < 0.3:
        del holder[key]
        change = "removed"
    else:
        holder[key] = rng.choice((None, 0, -1, 2**70, 1.5, "", "x", [], {}, [None], True, "\ud800", holder[key]))
        change = "changed"
    path.write_text(json.dumps(document))
    return f"{key!r} {change}"


def hunt(count: int, seed: int, case: Callable[[random.Random, int], Outcome]) -> list[str]:
    """Runs ``count`` cases, each of a seed of its own; returns a line for each kind of fault."""
    found: dict[str, list[int]] = {}
    for index in range(count):
        outcome = case(random.Random(f"{seed}/{index}"), index)
        if outcome.fault:
            found.setdefault(outcome.fault, []).append(index)
    return [f"{len(cases)} x {fault} (seed {seed}, case {cases[0]})" for fault, cases in found.items()]
