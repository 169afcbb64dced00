"""Losses of classes that the processes of a group share out, as plain tensors: the ``group`` of a public function."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh

from ...cases import Case
from ..accuracy import Evaluation, errors, incoming_gradients
from ..bits import same_bits
from ..forms import Form, of_calls
from ..target import Path, Target, parameters_of
from .calls import Calls


def calls(case: Case, dtype: torch.dtype, mesh: DeviceMesh, quick: bool) -> Iterator[OfAGroup]:
    """Those of the table whose targets are classes, and of which each process has some."""
    target = Target(case, dtype, Path(torch.device(mesh.device_type), mesh.device_type), quick)
    if "group" not in parameters_of(case):
        return
    for form in of_calls(target):
        arguments = dict(zip(form.names, form.args, strict=True))
        several = "linear_weight" in arguments and arguments["linear_weight"].dim() > 2  # with a group an error
        if arguments["target"].is_floating_point() or several:
            continue
        call = OfAGroup(form, mesh)
        if call.fits:
            yield call


class OfAGroup:
    """A call of which each process has some classes, and what is to come of it."""

    def __init__(self, form: Form, mesh: DeviceMesh) -> None:
        self.form, self.mesh = form, mesh
        linear = "linear_weight" in form.names
        shared = ("linear_weight", "linear_bias") if linear else ("input",)
        self._dims = {k: 0 if linear else 1 for k, name in enumerate(form.names) if name in shared}
        self.classes = next(form.args[k].shape[dim] for k, dim in self._dims.items())
        self.each = -(-self.classes // mesh.size())
        # The gathering of rows, and the sum of the input's gradients.
        self.collectives = (1, int(linear))

    @property
    def fits(self) -> bool:
        """Whether each process has a class."""
        return self.classes > (self.mesh.size() - 1) * self.each

    def mine(self, k: int, x: Tensor) -> Tensor:
        """Of the k-th tensor."""
        if k not in self._dims:
            return x
        begin = self.mesh.get_local_rank() * self.each
        return x.narrow(self._dims[k], begin, min(self.each, self.classes - begin)).contiguous()

    def run(self) -> tuple[Iterator[tuple[str, float]], list[str]]:
        """Errors of the results and of this process's gradients, in ulps, and what is wrong otherwise."""
        form, group = self.form, self.mesh.get_group()
        given = [self.mine(k, x).detach().requires_grad_(k in form.learnable) for k, x in enumerate(form.args)]
        shared = form.with_given({"group": group, "classes": self.classes})
        with Calls() as forward:
            outputs = shared.ours(*given)
        grads = incoming_gradients(outputs)
        with Calls() as backward:
            gradients = torch.autograd.grad(outputs, [given[k] for k in form.learnable], grads)

        wrong = []
        if (found := (forward.beside, backward.beside)) != self.collectives:
            wrong.append(f"{found} collectives forward and backward, the least is {self.collectives}")
        for out in outputs:
            others = [torch.empty_like(out) for _ in range(self.mesh.size())]
            distributed.all_gather(others, out.detach().contiguous(), group=group)
            if not all(same_bits(other, out) for other in others):
                wrong.append("results differ between processes")
        whole = form.truth(grads)
        expected = tuple(self.mine(k, x) for k, x in zip(form.learnable, whole.gradients, strict=True))
        truth = Evaluation(whole.outputs, expected)
        return errors(form.case, form.args, Evaluation(outputs, gradients), truth), wrong
