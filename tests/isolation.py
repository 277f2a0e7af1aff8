"""Proof that packing changes nothing: what one example in a row computes does not depend on the others, and equals what it computes alone.

Five checks, each a function that gives a number. They share nothing with `trainer.check`, which a user runs: neither can hide the faults of the other.

- `layout_faults`: positions restart, targets stay inside their segment, every example and the pad tail is a segment of its own;
- `gradient_leaks`: d(output in segment j)/d(input in segment i), for each token-mixing module by itself; exactly 0 or a leak;
- `perturbation_leak`: another token before a boundary, and what changes behind it;
- `length_leak`: other lengths of the other examples and of the pad tail, and what changes (finds what gradients cannot: RoPE that looks at the
  longest position);
- `equality`: logits and the gradient of every parameter against the examples run one by one.

    >>> flat = pack([torch.tensor([5, 6, 7]), torch.tensor([8, 9])], pad=3)
    >>> flat.position_ids.tolist(), flat.positions.tolist(), flat.targets.tolist(), flat.count
    ([[0, 1, 2, 0, 1, 0, 1, 2]], [0, 1, 3, 0, 0, 0, 0, 0], [6, 7, 9, 0, 0, 0, 0, 0], 3)
    >>> layout_faults(flat, [3, 2], pad=3)
    []
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.model import PackedModel
from trainer.refuse import mixers
from trainer.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """One packed row, laid flat as PackedModel takes it: input_ids, position_ids int64 [1, T]; positions, targets int64 [T], the first count in use."""

    input_ids: Tensor
    position_ids: Tensor
    segments: Segments
    positions: Tensor
    targets: Tensor
    count: int

    def span(self, segment: int) -> slice:
        """Where this segment's tokens lie in the row."""
        bounds = self.segments.boundaries_cpu.tolist()
        return slice(bounds[segment], bounds[segment + 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Equality:
    """max_logit_error: largest ‖packed − alone‖/‖alone‖ of an example's logits. max_grad_error: the same of a parameter's gradient, and `worst` its name.
    loss_error: |packed − alone|/alone of the summed loss."""

    max_logit_error: float
    max_grad_error: float
    loss_error: float
    worst: str


def pack(examples: Sequence[Tensor], *, pad: int = 0) -> Pass:
    """Examples (int64 [n], each at least one token) one behind the other, every token but an example's first supervised, then `pad` slots of token 0."""
    lengths = [len(example) for example in examples] + ([pad] if pad else [])
    total = sum(lengths)
    ids = torch.cat([*examples, torch.zeros(pad, dtype=torch.int64)])
    starts = torch.tensor([0, *lengths]).cumsum(0)
    supervised = torch.cat([torch.arange(int(starts[i]), int(starts[i]) + len(x) - 1) for i, x in enumerate(examples)])
    count = len(supervised)
    positions, targets = torch.zeros(2, total, dtype=torch.int64)
    positions[:count], targets[:count] = supervised, ids[supervised + 1]
    return Pass(
        input_ids=ids[None],
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None],
        segments=Segments.from_lengths(lengths),
        positions=positions,
        targets=targets,
        count=count,
    )


def layout_faults(flat: Pass, lengths: Sequence[int], pad: int) -> list[str]:
    """What is wrong with a row that should hold examples of these lengths and then `pad` slots: one line a fault, none if it is right."""
    faults = []
    expected = [*lengths, *([pad] if pad else [])]
    if flat.segments.lengths != expected:
        faults.append(f"segments are {flat.segments.lengths} long, not {expected}")
    restart = torch.cat([torch.arange(length) for length in expected])
    if flat.position_ids.shape[1] != len(restart) or not torch.equal(flat.position_ids[0].cpu(), restart):
        faults.append("positions do not restart at 0 in every segment")
    owner = torch.repeat_interleave(torch.arange(len(expected)), torch.tensor(expected))
    used = flat.positions[: flat.count].cpu()
    inside = used[used + 1 < len(owner)]
    crossing = len(used) - len(inside) + int((owner[inside] != owner[inside + 1]).sum())
    if crossing:
        faults.append(f"{crossing} targets are the first token of the next segment")
    if pad and bool((owner[used] == len(lengths)).any()):
        faults.append("tokens of the pad tail are supervised")
    if not torch.equal(flat.targets[: flat.count].cpu()[: len(inside)], flat.input_ids[0].cpu()[inside + 1]):
        faults.append("a target is not the token behind its position")
    return faults


def gradient_leaks(model: PackedModel, flat: Pass) -> dict[str, float]:
    """For every token-mixing module, by path: the largest |d(its output in one segment)/d(its input in another)|. All exactly 0, or it leaks."""
    with _recorded(model) as records, torch.enable_grad():
        model.hidden(flat.input_ids, flat.position_ids, flat.segments)
    return {path: _leak(before, after, flat) for path, (before, after) in records.items()}


def end_to_end_gradient_leak(model: PackedModel, flat: Pass) -> float:
    """The same for the whole model: from the input embeddings of one segment to the last hidden states of another."""
    embeds = model.model.get_input_embeddings()(flat.input_ids).detach().requires_grad_()
    hidden = model.backbone(None, flat.position_ids, flat.segments, inputs_embeds=embeds).last_hidden_state
    return _leak(embeds, hidden, flat)


def perturbation_leak(model: PackedModel, flat: Pass) -> float:
    """The largest change of any logit behind a boundary when the token before it becomes another. 0 bit for bit where each token's arithmetic does not
    depend on how many others there are (a mixture of experts groups tokens, and rounds differently)."""
    vocabulary = model.head.shape[0]
    worst = 0.0
    with torch.no_grad():
        before = _logits(model, flat)
        for segment in range(flat.segments.num_segments - 1):
            end = flat.span(segment).stop
            ids = flat.input_ids.clone()
            ids[0, end - 1] = (ids[0, end - 1] + 1) % vocabulary
            changed = model.logits(ids, flat.position_ids, flat.segments)
            worst = max(worst, float((changed - before)[:, end:].abs().max()))
    return worst


def length_leak(model: PackedModel, example: Tensor, flats: Sequence[tuple[Pass, int]]) -> float:
    """The largest difference between an example's logits in several rows. flats: rows and the segment number that `example` has in each."""
    with torch.no_grad():
        runs = [_logits(model, flat)[0, flat.span(segment)] for flat, segment in flats]
    for flat, segment in flats:
        if not torch.equal(flat.input_ids[0, flat.span(segment)], example):
            raise ValueError(f"segment {segment} of a row is not the example")
    return max(float((run - runs[0]).abs().max()) for run in runs[1:])


def equality(
    model: PackedModel,
    flat: Pass,
    examples: Sequence[Tensor],
    alone: Callable[[Tensor], Tensor],
    reference: nn.Module,
) -> Equality:
    """Compare a packed row with its examples run one by one through `alone` (int64 [1, n] → logits [1, n, V]).

    reference: the module whose parameters `alone` uses, named as model.model's. Gradients are of the summed cross-entropy, in full, of every parameter.
    """
    model.zero_grad()
    reference.zero_grad()
    logit_errors, total = [], None
    with torch.no_grad():
        packed_logits = _logits(model, flat)[0]
    for number, example in enumerate(examples):
        logits = alone(example[None])[0]
        logit_errors.append(_relative(packed_logits[flat.span(number)], logits.detach()))
        loss = nn.functional.cross_entropy(logits[:-1], example[1:], reduction="sum")
        total = loss if total is None else total + loss
    if total is None:
        raise ValueError("no examples")
    total.backward()  # type: ignore[no-untyped-call]  # untyped in torch
    loss = model(flat.input_ids, flat.position_ids, flat.segments, flat.positions, flat.targets, flat.count)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    errors = {}
    for name, parameter in model.model.named_parameters():
        theirs, ours = expected.pop(name), parameter.grad
        zeros = torch.zeros_like(parameter)
        errors[name] = _relative(zeros if ours is None else ours, zeros if theirs is None else theirs)
    if expected:
        raise ValueError(f"the reference has other parameters: {sorted(expected)}")
    worst = max(errors, key=lambda name: errors[name])
    return Equality(
        max_logit_error=max(logit_errors),
        max_grad_error=errors[worst],
        loss_error=_relative(loss.detach(), total.detach()),
        worst=worst,
    )


def _logits(model: PackedModel, flat: Pass) -> Tensor:
    return model.logits(flat.input_ids, flat.position_ids, flat.segments)


def _relative(ours: Tensor, theirs: Tensor) -> float:
    scale = float(theirs.norm())
    error = float((ours - theirs).norm())
    return error / scale if scale else error


def _leak(before: Tensor, after: Tensor, flat: Pass) -> float:
    """The largest gradient from any segment of `after` [1, T, …] to another segment of `before` [1, T, …]."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(after.shape, generator=generator, dtype=torch.float64).to(after)
    worst = 0.0
    for segment in range(flat.segments.num_segments):
        span = flat.span(segment)
        (gradient,) = torch.autograd.grad((after[:, span] * weights[:, span]).sum(), before, retain_graph=True)
        gradient[:, span] = 0
        worst = max(worst, float(gradient.abs().max()))
    return worst


@contextmanager
def _recorded(model: PackedModel) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Input and output of every token-mixing module during a forward pass, each cut off from the modules before it."""
    records: dict[str, tuple[Tensor, Tensor]] = {}
    inputs: dict[str, Tensor] = {}
    handles = []

    def watch(path: str, module: nn.Module) -> None:
        def entering(
            _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> tuple[tuple[object, ...], dict[str, object]]:
            given = kwargs.get("hidden_states", args[0] if args else None)
            if not isinstance(given, Tensor):
                raise TypeError(f"{path} ({type(module).__name__}) was called without hidden_states")
            inputs[path] = given.detach().requires_grad_()
            if "hidden_states" in kwargs:
                return args, {**kwargs, "hidden_states": inputs[path]}
            return (inputs[path], *args[1:]), kwargs

        def leaving(_: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
            records[path] = (inputs[path], output if isinstance(output, Tensor) else output[0])

        handles.append(module.register_forward_pre_hook(entering, with_kwargs=True))
        handles.append(module.register_forward_hook(leaving))

    for path, module in mixers(model.model).items():
        watch(path, module)
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
