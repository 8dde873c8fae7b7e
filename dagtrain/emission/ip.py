"""Vendors' IP around a top, as black boxes: modules of which only the ports are known.

Ports are those that a parameter editor generates for the settings that stand with each, as far as they could be looked
up: Low Latency 40- and 100-Gbps Ethernet for Arria 10 by the wrappers of its design examples and its user guide
(683628), E-Tile Hard IP for Ethernet (683468) and External Memory Interfaces (683106 Arria 10, 683216 Agilex 7) by
components that published designs declare for them, DDR4 with 64 pins at a quarter of the rate; PLLs by design examples.
A project names generated files in place of these; where a generated port differs, its own netlist says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hdl.convert.netlist import Direction, Module, PortDecl

WAYS: Mapping[str, Direction] = {way.value: way for way in Direction}
# bits of a word of a memory controller, and of the count of its bursts
MEMORY_BITS = 512


@dataclass(frozen=True, kw_only=True)
class BlackBox:
    """IP of a vendor."""

    # of the module
    name: str
    # in the catalogue of the vendor
    ip: str
    # what to set in its editor, beside what it has by default
    settings: str
    ports: tuple[PortDecl, ...]

    @property
    def widths(self) -> Mapping[str, int]:
        """Port → bits."""
        return {port.name: port.width for port in self.ports}

    def going(self, way: Direction) -> tuple[PortDecl, ...]:
        """Its ports of a direction."""
        return tuple(port for port in self.ports if port.direction is way)

    @property
    def text(self) -> str:
        """Verilog of its ports alone."""
        told = f"{self.ip}: generate it as `{self.name}`, and name it in place of this file.\n{self.settings}"
        head, module, body = Module(self.name, self.ports, comment=told).to_verilog().partition("\nmodule ")
        return f"{head}\n(* blackbox *){module}{body}"


def _ports(text: str) -> tuple[PortDecl, ...]:
    """Ports of lines ``input|output|inout name[:bits] name …``."""
    return tuple(_declared(text))


def _declared(text: str) -> Iterator[PortDecl]:
    for line in text.strip().splitlines():
        way, *names = line.split()
        for name in names:
            port, _, bits = name.partition(":")
            yield PortDecl(port, int(bits or 1), WAYS[way])


@dataclass(frozen=True, kw_only=True)
class MacIp:
    """A MAC with its PCS and PMA, and how a top is joined to it."""

    # of parts whose names begin so
    family: str
    # of `mac_word_bits`
    bits: int
    # more than this of the link, and at most that
    least_gbit: int
    most_gbit: int
    box: BlackBox
    # ports of a top → its own; those of a clock are driven by an output
    joined: Mapping[str, str]
    clocks: Mapping[str, str]
    # bits of this are the errors of a frame that came
    errors: str
    # its inputs → expressions of what the board has
    driven: Mapping[str, str]
    # outputs that are high once frames pass
    good: tuple[str, ...]
    # outputs and inputs that are pins
    pins: tuple[str, ...]
    # PLL that drives its transmitters, if it has none of its own, and that one's output of a clock
    transmit_pll: BlackBox | None = None
    transmit_plls: int = 0
    serial_clock: str = ""


# of 100 MHz, for status and configuration; resets at power-on
SLOW, STOPPED = "clk_100", "stopped"


def _avalon(sent: str, got: str, given: str, told: str) -> dict[str, str]:
    """Ports of a top → those of a MAC: what goes to it, what comes from it, each with the prefix of its direction."""
    names = ("data", "empty", "valid", "startofpacket", "endofpacket")
    return {
        **{f"mac_tx_{name}": f"{sent}_{name}" for name in (*names, "error")},
        "mac_tx_ready": f"{given}_ready",
        **{f"mac_rx_{name}": f"{got}_{name}" for name in names},
        "mac_rx_error": f"{told}_error",
    }


# what it counts of frames each way
_COUNTS = (
    "64", "127", "255", "511", "1023", "1518", "max", "over", "mcast_data_err", "mcast_data_ok", "bcast_data_err",
    "bcast_data_ok", "ucast_data_err", "ucast_data_ok", "mcast_ctrl", "bcast_ctrl", "ucast_ctrl", "pause", "fcs_err",
    "fragment", "jabber", "sizeok_fcserr",
)  # fmt: skip
_RX_COUNTS = ("runt", *_COUNTS, *(f"{what}_ctrl_err" for what in ("pause", "mcast", "bcast", "ucast")))


def _low_latency(prefix: str, bits: int, empty: int) -> tuple[PortDecl, ...]:
    """Of Low Latency 40- and 100-Gbps Ethernet for Arria 10."""
    counts = [f"rx_inc_{name}" for name in _RX_COUNTS] + [f"tx_inc_{name}" for name in _COUNTS]
    return _ports(f"""
input clk_ref reset_async reset_status clk_status status_write status_read status_addr:16 status_writedata:32
output status_readdata:32 status_readdata_valid status_waitrequest status_read_timeout
input reconfig_clk reconfig_reset reconfig_write reconfig_read reconfig_address:12 reconfig_writedata:32
output reconfig_readdata:32 reconfig_waitrequest
input tx_serial_clk:4 tx_pll_locked rx_serial:4
output tx_serial:4 clk_txmac clk_rxmac tx_lanes_stable rx_pcs_ready
input {prefix}_tx_data:{bits} {prefix}_tx_empty:{empty} {prefix}_tx_startofpacket {prefix}_tx_endofpacket
input {prefix}_tx_valid {prefix}_tx_error
output {prefix}_tx_ready
output {prefix}_rx_data:{bits} {prefix}_rx_empty:{empty} {prefix}_rx_startofpacket {prefix}_rx_endofpacket
output {prefix}_rx_valid {prefix}_rx_error:6 {prefix}_rx_status:3 {prefix}_rx_fcs_error {prefix}_rx_fcs_valid
output rx_inc_octetsOK:16 rx_inc_octetsOK_valid tx_inc_octetsOK:16 tx_inc_octetsOK_valid {" ".join(counts)}
""")


def _arria(gbit: int, prefix: str, bits: int, empty: int, clock: str, plls: int) -> MacIp:
    """40G or 100G on an Arria 10, whose transmitters have PLLs of their own beside it."""
    name = f"Low Latency {gbit}-Gbps Ethernet"
    pll = BlackBox(
        name="transmit_pll",
        ip="Transceiver ATX PLL, Arria 10",
        settings=f"{'10.3125' if gbit == 40 else '25.78125'} Gbps a lane from 644.53125 MHz; no control of power down.",
        ports=_ports(f"input pll_powerdown pll_refclk0\noutput {clock} pll_locked pll_cal_busy"),
    )
    shared = dict.fromkeys(("status_write", "status_read", "reconfig_write", "reconfig_read"), "1'b0")
    wide = {"status_addr": "16'd0", "reconfig_address": "12'd0"}
    wide |= dict.fromkeys(("status_writedata", "reconfig_writedata"), "32'd0")
    return MacIp(
        family="10AX",
        bits=bits,
        least_gbit=0 if gbit == 40 else 40,
        most_gbit=gbit,
        box=BlackBox(
            name="ethernet_mac",
            ip=f"{name}, Arria 10{'' if gbit == 40 else ', CAUI-4'}",
            settings="MAC and PHY, Avalon-ST interface, ready latency 0, reference 644.53125 MHz, statistics;\n"
            "no flow control, link fault generation, 1588, KR4 or sync-E; TX PLL outside.",
            ports=_low_latency(prefix, bits, empty),
        ),
        joined=_avalon(f"{prefix}_tx", f"{prefix}_rx", f"{prefix}_tx", f"{prefix}_rx"),
        clocks={"mac_tx_clk": "clk_txmac", "mac_rx_clk": "clk_rxmac"},
        errors=f"{prefix}_rx_error",
        driven={
            "reset_async": STOPPED, "reset_status": STOPPED, "reconfig_reset": STOPPED,
            "clk_status": SLOW, "reconfig_clk": SLOW, **shared, **wide,
        },
        good=("tx_lanes_stable", "rx_pcs_ready"),
        pins=("clk_ref", "rx_serial", "tx_serial"),
        transmit_pll=pll,
        transmit_plls=plls,
        serial_clock=clock,
    )  # fmt: skip


# of E-tile's bus to each part that has registers: ports without the prefix, bits of address and data
def _registers(name: str, address: str, address_bits: int, data_bits: int, lanes: int, valid: bool) -> str:
    told = f" o_{name}_readdata_valid:{lanes}" if valid else ""
    return f"""
input i_{name}_{address}:{address_bits} i_{name}_read:{lanes} i_{name}_write:{lanes} i_{name}_writedata:{data_bits}
output o_{name}_readdata:{data_bits} o_{name}_waitrequest:{lanes}{told}"""


def _etile_ports(kind: str, bits: int, empty: int, lanes: int, forward_error: bool) -> tuple[PortDecl, ...]:
    """Of E-Tile Hard IP for Ethernet, one channel; ``kind`` "" or "sl_"; FIFOs' flags are of the small one alone."""
    fifo = (
        "" if not kind else "\noutput o_sl_txfifo_pfull o_sl_txfifo_pempty o_sl_txfifo_overflow o_sl_txfifo_underflow"
    )
    locks = "" if kind else " o_rx_am_lock"
    correction = _registers("rsfec_reconfig", "addr", 11, 8, 1, False) if forward_error else ""
    return _ports(f"""
input i_clk_ref i_reconfig_clk i_reconfig_reset i_rx_serial:{lanes} i_rx_serial_n:{lanes}
output o_tx_serial:{lanes} o_tx_serial_n:{lanes} o_cdr_lock o_tx_pll_locked
output o_clk_pll_div64 o_clk_pll_div66 o_clk_rec_div64 o_clk_rec_div66
input i_{kind}stats_snapshot i_{kind}clk_tx i_{kind}clk_rx i_{kind}csr_rst_n i_{kind}tx_rst_n i_{kind}rx_rst_n
output o_{kind}tx_lanes_stable o_{kind}rx_pcs_ready o_{kind}ehip_ready o_{kind}rx_block_lock o_{kind}rx_hi_ber{locks}
output o_{kind}local_fault_status o_{kind}remote_fault_status{fifo}
input i_{kind}tx_data:{bits} i_{kind}tx_empty:{empty} i_{kind}tx_startofpacket i_{kind}tx_endofpacket
input i_{kind}tx_valid i_{kind}tx_error i_{kind}tx_skip_crc i_{kind}tx_pfc:8 i_{kind}tx_pause
output o_{kind}tx_ready o_{kind}rx_pfc:8 o_{kind}rx_pause
output o_{kind}rx_data:{bits} o_{kind}rx_empty:{empty} o_{kind}rx_startofpacket o_{kind}rx_endofpacket
output o_{kind}rx_valid o_{kind}rx_error:6 o_{kind}rxstatus_data:40 o_{kind}rxstatus_valid
{_registers(f"{kind}eth_reconfig", "addr", 19 if kind else 21, 32, 1, True).strip()}
{_registers("xcvr_reconfig", "address", 19 * lanes, 8 * lanes, lanes, False).strip()}{correction}""")


def _etile(gbit: int, least_gbit: int, kind: str, bits: int, empty: int, lanes: int) -> MacIp:
    """A channel of 10G, 25G or 100G of an E-tile, which makes the clock of its user side itself."""
    ports = _etile_ports(kind, bits, empty, lanes, gbit > 10)
    resets = {f"i_{kind}{name}": f"!{STOPPED}" for name in ("csr_rst_n", "tx_rst_n", "rx_rst_n")}
    named = {"i_reconfig_clk": SLOW, "i_reconfig_reset": STOPPED, f"i_{kind}clk_tx": "mac_tx_clk", **resets}
    named[f"i_{kind}clk_rx"] = "mac_rx_clk"
    joined = _avalon(f"i_{kind}tx", f"o_{kind}rx", f"o_{kind}tx", f"o_{kind}rx")
    pins = ("i_clk_ref", "i_rx_serial", "i_rx_serial_n", "o_tx_serial", "o_tx_serial_n")
    taken = {*named, *joined.values(), *pins}
    idle = {p.name: f"{p.width}'d0" for p in ports if p.direction is Direction.IN and p.name not in taken}
    return MacIp(
        family="AGF",
        bits=bits,
        least_gbit=least_gbit,
        most_gbit=gbit,
        box=BlackBox(
            name="ethernet_mac",
            ip="E-Tile Hard IP for Ethernet",
            settings=f"One channel of {gbit}G, MAC and PCS{' with RS-FEC' if gbit > 10 else ''}, ready latency 0;\n"
            "no PTP, auto-negotiation or link training; flow control is not used.",
            ports=ports,
        ),
        joined=joined,
        clocks={"mac_tx_clk": "o_clk_pll_div64", "mac_rx_clk": "o_clk_pll_div64"},
        errors=f"o_{kind}rx_error",
        driven=named | idle,
        good=(f"o_{kind}tx_lanes_stable", f"o_{kind}rx_pcs_ready"),
        pins=pins,
    )


MACS = (
    _arria(40, "l4", 256, 5, "tx_serial_clk", 1),
    _arria(100, "l8", 512, 6, "tx_serial_clk_gt", 2),
    _etile(10, 0, "sl_", 64, 3, 1),
    _etile(25, 10, "sl_", 64, 3, 1),
    _etile(100, 0, "", 512, 6, 4),
)


@dataclass(frozen=True, kw_only=True)
class MemoryIp:
    """A controller of one channel of DDR4, and what calibrates it."""

    family: str
    box: BlackBox
    # its inputs → expressions; ``request`` is a reset that is asked for
    driven: Mapping[str, str]
    calibration: BlackBox | None = None
    # its ports → those of the controller
    calibrates: Mapping[str, str] = field(default_factory=dict)


# of the memory's pins
_PINS = """
input pll_ref_clk oct_rzqin mem_alert_n
output mem_ck mem_ck_n mem_a:17 mem_act_n mem_ba:2 mem_bg:2 mem_cke mem_cs_n mem_odt mem_reset_n mem_par
inout mem_dqs:8 mem_dqs_n:8 mem_dq:64 mem_dbi_n:8"""
MEMORY_PINS = tuple(port.name for port in _ports(_PINS))


def _controller(ip: str, address_bits: int, own: str) -> BlackBox:
    size = f"{(1 << address_bits) * MEMORY_BITS // 8 / 2**30:g} GiB"
    return BlackBox(
        name="memory_controller",
        ip=ip,
        settings=f"DDR4, 64 pins of data, {size} (addresses of {address_bits} bits), hard PHY and controller,\n"
        "a quarter of the rate; Avalon-MM, no ECC, no MMR, no debugging.",
        ports=_ports(f"""{_PINS}
output local_cal_success local_cal_fail emif_usr_clk emif_usr_reset_n
input amm_read_0 amm_write_0 amm_address_0:{address_bits} amm_writedata_0:{MEMORY_BITS} amm_burstcount_0:7
input amm_byteenable_0:{MEMORY_BITS // 8}
output amm_ready_0 amm_readdata_0:{MEMORY_BITS} amm_readdatavalid_0
{own}"""),
    )


_BUS = "{0}put calbus_read{2} calbus_write{2} calbus_address{2}:20 calbus_wdata{2}:32\n" \
       "{1}put calbus_rdata{2}:32 calbus_seq_param_tbl{2}:4096"  # fmt: skip


def memory_ip(family: str, address_bits: int) -> MemoryIp:
    """The controller of a family (`MEMORY_FAMILIES`) for so many words."""
    if family == "10AX":
        box = _controller("Arria 10 External Memory Interfaces", address_bits, "input global_reset_n")
        return MemoryIp(family=family, box=box, driven={"global_reset_n": "!request"})
    own = f"input local_reset_req calbus_clk\noutput local_reset_done pll_locked\n{_BUS.format('in', 'out', '')}"
    calibration = BlackBox(
        name="memory_calibration",
        ip="External Memory Interfaces Calibration, Agilex 7",
        settings="One interface.  Interfaces in one row of I/O banks share one of these: then join them there.",
        ports=_ports(f"output calbus_clk\n{_BUS.format('out', 'in', '_0')}"),
    )
    names = {port.name: port.name.removesuffix("_0") for port in calibration.ports}
    box = _controller("External Memory Interfaces, Agilex 7", address_bits, own)
    driven = {"local_reset_req": "request"}
    return MemoryIp(family=family, box=box, driven=driven, calibration=calibration, calibrates=names)


MEMORY_FAMILIES = ("10AX", "AGF")


def device_pll(mhz: float) -> BlackBox:
    """What makes the clock of a device."""
    return BlackBox(
        name="device_pll",
        ip="IOPLL",
        settings=f"From 100 MHz: outclk_0 of {mhz:g} MHz; with locked.",
        ports=_ports("input refclk rst\noutput outclk_0 locked"),
    )


RESET_RELEASE = BlackBox(
    name="reset_release",
    ip="Reset Release, Agilex 7",
    settings="Conduit.",
    ports=_ports("output ninit_done"),
)
