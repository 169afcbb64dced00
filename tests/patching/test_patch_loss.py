"""patch(loss=True): tiny language models against themselves unpatched, and what is left, with the reason."""

from __future__ import annotations

import copy
import io
import itertools
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from language_models import (
    MODELS,
    assert_same_step,
    batch,
    built,
    classes_of,
    contents_of,
    each_model,
    in_float64,
    step,
)
from torch import Tensor, nn

import fastops
from fastops.patching.deferred import Deferred

LINE = "Linear as the head of linear_cross_entropy"


def patched(model: Any, save: str = "auto") -> fastops.patching.Report:
    """Rope and the loss alone; all else is tested elsewhere."""
    return fastops.patch(model, only=["rope", "loss"], loss=True, save=save)


@each_model
def test_equals_itself(name: str) -> None:
    model = built(name)
    expected = step(model)
    exact = step(in_float64(name, model))
    report = patched(model)
    assert report.left == {}
    assert report.swapped["lm_head"] == LINE
    assert sum("rope" in line for line in report.swapped.values()) == (2 if MODELS[name][1] else 0)
    found = step(model)
    assert isinstance(found[0].logits, Deferred)
    assert found[0].logits.is_deferred
    assert found[0].loss.dtype == expected[0].loss.dtype
    assert type(found[0].loss) is Tensor
    assert_same_step(found, expected, 2e-6)
    assert_same_step(found, exact, 2e-6)


@each_model
def test_equals_itself_in_float64_and_bfloat16(name: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.bfloat16, 4e-2)):  # their losses are of float32
        model = built(name, dtype)
        exact = step(in_float64(name, model))
        patched(model)
        found = step(model)
        assert found[0].logits.is_deferred
        assert found[0].logits.dtype == dtype
        assert_same_step(found, exact, tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {"num_items_in_batch": torch.tensor(7)},
        {"num_items_in_batch": 7},
        {"logits_to_keep": 5, "labels": batch()["labels"][:, -5:]},
        {"logits_to_keep": torch.tensor([1, 3, 4]), "labels": batch()["labels"][:, [1, 3, 4]]},
        {"shift_labels": batch()["labels"].roll(-1, 1)},
        {"ignore_index": 5},
        {"attention_mask": torch.tensor([[0] * 3 + [1] * 6, [1] * 9])},
        {"labels": torch.full((2, 9), -100)},
    ],
    ids=[
        "items as the Trainer",
        "items",
        "last logits",
        "some logits",
        "shifted labels",
        "ignored",
        "mask",
        "no label",
    ],
)
def test_options_of_the_loss(options: dict[str, Any]) -> None:
    model = built("Gemma2")
    if "ignore_index" in options:
        options = options | {"labels": batch()["input_ids"] % 9}
    expected = step(model, **options)
    patched(model)
    found = step(model, **options)
    assert found[0].logits.is_deferred
    if torch.isnan(expected[0].loss):
        assert torch.isnan(found[0].loss)
        return
    assert_same_step(found, expected, 2e-6)


def test_a_loss_of_ones_own() -> None:
    """Of a trainer that takes the logits and computes the loss itself, here and there."""
    model = built("Cohere")
    ids = batch()["input_ids"]

    def losses() -> list[Tensor]:
        logits = model(input_ids=ids).logits
        shifted = logits[..., :-1, :].contiguous()
        mean = nn.CrossEntropyLoss()(shifted.view(-1, shifted.size(-1)), ids[..., 1:].reshape(-1))
        read = (logits.float().softmax(-1) ** 2).sum()
        return [mean, read, *torch.autograd.grad(mean + read, list(model.parameters()))]

    expected = losses()
    patched(model)
    for found, wanted in zip(losses(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_tensors_of_the_logits_size() -> None:
    """One for both forward and backward, by save="none" not even that; the unpatched step has several."""
    classes, tokens = 32768, 256
    model = built("Llama", vocab_size=classes, hidden_size=16, num_hidden_layers=1)
    ids = torch.randint(3, classes, (2, tokens // 2))

    def largest() -> list[int]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            model(input_ids=ids, labels=ids).loss.backward()
        events = profile.profiler.kineto_results.events()
        return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > tokens * classes * 4 // 2]

    assert len(largest()) > 1
    with fastops.patched(model, only=["loss"], loss=True):
        assert len(largest()) == 1
    patched(model, save="none")
    assert not largest()


def test_logits_afterwards() -> None:
    """Right for whoever reads them, until the weights change; then an error and no wrong number."""
    model = built("Gemma2")
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    expected = step(model)[0]
    patched(model)
    found = model(**batch())
    found.loss.backward()
    torch.testing.assert_close(found.logits.detach().argmax(-1), expected.logits.argmax(-1))
    optimizer.step()
    torch.testing.assert_close(found.logits[:, -1], expected.logits[:, -1], rtol=1e-5, atol=1e-5)
    late = model(**batch())
    late.loss.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"\[patch\] logits must be read before the head's weight or input changes"):
        late.logits.sum()


def test_generate_and_evaluation() -> None:
    model = built("Qwen3").eval()
    ids = batch()["input_ids"]
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    with torch.no_grad():
        logits = model(**batch()).logits
    patched(model)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), expected)
    with torch.no_grad():
        assert type(model(**batch()).logits) is Tensor
        torch.testing.assert_close(model(**batch()).logits, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    """What rope proves at its first call is not among what a checkpoint counts."""
    model = built("Llama")
    expected = step(model)
    patched(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_same_step(step(model), expected, 2e-6)


def test_autocast() -> None:
    model = built("Granite")
    with torch.autocast("cpu", torch.bfloat16):
        expected = step(model)
        patched(model)
        found = step(model)
    assert found[0].logits.is_deferred
    assert found[0].logits.dtype == torch.bfloat16
    assert found[0].loss.dtype == expected[0].loss.dtype == torch.float32
    assert_same_step(found, expected, 4e-2)


def test_compile() -> None:
    """Without a break. The head is as it was then, and so is rope: what compiles fuses them itself."""
    model = built("Gemma2", num_hidden_layers=1)
    expected = step(model)
    patched(model)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(str(graph.code))
        return graph.forward

    outputs = torch.compile(model, fullgraph=True, backend=backend)(**batch())
    assert type(outputs.logits) is Tensor
    assert "fastops" not in "".join(graphs)
    outputs.loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    assert_same_step((outputs, found), expected, 2e-6)
    assert step(model)[0].logits.is_deferred  # and without it


@each_model
def test_undo(name: str) -> None:
    model = built(name)
    classes, contents, expected = classes_of(model), contents_of(model), step(model)
    keys, modes = list(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    report = patched(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())
    assert list(model.state_dict()) == keys
    assert contents_of(model) == contents
    assert {type(m).__name__ for m in model.modules()} == {cls.__name__ for cls in classes.values()}
    assert all(isinstance(m, classes[n]) for n, m in model.named_modules())
    report.undo()
    assert classes_of(model) == classes
    assert contents_of(model) == contents
    found = step(model)
    assert torch.equal(found[0].loss, expected[0].loss)
    assert torch.equal(found[0].logits, expected[0].logits)
    assert all(torch.equal(found[1][key], expected[1][key]) for key in expected[1])


def test_deep_copy() -> None:
    """It keeps the swap, with its own weights."""
    model = built("Llama")
    expected = step(model)
    patched(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    found = step(twin)
    assert found[0].logits.is_deferred
    assert_same_step(found, expected, 2e-6)


def test_pickles(tmp_path: Path) -> None:
    """A file is of the original classes, and needs no fastops."""
    model = built("Llama")
    expected = step(model)
    try:
        torch.save(model, tmp_path / "plain.pt")
    except AttributeError as error:  # of a local class, which kernels makes of a function
        pytest.skip(f"it cannot be pickled without patch either: {error}")
    patched(model)
    found = step(model)
    torch.save(model, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as file:
        assert b"fastops" not in file.read("model/data.pkl")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert type(loaded.lm_head) is nn.Linear
    assert_same_step(step(loaded), expected, 2e-6)
    with io.BytesIO() as memory:
        torch.save(found[0].logits, memory)
        memory.seek(0)
        saved = torch.load(memory)
    assert type(saved) is Tensor
    torch.testing.assert_close(saved, expected[0].logits, rtol=1e-5, atol=1e-5)


def test_frozen_body_and_frozen_head() -> None:
    for frozen in ("model", "lm_head"):
        model = built("Llama", tie_word_embeddings=False)
        getattr(model, frozen).requires_grad_(False)
        expected = step(model)
        patched(model)
        found = step(model)
        assert found[0].logits.is_deferred
        assert_same_step(found, expected, 2e-6)


class Small(nn.Module):
    """A language model by hand, whose loss each subclass computes in its own way."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 50) if head is None else head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.norm(self.embed(input_ids)))
        return (logits if labels is None else self.loss(logits, labels)), logits

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.transpose(1, 2), labels)


class Smoothed(Small):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1, reduction="sum") / 16


class Drawing(Small):
    """It draws random numbers, in either mode."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits, labels) + 0 * torch.rand(())


class Read(Small):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(logits.log_softmax(-1).flatten(0, 1), labels.flatten())


class Scheduled(Small):
    """Its scale is not the same each time."""

    calls = itertools.count(1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().loss(logits * next(self.calls), labels)


class NoLoss(Small):
    def loss(self, logits: Tensor, labels: Tensor) -> Any:
        return None


class Fails(Small):
    def loss(self, logits: Tensor, labels: Tensor) -> Any:
        raise ValueError("not so\nbut so")


class OtherNames(Small):
    def forward(self, tokens: Tensor) -> Any:  # type: ignore[override]
        return super().forward(tokens)


class Uncalled(Small):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = F.linear(self.embed(input_ids), self.head.weight)
        return self.loss(logits, labels), logits


class Subclass(nn.Linear):
    pass


class TwoHeads(Small):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(8, 50)


@pytest.mark.parametrize("kind", [Small, Smoothed, Drawing])
def test_models_by_hand(kind: type[Small]) -> None:
    """The head is found by its size, and tuples are outputs too."""
    model = kind()
    ids = torch.randint(50, (2, 8))

    def run() -> list[Tensor]:
        loss, logits = model(ids, ids)
        return [loss, *torch.autograd.grad(loss, list(model.parameters())), logits]

    expected = run()
    random = torch.get_rng_state()
    report = fastops.patch(model, only=["loss"], loss=True)
    assert torch.equal(torch.get_rng_state(), random)
    assert report.swapped == {"head": LINE}
    found = run()
    assert found[-1].is_deferred  # type: ignore[attr-defined]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("default", ["meta", "cpu"])
def test_default_device(default: str) -> None:
    """The trial draws on the CPU, and the model runs on its head's device, whatever the default device is."""
    model = Small()
    with torch.device(default):
        report = fastops.patch(model, only=["loss"], loss=True)
    assert report.swapped == {"head": LINE}


def _hooked() -> Small:
    model = Small()
    model.head.register_forward_hook(lambda module, inputs, output: None)
    return model


def _parametrized() -> Small:
    model = Small()
    nn.utils.parametrizations.weight_norm(model.head)
    return model


LEFT = {
    Read: "Linear: its model reads the logits before the loss, by aten._log_softmax.default",
    Scheduled: "Linear: it would not give the same loss",
    NoLoss: "Linear: its model returns no loss",
    Fails: "Linear: its model raised an error for a batch of 2 by 8 tokens with labels",
    OtherNames: "Linear: its model's forward has no input_ids and labels, with which a loss could be compared",
    Uncalled: "Linear: its model does not call it",
    _hooked: "Linear: it has hooks",
    _parametrized: "ParametrizedLinear: it is parametrized",
}


@pytest.mark.parametrize(("make", "reason"), LEFT.items(), ids=[make.__name__ for make in LEFT])
@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_left(make: Any, reason: str) -> None:
    model = make()
    classes, contents = classes_of(model), contents_of(model)
    report = fastops.patch(model, only=["loss"], loss=True)
    assert report.swapped == {}
    assert report.left == {"head": reason}
    assert classes_of(model) == classes
    assert contents_of(model) == contents


@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_left_without_a_head() -> None:
    for model in (TwoHeads(), Small(Subclass(8, 50, bias=False).requires_grad_(False))):
        report = fastops.patch(model, only=["loss"], loss=True)
        assert report.swapped == {}
        assert len(report.left) == 1
    assert "Subclass" in report.left["head"]
    assert fastops.patch(TwoHeads(), loss=True).left[""].startswith("TwoHeads: it has neither an output embedding nor")
    assert fastops.patch(nn.Sequential(nn.Linear(3, 4)), loss=True).left == {}  # no language model
    meta = built("Llama").to("meta")
    report = fastops.patch(meta, only=["loss"], loss=True)
    assert report.left == {"lm_head": "Linear: its model is on the meta device, where no loss can be compared"}
    report = fastops.patch(built("Llama"), only=["loss"], loss=True, verify="bits")
    assert report.left == {"lm_head": "Linear: the bits of a loss by slices are others"}


def test_asked_for_alone() -> None:
    """Without loss=True the head is nobody's business, and dry_run changes nothing."""
    model = built("Llama")
    assert "lm_head" not in fastops.patch(model).swapped
    other = built("Llama")
    report = fastops.patch(other, loss=True, dry_run=True)
    assert report.swapped["lm_head"] == LINE
    assert type(other.lm_head) is nn.Linear
    with pytest.raises(TypeError, match=r"\[patch\] loss must be a bool, got str"):
        fastops.patch(model, loss="yes")  # type: ignore[arg-type]
