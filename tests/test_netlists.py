"""ALMs of layers drawn by seed and of self-test circuits, beside what Yosys made of them: see tests/netlists.py."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from hdl.costs.synthesis import Comparison, compare, counted_text, without_contents
from tests import netlists

# circuits of more ALMs are judged by their share, smaller ones by so many
LARGE_ALM, FEW_ALM = 200, 24
CLOSE_ALM, CLOSE_MEAN, CLOSE_REGISTERS = 0.12, 0.07, 0.02
# what is not yet estimated so closely: a tree of shifters by sizes that are sums of one another
NOT_CLOSE_ALM = {"Decompressor": 0.15, "DecompressorOfFloats": 0.18}


@pytest.fixture(scope="module")
def compared() -> dict[str, dict[str, Comparison]]:
    """By circuit and quantity.  A netlist whose Verilog has changed tells nothing."""
    circuits, known = netlists.circuits(), netlists.stored()
    digests = {name: netlists.digest_of(netlists.text_of(circuit)) for name, circuit in circuits.items()}
    old = netlists.stale(digests, known)
    if old:
        pytest.fail(f"netlists of {', '.join(old)} are of other Verilog: run `{netlists.COMMAND}`")
    return {
        name: {one.quantity: one for one in compare(netlists.counted(circuit), known[name].synthesis)}
        for name, circuit in circuits.items()
    }


@pytest.mark.parametrize("name", netlists.stored())
def test_a_circuit_has_the_contents_of_its_netlist(name: str, compared: dict[str, dict[str, Comparison]]) -> None:
    found = compared[name]
    alm, registers = found["alm"], found["registers"]
    assert all(found[exact].error == 0 for exact in ("multipliers", "m20k", "mlab_cells")), found
    assert abs(registers.estimate - registers.synthesis) <= max(3, CLOSE_REGISTERS * registers.synthesis)
    close = NOT_CLOSE_ALM.get(name, CLOSE_ALM)
    if alm.synthesis > LARGE_ALM:
        assert abs(alm.error) <= close
    assert abs(alm.estimate - alm.synthesis) <= max(FEW_ALM, close * alm.synthesis)


def test_large_circuits_have_the_alms_of_their_netlists_on_average(
    compared: dict[str, dict[str, Comparison]],
) -> None:
    errors = [found["alm"].error for found in compared.values() if found["alm"].synthesis > LARGE_ALM]
    assert len(errors) >= 6
    assert fmean(map(abs, errors)) <= CLOSE_MEAN


def test_circuits_are_of_many_kinds_with_tables_and_functions_among_them() -> None:
    kinds = {name.rsplit("-")[0] for name in netlists.stored()}
    assert len(kinds) >= netlists.KINDS
    assert kinds >= {*netlists.ALWAYS, *netlists.BESIDE}


def test_memories_that_are_only_read_get_write_ports_before_their_contents_are_taken_out() -> None:
    read = """module circuit (
    clk,
    y
);
input clk;
output [7:0] y;
reg [7:0] y;
reg [7:0]  table_mem [0:512-1];
reg [4:0] (* ramstyle = "MLAB" *) kept_mem [0:4-1];
initial if (INIT_table != "") $readmemh(INIT_table, table_mem);
always @(posedge clk) begin
    y <= table_mem[y];
    kept_mem[y] <= y;
end
endmodule
"""
    text = counted_text(read)
    assert "always @(posedge clk) if (contents_write[0]) table_mem[contents_at] <= contents_word;\nendmodule" in text
    assert "    y,\n    contents_write,\n    contents_at,\n    contents_word\n);\n" in text
    assert "input [7:0] contents_word;" in text
    assert "kept_mem[contents_at]" not in text
    written = read.replace("y <= table_mem[y];", "table_mem[y] <= y;")
    assert counted_text(written) == without_contents(written)


def test_a_netlist_of_other_verilog_is_named() -> None:
    known = netlists.stored()
    name = min(known)
    same = {each: one.digest for each, one in known.items()}
    assert netlists.stale(same, known) == []
    assert netlists.stale({**same, name: "0" * 64}, known) == [name]
    assert netlists.stale(same, {**known, name: replace(known[name], digest="")}) == [name]
    assert netlists.stale({each: digest for each, digest in same.items() if each != name}, known) == [name]
