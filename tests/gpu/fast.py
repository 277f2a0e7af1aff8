"""How fast the fast paths are, and why: the ladder from padded to packed, compiled kernels, launches, and ways to a loss.

A padded batch is laid flat, each example on as many slots as the longest of its four: the same slots a 2-D batch computes. All rungs train one
random hybrid model (three gated-delta layers to one of attention) in bfloat16 with AdamW, and count useful tokens only.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gpu.report import Section
from tests.gpu.sizes import Sizes, forget_peak, packed, padded, peak_megabytes, rows, wait
from tests.isolation import Pass
from tests.trainer.tiny_models import write_config
from trainer.kernels import Mode
from trainer.kernels.loss import cross_entropy_sum
from trainer.model import PackedModel, load_model

PADDED_ROWS = 4


def a_model(sizes: Sizes, kernels: Mode, folder: Path) -> tuple[PackedModel, torch.optim.AdamW]:
    """A random hybrid of the check's size, and its optimiser."""
    heads = max(sizes.hidden // 128, 2)
    config: dict[str, object] = {
        "model_type": "qwen3_5_text",
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": 3 * sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 4, 1),
        "head_dim": sizes.width * 2,
        "linear_num_key_heads": heads,
        "linear_num_value_heads": 2 * heads,
        "linear_key_head_dim": sizes.width,
        "linear_value_head_dim": sizes.width,
        "layer_types": ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(sizes.layers)],
    }
    source = write_config(folder / "model", config)
    model = load_model(
        source,
        init="random",
        seed=0,
        dtype=sizes.dtype,
        kernels=kernels,
        device=sizes.device,
        vocab_at_least=sizes.vocabulary,
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def a_step(model: PackedModel, optimizer: torch.optim.AdamW, flat: Pass) -> None:
    """Forward, backward, update."""
    loss = model(flat.input_ids, flat.position_ids, flat.segments, flat.positions, flat.targets, flat.count)
    (loss / flat.count).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def batches(sizes: Sizes, layout: str) -> list[tuple[Pass, int]]:
    """Passes and their useful tokens: of the same examples, in packed rows or four at a time in the order in which they come."""
    filled = rows(sizes, sizes.steps + 2)
    if layout == "packed":
        return [(packed(sizes, lengths, seed), sum(lengths)) for seed, lengths in enumerate(filled)]
    flat = [length for lengths in filled for length in lengths]
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0)).tolist()
    fours = [[flat[i] for i in order[start : start + PADDED_ROWS]] for start in range(0, len(flat), PADDED_ROWS)]
    return [(padded(sizes, lengths, seed), sum(lengths)) for seed, lengths in enumerate(fours[: sizes.steps + 2])]


def ladder(sizes: Sizes, folder: Path) -> Section:
    """Useful tokens a second, rung by rung: padded and unfused at the bottom, packed and fused at the top."""
    section = Section(
        title="Ladder",
        columns=("rung", "useful tokens/s", "× the first", "slots per useful token", "ms a step", "peak MB"),
    )
    first = 0.0
    for layout, kernels in (
        ("padded", "reference"),
        ("padded", sizes.fused),
        ("packed", "reference"),
        ("packed", sizes.fused),
    ):
        model, optimizer = a_model(sizes, kernels, folder)  # type: ignore[arg-type]  # of two modes
        work = batches(sizes, layout)
        for flat, _ in work[:2]:
            a_step(model, optimizer, flat)
        wait(sizes.device)
        forget_peak(sizes.device)
        started = time.perf_counter()
        for flat, _ in work[2:]:
            a_step(model, optimizer, flat)
        wait(sizes.device)
        seconds = time.perf_counter() - started
        useful, slots = sum(n for _, n in work[2:]), sum(s.segments.num_tokens for s, _ in work[2:])
        rate = useful / seconds
        first = first or rate
        cells = (f"{rate:,.0f}", f"{rate / first:.2f}", f"{slots / useful:.2f}", f"{1e3 * seconds / len(work[2:]):.0f}")
        section.add(f"{layout}, {kernels}", *cells, peak_megabytes(sizes.device))
        del model, optimizer
    return section


@contextmanager
def counted_compiles() -> Iterator[Counter[str]]:
    """Counts graphs that dynamo makes, kernels that Triton compiles and timings of its autotuner."""
    from torch._dynamo.utils import counters

    counts: Counter[str] = Counter()
    before = counters["stats"]["unique_graphs"]
    undo: list[Callable[[], None]] = []
    try:
        import triton
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        counts["no triton"] = 1
    else:
        bench, hook = Autotuner._bench, triton.knobs.runtime.jit_post_compile_hook

        def timed(*args: object, **kwargs: object) -> object:
            counts["timings"] += 1
            return bench(*args, **kwargs)

        def compiled(*_: object, **__: object) -> None:
            counts["kernels"] += 1

        Autotuner._bench, triton.knobs.runtime.jit_post_compile_hook = timed, compiled
        undo = [
            lambda: setattr(Autotuner, "_bench", bench),
            lambda: setattr(triton.knobs.runtime, "jit_post_compile_hook", hook),
        ]
    try:
        yield counts
    finally:
        counts["graphs"] = counters["stats"]["unique_graphs"] - before
        for restore in undo:
            restore()


def compiles(sizes: Sizes, folder: Path) -> Section:
    """What is compiled or timed after the first pass: nothing, whatever the number of segments; padded batches for comparison."""
    section = Section(
        title="Compilation after the first pass",
        columns=("batches", "graphs", "Triton kernels", "autotuner timings", "none"),
    )
    for layout in ("packed", "padded"):
        model, optimizer = a_model(sizes, sizes.fused, folder)
        for block in model.blocks:
            block.compile(dynamic=False) if sizes.device.type == "cuda" else None
        work = batches(sizes, layout)
        a_step(model, optimizer, work[0][0])
        with counted_compiles() as counts:
            for flat, _ in work[1:6]:
                a_step(model, optimizer, flat)
            wait(sizes.device)
        cells = (counts["graphs"], counts["kernels"], counts["timings"])
        section.add(layout, *cells, section.require(not any(cells)) if layout == "packed" else "not asked")
        del model, optimizer
    return section


def profile(sizes: Sizes, folder: Path) -> Section:
    """Launches and waits of one step: where a GPU that is "98 % busy" loses its time."""
    section = Section(
        title="One packed step, profiled",
        columns=(
            "kernels",
            "operations",
            "kernel launches",
            "per 1,000 useful tokens",
            "copies to the host",
            "waits",
            "ms",
        ),
    )
    activities = [torch.profiler.ProfilerActivity.CPU]
    if sizes.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for kernels in ("reference", sizes.fused):
        model, optimizer = a_model(sizes, kernels, folder)  # type: ignore[arg-type]  # of two modes
        work = batches(sizes, "packed")
        for flat, _ in work[:2]:
            a_step(model, optimizer, flat)
        wait(sizes.device)
        flat, useful = work[2]
        started = time.perf_counter()
        with torch.profiler.profile(activities=activities) as recorded:
            a_step(model, optimizer, flat)
            wait(sizes.device)
        milliseconds = 1e3 * (time.perf_counter() - started)
        enqueued: Counter[str] = Counter()
        for event in recorded.key_averages():
            enqueued[event.key] += event.count
        launches = sum(n for key, n in enqueued.items() if "LaunchKernel" in key)
        operations = sum(n for key, n in enqueued.items() if key.startswith("aten::"))
        section.add(
            kernels,
            f"{operations:,}",
            f"{launches:,}",
            f"{1e3 * launches / useful:.0f}",
            sum(n for key, n in enqueued.items() if "DtoH" in key),
            enqueued["cudaStreamSynchronize"],
            f"{milliseconds:.0f}",
        )
        del model, optimizer
    section.notes.append("the time includes the profiler's own; the last wait of a step is ours, at its end")
    return section


def losses(sizes: Sizes) -> Section:
    """Ways to the loss and its gradients: time and memory beyond the inputs, half of the tokens supervised."""
    section = Section(title="Loss", columns=("way", "ms", "peak MB beyond the inputs", "loss"))
    generator = torch.Generator().manual_seed(0)
    shape = (sizes.loss_tokens, sizes.loss_width)
    hidden = torch.randn(*shape, generator=generator).to(sizes.device, sizes.dtype).requires_grad_()
    weight = torch.randn(sizes.loss_vocabulary, sizes.loss_width, generator=generator).mul_(0.02)
    weight = weight.to(sizes.device, sizes.dtype).requires_grad_()
    labels = torch.randint(0, sizes.loss_vocabulary, (sizes.loss_tokens,), generator=generator)
    labels[torch.randperm(sizes.loss_tokens, generator=generator)[: sizes.loss_tokens // 2]] = -100
    positions = (labels != -100).nonzero()[:, 0]
    targets, count = labels[positions].to(sizes.device), len(positions)
    positions, labels = positions.to(sizes.device), labels.to(sizes.device)
    ways: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: cross_entropy_sum(hidden, weight, positions, targets, count) / count,
        "cross-entropy over all logits": lambda: F.cross_entropy((hidden @ weight.T).float(), labels),
    }
    try:
        from fla.modules.fused_linear_cross_entropy import fused_linear_cross_entropy_loss
    except ImportError as error:
        section.notes.append(f"flash-linear-attention's: {error}")
    else:
        ways["flash-linear-attention's"] = lambda: fused_linear_cross_entropy_loss(hidden, labels, weight)
        ways["flash-linear-attention's, supervised rows only"] = lambda: fused_linear_cross_entropy_loss(
            hidden[positions], targets, weight
        )
    try:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
    except ImportError as error:
        section.notes.append(f"Liger's: {error}")
    else:
        ways["Liger's"] = lambda: liger_fused_linear_cross_entropy(hidden, weight, labels)
    for name, way in ways.items():
        milliseconds = []
        for _ in range(4):  # the first compiles and touches memory
            hidden.grad = weight.grad = None
            wait(sizes.device)
            forget_peak(sizes.device)
            started = time.perf_counter()
            loss = way()
            torch.autograd.backward(loss)
            wait(sizes.device)
            milliseconds.append(1e3 * (time.perf_counter() - started))
        section.add(
            name,
            f"{statistics.median(milliseconds[1:]):.1f}",
            peak_megabytes(sizes.device),
            f"{float(loss.detach()):.4f}",
        )
    return section
