"""The chunked loss against F.cross_entropy in float64 over all logits."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.kernels import loss
from trainer.kernels.loss import cross_entropy_sum


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(50, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(33, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    positions = torch.randperm(50, generator=generator)[:40]
    return hidden, weight, positions, torch.randint(0, 33, (40,), generator=generator)


def over_all_logits(
    hidden: Tensor, weight: Tensor, positions: Tensor, targets: Tensor, softcap: float | None
) -> Tensor:
    logits = hidden.double() @ weight.double().T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits[positions], targets, reduction="sum")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 39, 40])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_equals_cross_entropy_with_its_gradients(
    count: int, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, positions, targets = inputs()
    ours = cross_entropy_sum(hidden, weight, positions, targets, count, softcap=softcap)
    expected = over_all_logits(hidden, weight, positions[:count], targets[:count], softcap)
    torch.testing.assert_close(ours, expected, rtol=1e-13, atol=0)
    got = torch.autograd.grad(ours * 0.37, [hidden, weight])
    for grad, want in zip(got, torch.autograd.grad(expected * 0.37, [hidden, weight]), strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("count", [0, 1, 9, 40])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_weighted_targets_count_as_often_as_they_weigh(
    count: int, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, positions, targets = inputs()
    factors = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = cross_entropy_sum(hidden, weight, positions, targets, count, softcap=softcap, target_weights=factors)
    logits = hidden @ weight.T if softcap is None else softcap * torch.tanh(hidden @ weight.T / softcap)
    each = F.cross_entropy(logits[positions[:count]], targets[:count], reduction="none")
    expected = (each * factors[:count]).sum()
    torch.testing.assert_close(ours, torch.stack([expected, each.sum()]), rtol=1e-13, atol=0)
    got = torch.autograd.grad(ours[0] * 0.37, [hidden, weight])
    for grad, want in zip(got, torch.autograd.grad(expected * 0.37, [hidden, weight]), strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-11, atol=1e-13)


def test_a_position_may_occur_twice() -> None:
    hidden, weight, _, _ = inputs()
    positions, targets = torch.tensor([3, 3]), torch.tensor([1, 2])
    got = torch.autograd.grad(cross_entropy_sum(hidden, weight, positions, targets, 2), hidden)
    want = torch.autograd.grad(over_all_logits(hidden, weight, positions, targets, None), hidden)
    torch.testing.assert_close(got, want)


def test_entries_past_the_count_are_never_read() -> None:
    hidden, weight, positions, targets = inputs()
    positions[5:], targets[5:] = 10**9, -(10**9)
    assert bool(cross_entropy_sum(hidden, weight, positions, targets, 5).isfinite())


def test_no_targets_is_zero_and_still_connected() -> None:
    hidden, weight, positions, targets = inputs(torch.bfloat16)
    total = cross_entropy_sum(hidden, weight, positions, targets, 0)
    assert float(total.detach()) == 0.0
    assert total.requires_grad
    grads = torch.autograd.grad(total, [hidden, weight])
    assert all(float(g.abs().max()) == 0.0 and g.dtype == torch.bfloat16 for g in grads)


def test_half_precision_is_summed_in_float32() -> None:
    hidden, weight, positions, targets = inputs(torch.bfloat16)
    ours = cross_entropy_sum(hidden, weight, positions, targets, 40)
    expected = over_all_logits(hidden, weight, positions, targets, None)
    assert ours.dtype == torch.float32
    assert abs(float(ours.detach() / expected.detach()) - 1) < 1e-6  # logits in bfloat16 would be off by 1e-3
    for grad, want in zip(
        torch.autograd.grad(ours, [hidden, weight]), torch.autograd.grad(expected, [hidden, weight]), strict=True
    ):
        assert grad.dtype == torch.bfloat16
        assert float((grad - want).norm() / want.norm()) < 2**-7


def test_logits_of_unsupervised_tokens_are_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, positions, targets = inputs()
    rows: list[int] = []
    product = loss._product

    def counting(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        if out.shape[-1] == 33:
            rows.append(len(out))
        return product(a, b, out)

    monkeypatch.setattr(loss, "_product", counting)
    cross_entropy_sum(hidden, weight, positions, targets, 20)
    assert rows == [8, 8, 4]


@pytest.mark.parametrize("size", [1, 8, 32, 33])
def test_a_sum_of_products_in_slices_is_the_sum(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Factors of another type than the sum's are a GPU's; the slices are what can be tried without one.
    monkeypatch.setattr(loss, "_SLICE", size)
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype: a.to(out_dtype) @ b.to(out_dtype))
    total, a, b = torch.ones(33, 8), torch.randn(33, 5).bfloat16(), torch.randn(5, 8).bfloat16()
    loss._add_product(total, a, b)
    torch.testing.assert_close(total, 1 + a.float() @ b.float())


def test_logits_far_apart_neither_overflow_nor_underflow() -> None:
    hidden = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    weight = torch.tensor([[300.0], [-300.0], [0.0]], requires_grad=True)
    positions, targets = torch.tensor([0, 1]), torch.tensor([1, 1])
    ours = cross_entropy_sum(hidden, weight, positions, targets, 2)
    assert float(ours.detach()) == 600.0  # one token 600 below the likeliest, one the likeliest itself
    grads = torch.autograd.grad(ours, [hidden, weight])
    assert [g.flatten().tolist() for g in grads] == [[600.0, 0.0], [1.0, -1.0, 0.0]]


def test_weights_of_targets_multiply_their_losses_and_gradients_and_the_plain_sum_stands_beside() -> None:
    hidden, weight, positions, targets = inputs()
    factors = torch.linspace(0, 2, 40, dtype=torch.float64)
    both = cross_entropy_sum(hidden, weight, positions, targets, 30, target_weights=factors)
    each = F.cross_entropy((hidden @ weight.T)[positions[:30]], targets[:30], reduction="none")
    torch.testing.assert_close(both, torch.stack([(each * factors[:30]).sum(), each.sum()]))
    got = torch.autograd.grad(both[0] * 0.7, [hidden, weight])
    for grad, want in zip(got, torch.autograd.grad((each * factors[:30]).sum() * 0.7, [hidden, weight]), strict=True):
        torch.testing.assert_close(grad, want)


def test_a_second_backward_pass_is_an_error_and_not_a_wrong_gradient() -> None:
    hidden, weight, positions, targets = inputs()
    total = cross_entropy_sum(hidden, weight, positions, targets, 40)
    torch.autograd.grad(total, hidden, retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(total, hidden)


def test_the_weight_s_gradient_is_handed_on_and_not_copied() -> None:
    hidden, weight, positions, targets = inputs()
    total = cross_entropy_sum(hidden, weight, positions, targets, 40)
    made = total.grad_fn.gradients[1].data_ptr()
    torch.autograd.backward(total * 0.5)
    assert weight.grad is not None
    assert weight.grad.data_ptr() == made


def test_without_gradients_none_are_made() -> None:
    hidden, weight, positions, targets = inputs()
    with torch.no_grad():
        total = cross_entropy_sum(hidden, weight, positions, targets, 40)
    assert not total.requires_grad
    torch.testing.assert_close(total, over_all_logits(hidden, weight, positions, targets, None).detach())


def test_a_count_that_does_not_fit_is_an_error() -> None:
    hidden, weight, positions, targets = inputs()
    with pytest.raises(ValueError, match="count 41"):
        cross_entropy_sum(hidden, weight, positions, targets, 41)


def test_nothing_is_read_back_from_the_device() -> None:
    class NoReading(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:  # type: ignore[type-arg]
            assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), func
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    hidden, weight, positions, targets = inputs()
    with NoReading():
        torch.autograd.backward(cross_entropy_sum(hidden, weight, positions, targets, 20, softcap=2.0) / 20)
    assert hidden.grad is not None


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_targets_own_loss_is_given_beside_a_sum_of_the_same_bits(
    dtype: torch.dtype, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "CHUNK", 8)
    hidden, weight, positions, targets = inputs(dtype)
    factors = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) if weighted else None
    each = torch.full((40,), -1.0, dtype=torch.float64)
    without = cross_entropy_sum(hidden, weight, positions, targets, 37, target_weights=factors)
    beside = cross_entropy_sum(hidden, weight, positions, targets, 37, target_weights=factors, each=each)
    assert torch.equal(without, beside)
    gradients = [torch.autograd.grad(total.reshape(-1)[0], [hidden, weight]) for total in (without, beside)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    logits = hidden.double() @ weight.double().T
    expected = F.cross_entropy(logits[positions[:37]], targets[:37], reduction="none")
    torch.testing.assert_close(each[:37], expected, rtol=1e-6, atol=1e-6)
    assert each[37:].tolist() == [-1.0] * 3
