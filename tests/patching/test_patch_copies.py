"""What is saved and copied of a patched model: keys and bytes, pickles that need no fastops, deep copies."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planted import HandMLP, HandRMSNorm, N
from torch import nn

import fastops
from fastops.patching.swap import Swap, apply

FOLDER = str(Path(__file__).parent)


def model() -> nn.Module:
    return nn.Sequential(HandRMSNorm(), HandMLP(), nn.LayerNorm(N), nn.Softmax(-1))


def test_state_dict() -> None:
    of = model()
    before = {name: tensor.clone() for name, tensor in of.state_dict().items()}
    names = [name for name, _ in of.named_parameters()]
    fastops.patch(of)
    after = of.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [name for name, _ in of.named_parameters()] == names
    plain = model()
    plain.load_state_dict(after)
    of.load_state_dict(model().state_dict())


def test_saved_model_needs_no_fastops(tmp_path: Path) -> None:
    """Loaded in a process that cannot import it, it has the original classes and gives what it gave."""
    of, x = model(), torch.randn(3, N)
    expected = of(x)
    fastops.patch(of)
    torch.save({"model": of, "x": x, "expected": expected}, tmp_path / "model.pt")
    script = f"""
import sys
sys.modules["fastops"] = None
sys.path.insert(0, {FOLDER!r})
import torch, planted
saved = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
model = saved["model"]
assert [type(m) for m in model] == [planted.HandRMSNorm, planted.HandMLP, torch.nn.LayerNorm, torch.nn.Softmax]
assert torch.equal(model(saved["x"]), saved["expected"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    of = model()
    fastops.patch(of)
    loaded = pickle.loads(pickle.dumps(of, protocol))
    assert [type(module) for module in loaded] == [type(module) for module in model()]
    assert not any("fastops" in name for module in loaded.modules() for name in module.__dict__)


def test_deepcopy_keeps_the_swap() -> None:
    of, x = model(), torch.randn(3, N)
    report = fastops.patch(of)
    twin, shallow = copy.deepcopy(of), copy.copy(of[0])
    assert [type(module) for module in twin] == [type(module) for module in of]
    assert type(shallow) is type(of[0])
    assert shallow.weight is of[0].weight
    assert twin[0].weight is not of[0].weight
    assert torch.equal(twin(x), of(x))
    report.undo()
    assert type(of[0]) is HandRMSNorm
    assert type(twin[0]) is not HandRMSNorm
    with torch.no_grad():
        twin[0].weight.zero_()
    assert of[0].weight.all()


def test_deepcopy_of_what_leads_back() -> None:
    norm = HandRMSNorm()
    norm.__dict__["itself"] = [norm]
    fastops.patch(norm)
    twin = copy.deepcopy(norm)
    assert twin.itself[0] is twin


def test_instance_entries() -> None:
    """What a swap puts into a module's __dict__ is in no pickle, is kept by deepcopy, and goes by undo."""
    norm = HandRMSNorm()
    norm.__dict__["there"] = 1
    swap = Swap("it", ("it",), lambda: {}, instance={"there": 2, "new": 3})
    done = apply("norm", norm, swap)
    assert (norm.there, norm.new) == (2, 3)
    twin = copy.deepcopy(norm)
    assert (twin.there, twin.new) == (2, 3)
    for saved in (pickle.loads(pickle.dumps(norm)), pickle.loads(pickle.dumps(twin))):
        assert saved.there == 1
        assert not hasattr(saved, "new")
    done.undo()
    assert norm.there == 1
    assert not hasattr(norm, "new")


def test_of_a_class_made_later() -> None:
    """As fully_shard makes one: neither endless, nor pickled as what it is not."""
    norm = HandRMSNorm()
    fastops.patch(norm)
    norm.__class__ = type("Later", (type(norm),), {})
    with pytest.raises(pickle.PicklingError, match="Later"):
        pickle.dumps(norm)
    assert type(copy.deepcopy(norm)) is type(norm)
