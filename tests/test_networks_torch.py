"""The networks of examples/models have the published shapes, and their exports train as PyTorch says.  Optional."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any

import pytest

from examples.models.published import NETWORKS
from tests.import_support import MODELS

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def exports() -> Any:
    """The export script as a module."""
    pytest.importorskip("torch", reason="needs the optional extra: pip install -e .[torch]")
    sys.path.insert(0, str(MODELS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("export_models")
    finally:
        sys.path.remove(str(MODELS))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_published_parameters_and_multiplications(name: str, exports: Any) -> None:
    import torch

    published = NETWORKS[name]
    with torch.device("meta"):
        network = exports.build(name).eval()
    found = []

    def count(module: Any, _: Any, output: Any) -> None:
        weights = module.in_features if isinstance(module, torch.nn.Linear) else module.weight[0].numel()
        found.append(output.numel() * weights)

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(count)
    network(torch.zeros(1, 3, published.size, published.size, device="meta"))
    assert sum(value.numel() for value in network.parameters()) == published.parameters
    assert sum(found) / 1e9 == pytest.approx(published.gmacs, abs=6e-4)
