"""kit.op: what one call registers, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, func

from fastops import kit
from fastops.kit.content import content_hash

x64 = {"dtype": torch.float64}


def scale() -> Any:
    return kit.op(
        "kit_test::scale(Tensor x, *, float a=2.0) -> Tensor",
        cpu=lambda x, a: x * a,
        cuda=lambda x, a: x * a,
        backward=lambda grad, a: grad * a,
    )


def product() -> Any:
    """Without a rule of its own: all that is beyond the kernel comes from the reference."""
    return kit.op(
        "kit_test::product(Tensor x, Tensor y) -> Tensor",
        cpu=lambda x, y: torch.from_numpy(x.numpy() * y.numpy()),
        reference=lambda x, y: x * y,
    )


def norm(backward: Any = None, **rules: Any) -> Any:
    """Two public outputs, and a statistic that only the backward sees."""

    def kernel(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        root = x.square().sum(-1, keepdim=True).sqrt()
        return x / root, x + 1, root

    def default(grad_y: Tensor, grad_z: Tensor, x: Tensor, root: Tensor) -> Tensor:
        y = x / root
        return (grad_y - y * (grad_y * y).sum(-1, keepdim=True)) / root + grad_z

    return kit.op(
        "kit_test::norm(Tensor x) -> (Tensor y, Tensor z, Tensor root)",
        cpu=kernel,
        fake=lambda x: (torch.empty_like(x), torch.empty_like(x), x.new_empty(*x.shape[:-1], 1)),
        backward=backward or default,
        outputs=2,
        **rules,
    )


def test_call_binds_arguments(device: torch.device) -> None:
    x = torch.randn(3, device=device)
    for result in (scale()(x), scale()(x, 2.0), scale()(x, a=2.0), scale()(x=x, a=2.0)):
        assert torch.equal(result, x * 2)
    for args, kwargs, message in (
        ((x, 2.0, 3.0), {}, "at most 2 arguments, got 3"),
        ((x,), {"b": 1.0}, "expected arguments x, a, got b besides"),
        ((), {"a": 1.0}, "expected an argument x, got none"),
        ((1.0,), {}, "x must be a Tensor, got float"),
    ):
        with pytest.raises(TypeError, match=rf"^\[scale\] .*{message}"):
            scale()(*args, **kwargs)


def test_derivatives_to_second_order(device: torch.device) -> None:
    x = torch.randn(2, 3, device=device, requires_grad=True, **x64)
    assert torch.autograd.gradcheck(lambda x: scale()(x, a=3.0), x)
    assert torch.autograd.gradgradcheck(lambda x: scale()(x, a=3.0), x)
    y = torch.randn(2, 3, requires_grad=True, **x64)
    assert torch.autograd.gradcheck(product(), (x.detach().cpu().requires_grad_(), y))
    assert torch.autograd.gradgradcheck(product(), (x.detach().cpu().requires_grad_(), y))


def test_statistics_are_kept_for_the_backward_alone() -> None:
    x = torch.randn(2, 3, requires_grad=True, **x64)
    assert len(norm()(x)) == 2
    assert torch.autograd.gradcheck(norm(), x)
    for k in (0, 1):  # the gradient of the other output is None
        assert torch.autograd.gradcheck(lambda x, k=k: norm()(x)[k], x)
    with pytest.raises(kit.KitError, match=r"second derivative through root, .* needs reference="):
        torch.autograd.gradgradcheck(norm(), x)


def test_second_derivatives_through_statistics_come_from_the_reference() -> None:
    def reference(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        root = x.square().sum(-1, keepdim=True).sqrt()
        return x / root, x + 1, root

    x = torch.randn(2, 3, requires_grad=True, **x64)
    assert torch.autograd.gradgradcheck(norm(reference=reference), x)


def test_statistics_recomputed_make_second_derivatives() -> None:
    def backward(grad_y: Tensor, grad_z: Tensor, x: Tensor) -> Tensor:
        root = x.square().sum(-1, keepdim=True).sqrt()
        y = x / root
        return (grad_y - y * (grad_y * y).sum(-1, keepdim=True)) / root + grad_z

    x = torch.randn(2, 3, requires_grad=True, **x64)
    assert torch.autograd.gradcheck(norm(backward), x)
    assert torch.autograd.gradgradcheck(norm(backward), x)


def test_backward_as_an_op_is_differentiated_by_its_own_rule() -> None:
    cube_backward = kit.op(
        "kit_test::cube_backward(Tensor grad, Tensor x) -> Tensor",
        cpu=lambda grad, x: torch.from_numpy(3 * grad.numpy() * x.numpy() ** 2),
        reference=lambda grad, x: 3 * grad * x * x,
    )
    cube = kit.op(
        "kit_test::cube(Tensor x) -> Tensor", cpu=lambda x: torch.from_numpy(x.numpy() ** 3), backward=cube_backward
    )
    x = torch.randn(5, requires_grad=True, **x64)
    assert torch.autograd.gradcheck(cube, x)
    assert torch.autograd.gradgradcheck(cube, x)
    compiled = torch.compile(lambda x: cube(x).sin(), fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(found, (x**3).cos() * 3 * x * x)


def test_without_derivative_an_error_and_no_zeros() -> None:
    op = kit.op("kit_test::round_up(Tensor x) -> Tensor", cpu=torch.ceil)
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(op(x), x.ceil())
    with pytest.raises(kit.KitError, match=r"^\[round_up\] has no derivative: give kit.op backward= or reference="):
        op(x).sum().backward()


def test_forward_mode_is_right_or_refused() -> None:
    x, t = torch.randn(3, **x64), torch.randn(3, **x64)
    _, tangent = func.jvp(product(), (x, x), (t, t))
    torch.testing.assert_close(tangent, 2 * x * t)
    _, tangent = func.jvp(scale(), (x,), (t,))  # the given backward, transposed
    torch.testing.assert_close(tangent, 2 * t)
    without = kit.op("kit_test::negated(Tensor x) -> Tensor", cpu=torch.neg)
    with pytest.raises(kit.KitError, match=r"^\[negated\] forward mode.* need kit.op\(..., reference=...\)"):
        func.jvp(without, (x,), (t,))


@pytest.mark.parametrize("rule", [None, "elementwise", lambda info, dims, x, a: (scale()(x, a), dims[0])])
def test_vmap(rule: Any) -> None:
    op = kit.op(
        "kit_test::scale(Tensor x, float a) -> Tensor",
        cpu=lambda x, a: x * a,
        backward=lambda grad, a: grad * a,
        vmap=rule,
    )
    x = torch.randn(4, 3)
    torch.testing.assert_close(func.vmap(lambda x: op(x, 3.0), 1, 1)(x), 3 * x)
    torch.testing.assert_close(func.vmap(func.grad(lambda x: op(x, 3.0).square().sum()))(x), 18 * x)
    torch.testing.assert_close(func.vmap(lambda y: product()(x, y))(torch.stack([x, -x])), torch.stack([x * x, -x * x]))


def test_vmap_of_several_outputs() -> None:
    x = torch.randn(4, 3)
    for found, expected in zip(func.vmap(norm())(x), norm()(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_autocast() -> None:
    x = torch.randn(4)
    for rule, expected in (("lower", torch.bfloat16), ("float32", torch.float32), (None, torch.float16)):
        op = kit.op("kit_test::same(Tensor x, int k) -> Tensor", cpu=lambda x, k: x * k, autocast=rule)
        with torch.autocast("cpu", torch.bfloat16):
            assert op(x.half(), 2).dtype == expected
        assert op(x.half(), 2).dtype == torch.float16


def test_other_dtypes_and_devices() -> None:
    assert torch.equal(scale()(torch.arange(3)), torch.arange(3) * 2.0)
    assert scale()(torch.empty(3, device="meta")).device.type == "meta"
    op = kit.op("kit_test::cuda_only(Tensor x) -> Tensor", cuda=lambda x: x + 1)
    with pytest.raises(kit.KitError, match=r"^\[cuda_only\] has no kernel for cpu: give kit.op one, or reference="):
        op(torch.ones(1))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("junk", {}, "expected a schema such as 'my::scale"),
        ("op(Tensor x) -> Tensor", {}, "expected a name such as my::op"),
        ("my::op(float x) -> Tensor", {}, "first argument must be a Tensor, got float"),
        ("my::op() -> Tensor", {}, "first argument must be a Tensor, got none"),
        ("my::op(Tensor x, Tensor[] y) -> Tensor", {}, "got a list in y"),
        ("my::op(Tensor(a!) x) -> Tensor", {}, "overwrite none"),
        ("my::op(Tensor x) -> int", {}, "outputs must be Tensors"),
        ("my::op(Tensor x) -> ()", {}, "outputs must be Tensors"),
        ("my::op(Tensor x) -> Tensor", {"cpu": None}, "expected cpu=, cuda= or reference="),
        ("my::op(Tensor x) -> Tensor", {"outputs": 2}, "outputs must be 1 to 1, got 2"),
        ("my::op(Tensor x) -> (Tensor, Tensor)", {}, "need a fake="),
        ("my::op(Tensor x) -> Tensor", {"cpu": 3}, r"cpu must be a function, got int"),
        ("my::op(Tensor x) -> Tensor", {"vmap": "rows"}, "vmap must be 'elementwise' or a function"),
        ("my::op(Tensor x) -> Tensor", {"autocast": "half"}, "autocast must be one of lower, float32"),
        ("my::op(Tensor x) -> Tensor", {"backward": lambda g, x: g}, "may read grad, x, out, needs, got a parameter g"),
    ],
)
def test_definitions_that_cannot_be_served(schema: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kit.KitError, match=message):
        kit.op(schema, **{"cpu": torch.relu} | options)


@pytest.mark.parametrize(
    ("outputs", "result", "message"),
    [
        ("Tensor", None, "must return a Tensor, got NoneType"),
        ("Tensor", (1,), "must return a Tensor, got tuple"),
        ("(Tensor, Tensor)", (torch.ones(1),), "must return 2 Tensors, got 1 of them"),
        ("(Tensor, Tensor)", (torch.ones(1), None), "must return 2 Tensors, got tuple"),
    ],
)
def test_a_kernel_must_return_tensors(outputs: str, result: Any, message: str) -> None:
    op = kit.op(
        f"kit_test::nothing(Tensor x) -> {outputs}", cpu=lambda x: result, fake=lambda x: (torch.empty_like(x),) * 2
    )
    with pytest.raises(kit.KitError, match=rf"^\[nothing\] cpu= {message}"):
        op(torch.ones(1))


@pytest.mark.parametrize("part", ["cpu", "reference", "fake"])
@pytest.mark.parametrize("alias", [lambda x: x, lambda x: x.view(-1), lambda x: x.detach()[1:]])
def test_an_output_in_an_inputs_memory_is_refused(part: str, alias: Any) -> None:
    parts = {"cpu": alias} if part == "cpu" else {"reference": alias, **({"fake": alias} if part == "fake" else {})}
    op = kit.op("kit_test::same(Tensor x) -> Tensor", **parts)
    device = "meta" if part == "fake" else "cpu"
    for requires_grad in (False, True):
        x = torch.ones(3, device=device, requires_grad=requires_grad)
        with pytest.raises(
            kit.KitError, match=rf"^\[same\] {part}= must return new tensors, got out in the memory of x"
        ):
            op(x)


def test_two_outputs_in_one_memory_are_refused() -> None:
    def twice(x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        result = x + 1
        return result, result[:1]

    op = kit.op("kit_test::twice(Tensor x, Tensor? y) -> (Tensor a, Tensor b)", cpu=twice, reference=twice)
    with pytest.raises(kit.KitError, match=r"^\[twice\] cpu= must return new tensors, got b in the memory of a"):
        op(torch.ones(3), None)


def test_empty_outputs_are_no_aliases() -> None:
    op = kit.op("kit_test::nowhere(Tensor x) -> Tensor", cpu=lambda x: torch.empty_like(x))
    assert op(torch.empty(0)).shape == (0,)


def test_explain() -> None:
    x = torch.ones(1)
    assert "cpu=scale.<locals>.<lambda>" in kit.explain(scale(), x, a=3.0)
    assert "the reference" in kit.explain(product(), x.to("meta"), x)
    with pytest.raises(kit.KitError, match="expected an op that the kit made, got relu"):
        kit.explain(torch.relu, x)


def test_backward_must_return_a_gradient_for_each_tensor() -> None:
    op = kit.op("kit_test::pair(Tensor x, Tensor y) -> Tensor", cpu=torch.add, backward=lambda grad: grad)
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(kit.KitError, match=r"^\[pair\] backward must return gradients of x, y, got 1 values"):
        op(x, x).sum().backward()


def test_equal_content_is_one_op_and_any_change_another() -> None:
    def make(factor: float, backward: Any = None) -> Any:
        return kit.op("kit_test::times(Tensor x) -> Tensor", cpu=lambda x: x * factor, backward=backward)

    assert make(2.0) is make(2.0)
    assert len({make(2.0), make(3.0), make(2.0, lambda grad: grad * 2), make(2.0, lambda grad: grad * 3)}) == 4
    assert make(3.0)(torch.ones(1)).item() == 3


HELPER = 2


def helper(x: int) -> int:
    return x * HELPER


def test_hash_follows_what_a_function_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def outer(x: int) -> list[int]:
        return [helper(y) for y in range(x)]

    hashes = {content_hash(outer)}
    monkeypatch.setitem(globals(), "HELPER", 3)
    hashes.add(content_hash(outer))
    monkeypatch.setitem(globals(), "helper", lambda x: x + HELPER)
    hashes.add(content_hash(outer))
    assert len(hashes) == 3
    for value in (torch.arange(3), {"a": [1, (2.0, None)]}, {1, 2}, torch.relu, torch.nn.functional.silu, os, Path):
        assert content_hash(value) == content_hash(value)
    assert content_hash(torch.arange(3)) != content_hash(torch.arange(3.0))


def test_what_an_op_holds_is_its_own() -> None:
    """Equal when they were defined, and no longer."""

    def adding(term: Any) -> Any:
        return kit.op("kit_test::adding(Tensor x) -> Tensor", cpu=lambda x: x + term[0], backward=lambda grad: grad)

    terms = [torch.zeros(1)], [torch.zeros(1)]
    ops = [adding(term) for term in terms]
    assert ops[0] is not ops[1]
    assert adding(terms[0]) is ops[0]
    terms[0][0], terms[1][0] = torch.ones(1), torch.full((1,), 2.0)
    assert [op(torch.zeros(1)).item() for op in ops] == [1, 2]


def test_a_definition_that_failed_can_be_repeated() -> None:
    for _ in range(2):
        with pytest.raises(kit.KitError, match="grd"):
            kit.op("kit_test::failed(Tensor x) -> Tensor", reference=torch.exp, backward=lambda grd: grd)


def test_names_that_come_twice_are_refused() -> None:
    with pytest.raises(kit.KitError, match="names of their own, got x twice"):
        kit.op("kit_test::twice(Tensor x, Tensor x) -> Tensor", reference=torch.add)


def test_many_threads_define_one_op() -> None:
    def define(_: int) -> Any:
        return kit.op("kit_test::shared_by_threads(Tensor x) -> Tensor", reference=torch.exp)

    with ThreadPoolExecutor(8) as pool:
        assert len({id(op) for op in pool.map(define, range(64))}) == 1


def test_hash_of_a_tensor_needs_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "numpy", None)
    data = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    same = data.t().contiguous().t()
    assert content_hash(data) == content_hash(same)
    assert len({content_hash(t) for t in (data, data.t(), data.view(6), data + 1, data.half(), data[:0])}) == 6


def test_hash_sees_every_closure() -> None:
    def closing_over(k: int) -> Any:
        return lambda x: x * k

    def outer(*factors: int) -> Any:
        functions = [closing_over(k) for k in factors]
        return lambda x: [f(x) for f in functions]

    assert len({content_hash(outer(1, 2, 3)), content_hash(outer(1, 2, 4)), content_hash(outer(1, 5, 3))}) == 3


# What a cached graph keeps of an op is what its fake said.
STALE = """
import sys, torch
from fastops import kit

times = int(sys.argv[1])
op = kit.op(
    "kit_test::stale(Tensor x) -> Tensor",
    cpu=lambda x: x.repeat(times),
    fake=lambda x: x.new_empty(times * x.shape[0]),
)
print(torch.compile(lambda x: op(x) + 1)(torch.ones(8)).shape[0], op.raw)
"""


@pytest.mark.slow
def test_a_changed_op_reuses_no_graph_of_another_process(tmp_path: Path) -> None:
    """The graphs differ in the op's name alone; what a cached one takes for granted is the shape of its result."""
    script = tmp_path / "stale.py"
    script.write_text(STALE)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}

    def run(factor: str) -> list[str]:
        result = subprocess.run([sys.executable, script, factor], env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.split()

    first, second, again = run("2"), run("5"), run("2")
    assert [first[0], second[0]] == ["16", "40"]
    assert first == again  # the same content has the same name in every process
