"""Attention against softmax written out in float64, and which kernel is chosen, why, and what is refused."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from packer.errors import UserError
from tests.trainer.kernel_proofs import agree, nothing_crosses
from trainer.kernels import attention, conv, delta, prove_apart, prove_right, resolve, scan
from trainer.kernels.attention import reference
from trainer.segments import Segments

CPU = torch.device("cpu")
LENGTHS = [[1], [3, 1, 1, 5], [63, 64, 65, 1, 2]]


def inputs(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((4, 8), (2, 8), (2, 6))
    made = [torch.randn(1, heads, length, dim, generator=generator, dtype=torch.float64) for heads, dim in shapes]
    return [x.to(dtype).requires_grad_() for x in made]


def written_out(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], scale: float, window: int | None) -> Tensor:
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(len(owner))
    back = place[:, None] - place[None]
    seen = (owner[:, None] == owner[None]) & (back >= 0)
    if window is not None:
        seen &= back < window
    heads = []
    for head in range(q.shape[1]):
        scores = (q[0, head] @ k[0, head // 2].T * scale).masked_fill(~seen, float("-inf"))
        heads.append(scores.softmax(-1) @ v[0, head // 2])
    return torch.stack(heads)[None]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("window", [None, 1, 4, 64])
def test_equals_softmax_written_out_with_its_gradients(lengths: list[int], window: int | None) -> None:
    x = inputs(sum(lengths))
    ours = reference(*x, segments=Segments.from_lengths(lengths), scale=0.3, window=window)
    agree(ours, written_out(*x, lengths, 0.3, window), x, tolerance=1e-11)


def test_nothing_crosses_a_boundary_forward_or_backward() -> None:
    lengths = [1, 2, 63, 64, 65, 5]

    def kernel(x: Sequence[Tensor], segments: Segments) -> Tensor:
        return reference(*x, segments=segments, scale=0.3, window=None)

    nothing_crosses(kernel, inputs(sum(lengths), torch.float32), lengths, of_tokens=(0, 1, 2), dim=2)


def test_what_other_segments_are_long_does_not_change_a_bit() -> None:
    x = [t.detach() for t in inputs(100)]
    alone = reference(*[t[:, :, :60] for t in x], segments=Segments.from_lengths([60]), scale=0.3, window=None)
    for rest in ([40], [1] * 40, [3, 37]):
        packed = reference(*x, segments=Segments.from_lengths([60, *rest]), scale=0.3, window=None)
        assert torch.equal(packed[:, :, :60], alone)


@pytest.mark.parametrize("layer", ["attention", "delta", "conv", "scan"])
def test_a_cpu_gets_the_reference_and_the_reason(layer: str) -> None:
    kernel, choice = resolve(layer, "auto", CPU)  # type: ignore[call-overload]  # a literal in a loop
    assert kernel is {"attention": attention, "delta": delta, "conv": conv, "scan": scan}[layer].reference
    assert (choice.layer, choice.kernel) == (layer, "reference")
    assert "no GPU" in choice.reason
    assert "--kernels reference" in resolve(layer, "reference", CPU)[1].reason  # type: ignore[call-overload]


def test_fused_on_a_cpu_is_refused() -> None:
    with pytest.raises(UserError, match="needs a GPU"):
        resolve("delta", "fused", CPU)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        (delta, "fla.ops.gated_delta_rule"),
        (conv, "fla.modules.causal_conv1d"),
        (scan, "fla.ops.simple_gla"),
        (conv, "causal_conv1d"),
    ],
    ids=["delta", "conv", "scan", "causal_conv1d"],
)
def test_a_broken_package_is_an_error_in_the_import_s_own_words(
    module: ModuleType, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError("fla.so: undefined symbol: _ZN3c104cuda9")

    parts = package.split(".")
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        monkeypatch.setitem(sys.modules, name, Broken(name))
    with pytest.raises(UserError, match="undefined symbol") as error:
        module.load_fused()
    assert f"torch {torch.__version__}" in error.value.message
    assert "--kernels reference" in error.value.hint


def test_a_broken_causal_conv1d_on_the_disk_is_not_taken_for_one_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "causal_conv1d"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('causal_conv1d_cuda.so: undefined symbol: _ZN3c10')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)
    with pytest.raises(UserError, match=r"installed but cannot be loaded: ImportError: .*undefined symbol"):
        conv.load_fused()


@pytest.mark.parametrize("kind", [AttributeError, AssertionError, OSError, RuntimeError, TypeError, ValueError])
@pytest.mark.parametrize(("module", "package"), [(delta, "fla"), (conv, "fla"), (scan, "fla"), (conv, "causal_conv1d")])
def test_however_an_import_fails_it_is_two_lines(
    module: ModuleType, package: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package made for another Triton looks for names that are not there, one for another torch asserts its version, over many lines."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(f"raise {kind.__name__}('no\\nsuch name')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("fla", "causal_conv1d")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError) as error:
        module.load_fused()
    assert f"cannot be loaded: {kind.__name__}: no such name (torch {torch.__version__})" in error.value.message


@pytest.mark.parametrize("layer", ["delta", "conv", "scan"])
def test_a_gpu_without_the_packages_is_an_error_and_not_a_slower_run(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fla", "causal_conv1d"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="cannot be loaded") as error:
        resolve(layer, "auto", torch.device("cuda"))  # type: ignore[call-overload]  # a literal in a loop
    assert "--kernels reference" in error.value.hint


def test_a_missing_attention_names_both_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.nn.attention.varlen", "flash_attn"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"varlen.*flash_attn"):
        attention.load_fused()


def test_a_fast_path_that_leaks_is_refused() -> None:
    def blind(*tensors: Tensor, segments: Segments) -> Tensor:
        whole = Segments.from_lengths([segments.num_tokens])
        return delta.reference(*tensors, segments=whole)

    prove_apart("delta", delta.reference, "ours", CPU, torch.float32)
    prove_apart("conv", conv.reference, "ours", CPU, torch.float32)
    prove_apart("scan", scan.reference, "ours", CPU, torch.float32)
    prove_apart("attention", attention.reference, "ours", CPU, torch.float32)
    with pytest.raises(UserError, match="lets one segment see another"):
        prove_apart("delta", blind, "blind", CPU, torch.float32)


@pytest.mark.parametrize(
    ("layer", "module"), [("delta", delta), ("conv", conv), ("scan", scan), ("attention", attention)]
)
def test_a_fast_path_that_is_wrong_is_refused_before_it_trains_anything(layer: str, module: ModuleType) -> None:
    """Each of these keeps segments apart."""

    def sixteen_times(y: Tensor) -> Tensor:  # in its gradients alone
        y = y.clone()
        y.register_hook(lambda gradient: gradient * 16)
        return y.clone()

    def changed(how: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda *tensors, **options: how(module.reference(*tensors, **options))

    def cut(y: Tensor) -> Tensor:  # what lies behind the first chunk of the pass is never written
        return torch.cat([y.narrow(1, 0, 64), torch.zeros_like(y.narrow(1, 64, y.shape[1] - 64))], dim=1)

    for dtype in (torch.float32, torch.bfloat16):
        prove_right(layer, module.reference, "ours", CPU, dtype)  # type: ignore[arg-type]  # a literal in a loop
    cases = {"its output": [lambda y: y * 1.5, lambda y: y * float("nan")], "gradient": [sixteen_times]}
    if layer != "attention":  # which has the heads there
        cases["its output"].append(cut)
    for what, ways in cases.items():
        for how in ways:
            with pytest.raises(UserError, match=rf"computes something else than the reference: .*{what}"):
                prove_right(layer, changed(how), "wrong", CPU, torch.bfloat16)  # type: ignore[arg-type]


def test_a_fast_path_that_cannot_run_is_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_tensors: Tensor, **_options: object) -> Tensor:
        raise RuntimeError("CUDA error: misaligned address\nCompile with TORCH_USE_CUDA_DSA")

    probe = delta.probe
    monkeypatch.setattr(delta, "load_fused", lambda: (broken, "fla.x", "why"))
    monkeypatch.setattr(Segments, "to", lambda self, _device: self)
    monkeypatch.setattr(delta, "probe", lambda kernel, segments, _device, dtype: probe(kernel, segments, CPU, dtype))
    with pytest.raises(
        UserError,
        match=r"^the delta kernel fla\.x cannot run on this GPU: RuntimeError: CUDA error: misaligned address Compile",
    ):
        resolve("delta", "auto", torch.device("cuda"))


def test_fused_attention_wants_half_precision() -> None:
    kernel, _, _ = attention.load_fused()
    with pytest.raises(UserError, match="float32"):
        kernel(*inputs(4, torch.float32), segments=Segments.from_lengths([4]), scale=1.0, window=None)


@pytest.mark.parametrize("kernel", ["attention", "delta", "conv", "scan"])
def test_a_batch_of_rows_is_refused_before_a_kernel_can_misread_it(kernel: str) -> None:
    module = {"attention": attention, "delta": delta, "conv": conv, "scan": scan}[kernel]
    segments = Segments.from_lengths([3, 5])
    call, given = module.probe(module.reference, segments, CPU, torch.float32)  # type: ignore[attr-defined]
    call(given)
    with pytest.raises(ValueError, match=r"\[2, 8\] where one flat sequence \[1, 8\]"):
        call([tensor.expand(2, *tensor.shape[1:]) for tensor in given])


def variable_length(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: object, scale: float, left: int
) -> Tensor:
    """What the fast paths compute, [T, H, D], written out; as they do, it wants host integers and one width of head."""
    assert type(longest) is int, "a tensor would stop the device, or break the graph"
    assert bounds.dtype == torch.int32
    assert bool((bounds.diff() > 0).all()), "offsets repeat"
    assert q.shape[-1] == k.shape[-1] == v.shape[-1]
    heads_first = [x.float().transpose(0, 1)[None] for x in (q, k, v)]
    out = written_out(*heads_first, bounds.diff().tolist(), scale, None if left < 0 else left + 1)
    return out[0].transpose(0, 1).to(q.dtype)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("package", ["torch", "flash_attn"])
def test_the_fast_paths_are_called_as_they_ask(package: str, window: int | None) -> None:
    def varlen(
        q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: object, max_k: object, *, scale: float,
        window_size: tuple[int, int], enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        assert enable_gqa
        assert window_size[1] == 0
        assert (cu_q is cu_k, max_q) == (True, max_k)
        return variable_length(q, k, v, cu_q, max_q, scale, window_size[0])

    def flash(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: object,
        max_seqlen_k: object, softmax_scale: float, causal: bool, window_size: tuple[int, int],
    ) -> Tensor:  # fmt: skip
        assert causal
        assert (cu_seqlens_q is cu_seqlens_k, max_seqlen_q) == (True, max_seqlen_k)
        return variable_length(q, k, v, cu_seqlens_q, max_seqlen_q, softmax_scale, window_size[0])

    kernel = attention._varlen(varlen) if package == "torch" else attention._flash_attn(flash)
    lengths = [3, 1, 1, 5]
    segments = Segments.from_lengths(lengths, max_segments=7, max_segment_len=64)
    x = [t.detach() for t in inputs(10, torch.bfloat16)]
    ours = kernel(*x, segments=segments, scale=0.3, window=window)
    expected = reference(*[t.float() for t in x], segments=segments, scale=0.3, window=window)
    torch.testing.assert_close(ours.float(), expected, rtol=2e-2, atol=2e-2)
