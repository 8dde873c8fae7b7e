"""The circuits on which all others stand, proved in runs of any length, and faults that the proofs must find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.formal_proofs import CIRCUITS, Circuit, Proof, check, find

OWN_VALID = "ready follows its own valid"


def circuit(name: str) -> Circuit:
    (found,) = (one for one in CIRCUITS if one.name == name)
    return found


@pytest.mark.parametrize(
    ("of", "proof"), [pytest.param(c, p, id=f"{c.name}-{p.module}") for c in CIRCUITS for p in c.proofs]
)
def test_a_circuit_keeps_its_promises_in_every_run(of: Circuit, proof: Proof) -> None:
    assert check(of, proof, of.text).failing == ""


# faults are looked for in these for ten seconds and more; queue_of_3 and adapter_3_to_1 stand for their kinds
LONG = ("credit_receiver", "credit_sender", "queue_of_5", "adapter_3_to_2", "adapter_1_to_3", "adapter_2_to_3")


@pytest.mark.parametrize(
    "of", [pytest.param(c, marks=[pytest.mark.slow] * (c.name in LONG), id=c.name) for c in CIRCUITS]
)
def test_every_fault_put_into_a_circuit_is_found(of: Circuit) -> None:
    found = {fault.name: find(of, fault).failing for fault in of.faults}
    assert len(found) >= 3
    assert [name for name, assertion in found.items() if not assertion] == []
    # it does not change what is transferred, so nothing else can find it
    assert found.get(OWN_VALID, "ready_without_its_valid") == "ready_without_its_valid"


@pytest.mark.parametrize(
    ("parameter", "value", "assertion"),
    [("CAPACITY", 4, "order.no_more_than_its_depth"), ("LATENCY", 2, "order.offers_what_it_holds")],
)
def test_what_a_queue_declares_is_no_more_than_it_needs(parameter: str, value: int, assertion: str) -> None:
    queue = circuit("queue_of_5")
    (beats,) = (proof for proof in queue.proofs if proof.module == "beats")
    tighter = replace(beats, parameters={**beats.parameters, parameter: value})
    assert check(queue, tighter, queue.text).failing == assertion
