"""The host's port of a simulated switch behind a UDP socket: headers come off on one side and are put on on the other.

The simulation asks at cycles that the bridge has chosen what comes in (`Bridge.exchange`); a program on the UDP side
sends all frames to the one place that the bridge has taken, as `dagtrain drive --host` does, and gets those for the
host from there.
"""

from __future__ import annotations

import ipaddress
import select
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from google_crc32c import value as fast_crc32c

from dagtrain.host.endpoint import BUFFER_BYTES, LONGEST, Place, not_bound
from dagtrain.host.wiring import DeviceTable, HostTable, Wiring, WiringError
from hdl.link.ethernet.frame import HOST, Address, Drop, Dropped, ends_of, unwrapped, wrapped

# cycles from one look at the socket to the next; seconds for which the simulation waits at each while nobody has spoken
STEP_CYCLES, QUIET_SECONDS = 64, 0.2
# datagrams taken at one look
TURN = 256
Stamped = tuple[int, bytes]


class Bridge:
    """A UDP socket in place of a host's network card.

    The host is who sent the last datagram that is one of the cluster's.  Raises `LinkFault` where the place can't be
    taken, `WiringError` where the wiring lacks an address."""

    def __init__(self, wiring: Wiring, bind: Place) -> None:
        self.form = replace(wiring.form, sum=fast_crc32c)
        self.host, self.devices = addresses_of(wiring)
        # where the host is; None: it has not spoken yet
        self.place: Place | None = None
        # datagrams each way, and those dropped: of programs, and of the network
        self.entered = self.left = 0
        self.drops: Counter[Drop] = Counter()
        self._stopped = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self._socket.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            self._socket.bind(bind)
        except OSError as error:
            self._socket.close()
            raise not_bound(bind, error, "--port") from error
        self.bound: Place = self._socket.getsockname()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()

    def stop(self) -> None:
        """End the simulation at its next look."""
        self._stopped = True

    @property
    def done(self) -> bool:
        """See `exchange`: whoever serves ends when told to."""
        return False

    def exchange(self, cycle: int, frames: Sequence[Stamped]) -> tuple[int, Sequence[Stamped]] | None:
        """What `dagtrain.cosim.network.SwitchHost` says: frames out of the host's port go to the host, what it has sent
        enters now."""
        if self._stopped:
            return None
        for _, frame in frames:
            self._leave(frame)
        if self.place is None:
            select.select([self._socket], [], [], QUIET_SECONDS)
        return cycle + STEP_CYCLES, [(cycle, frame) for frame in self._entering()]

    def _leave(self, frame: bytes) -> None:
        """A frame to the host, if it is one that its network card would take."""
        try:
            datagram = unwrapped(frame)
            if (target := ends_of(frame)[1]).mac != self.host.mac or target.ip != self.host.ip:
                raise Dropped(Drop.ADDRESS, f"{target}")
        except Dropped as dropped:
            self.drops[dropped.cause] += 1
            return
        if self.place is None:
            return
        try:
            self._socket.sendto(datagram, self.place)
            self.left += 1
        except OSError:
            # lost as on the network
            return

    def _entering(self) -> list[bytes]:
        """Frames of what has come from the host."""
        found = []
        for _ in range(TURN):
            try:
                data, place = self._socket.recvfrom(LONGEST)
            except BlockingIOError:
                break
            except OSError:
                # an earlier datagram was refused (ICMP)
                continue
            try:
                frame = self.form.parse_datagram(data)
                device = self.devices.get(frame.target)
                if frame.source != HOST or device is None:
                    raise Dropped(Drop.ADDRESS, f"from {frame.source} to {frame.target}")
            except Dropped as dropped:
                self.drops[dropped.cause] += 1
                continue
            self.place = place
            self.entered += 1
            found.append(wrapped(data, self.host, device))
        return found


def addresses_of(wiring: Wiring) -> tuple[Address, dict[int, Address]]:
    """Where host and devices are, these by number.  Raises `WiringError`, with all that is not said."""
    ends: list[tuple[str, int, HostTable | DeviceTable]] = [("[host]", HOST, wiring.host)]
    ends += [(f"device {device.name}", device.number, device) for device in wiring.device]
    problems = [
        f"{name} has no {what}" for name, _, end in ends for what in ("mac", "ip") if getattr(end, what) is None
    ]
    if problems:
        raise WiringError.listing("a simulated network needs all addresses", problems, "emit again", lines=True)
    host, *devices = (
        Address(
            number=number,
            mac=int(str(end.mac).replace(":", ""), 16),
            ip=int(ipaddress.IPv4Address(str(end.ip))),
        )
        for _, number, end in ends
    )
    return host, {device.number: device for device in devices}
