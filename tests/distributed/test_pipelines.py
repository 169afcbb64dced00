"""Pipelines of two processes: gradients for inputs and, later, for weights, by two backwards of one graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from abilities import splits_backward
from decoders import Decoder, batch, decoder
from processes import DEVICES, check_close, device_type, numbers, spawn
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble

import fastops

LAYERS, MICROBATCHES = 4, 4
# Which stages are of which process, of as many as there are.
SCHEDULES = {
    ScheduleGPipe: [[0], [1]],
    Schedule1F1B: [[0], [1]],
    ScheduleInterleavedZeroBubble: [[0, 2], [1, 3]],
    ScheduleZBVZeroBubble: [[0, 3], [1, 2]],
}
ZERO_BUBBLE = (ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble)


class Stage(nn.Module):
    """Some of a decoder's layers. The last has the loss too, which the schedule calls."""

    def __init__(self, of: Decoder, stage: int, stages: int) -> None:
        super().__init__()
        self.tokens = of.tokens if stage == 0 else nn.Identity()
        layers = LAYERS // stages
        self.blocks = nn.Sequential(*of.blocks[stage * layers : (stage + 1) * layers])
        last = stage == stages - 1
        self.norm, self.loss = (of.norm, of.loss) if last else (nn.Identity(), None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(self.tokens(x)))  # type: ignore[no-any-return]


def schedules(rank: int) -> None:
    tokens, target = batch(0, MICROBATCHES)
    truth = decoder(ours=False, layers=LAYERS).double()
    expected = truth(tokens, target)
    expected.backward()
    gradients = {name: p.grad for name, p in truth.named_parameters()}
    for schedule, places in SCHEDULES.items():
        if schedule in ZERO_BUBBLE and not splits_backward():  # they fail with any Function
            continue
        model, count = decoder(layers=LAYERS), sum(map(len, places))
        stages = [PipelineStage(Stage(model, k, count), k, count, torch.device(device_type())) for k in places[rank]]
        several = len(stages) > 1
        run = schedule(stages if several else stages[0], MICROBATCHES, loss_fn=model.loss)  # type: ignore[arg-type]
        losses: list[Tensor] = []
        has_last = count - 1 in places[rank]
        given = [tokens] if 0 in places[rank] else []
        run.step(*given, target=target if has_last else None, losses=losses if has_last else None)
        if has_last:
            check_close(f"{schedule.__name__}: loss", [torch.stack(losses).mean()], [expected.detach()])
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        assert found
        wanted = [gradients[name] for name in found]
        check_close(f"{schedule.__name__}: gradients of {list(found)}", list(found.values()), wanted)
        names: list[list[str] | None] = [None, None]
        distributed.all_gather_object(names, list(found))
        assert sorted(name for part in names for name in part or ()) == sorted(gradients)


@pytest.mark.parametrize("device", DEVICES)
def test_processes(device: str, tmp_path: Path) -> None:
    spawn(schedules, 2, tmp_path, device)


class Fused(nn.Module):
    """What the decoder has not: sums that go on, a mask, products with their activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.second = fastops.nn.RMSNorm(8), fastops.nn.LayerNorm(8)
        self.first, self.last = fastops.nn.Linear(8, 16, activation="gelu"), fastops.nn.Linear(8, 8, activation="relu")
        self.gate = fastops.nn.SwiGLU()

    def forward(self, x: Tensor) -> Tensor:
        y, x = fastops.add_rms_norm(x, fastops.relu(x), (8,), self.norm.weight, 1e-5)
        y, x = fastops.add_layer_norm(self.gate(self.first(y)), x, (8,), self.second.weight, self.second.bias)
        return fastops.softmax(self.last(y), -1) + x


@pytest.mark.skipif(not splits_backward(), reason="PyTorch splits the backward of no Function")
@pytest.mark.parametrize("save", ["logits", "none"])
def test_split_backward(save: str) -> None:
    """As a zero-bubble schedule runs it: input's gradient while the graph is kept, then weights'."""
    torch.manual_seed(0)
    model, loss = Fused(), fastops.nn.LinearCrossEntropyLoss(8, 50, save=save)
    x, y = numbers((6, 8), 0).requires_grad_(), torch.arange(6)
    both = nn.ModuleList([model, loss])
    parameters = list(both.parameters())
    expected = torch.autograd.grad(loss(model(x), y), [x, *parameters])
    of_loss = [loss(model(x), y)]
    (of_input,), groups = stage_backward_input(of_loss, None, [x], iter(parameters))
    assert of_input is not None
    stage_backward_weight(iter(parameters), groups)
    torch.testing.assert_close([of_input, *(p.grad for p in parameters)], list(expected), rtol=1e-6, atol=1e-7)
