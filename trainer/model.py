"""A transformers causal LM that takes packed rows and gives the sum of its loss.

`plan_model` reads the config, builds the model without memory, sees whether every layer of it can keep segments apart, which kernels it needs and where
its weights come from. It is then sharded, `fill` gives it memory and weights, and `try_out` runs it once; `load_model` is all of that for a model that is not
sharded. `PackedModel` runs the library's backbone on the flattened row and our loss on the output
embedding, so logits of unsupervised tokens are never made and a mixture of experts adds no router loss unless it is asked for.

    model = load_model("Qwen/Qwen3-0.6B", init="pretrained", seed=0, dtype=torch.bfloat16, kernels="auto", device="cuda", vocab_at_least=151669)
    loss = model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count) / supervised_tokens
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from packer.errors import UserError
from trainer.isolate import bind, register_attention
from trainer.kernels import Choice, Mode, resolve
from trainer.kernels.loss import cross_entropy_sum
from trainer.library import build_empty, for_training, one_line, read_config
from trainer.masks import learn_windows
from trainer.refuse import decoder_blocks, mixers
from trainer.routers import balance_sum, experts_per_token
from trainer.segmented import SegmentedLayer
from trainer.segments import LostSegmentsError, Segments
from trainer.source import check_source, weight_files
from trainer.tensor_file import read_header
from trainer.weights import Random, Weights, fill, plan_weights

Init = Literal["pretrained", "random"]
_Result = TypeVar("_Result")


class PackedModel(nn.Module):
    """layers: what computes each kind of layer and why, to be listed at start. unused_weights: names in the checkpoint that the model has no place for.
    notes: what else is to be said at start."""

    hf_state_dict_prefix = "model."  # what state_dict() puts before the names that transformers uses

    def __init__(
        self, model: PreTrainedModel, *, layers: tuple[Choice, ...] = (), unused_weights: tuple[str, ...] = ()
    ):
        super().__init__()
        self.model = model
        self.layers = layers
        self.unused_weights = unused_weights
        self.notes: tuple[str, ...] = ()
        config = model.config.get_text_config(decoder=True)
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        # Cohere and Falcon-H1 multiply logits by the first two, Granite divides them by the third; a model that does otherwise fails `_try_out`.
        self.logit_scale: float = (
            getattr(config, "logit_scale", None)
            or getattr(config, "lm_head_multiplier", None)
            or 1 / (getattr(config, "logits_scaling", None) or 1)
        )

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder layers, in order: the units of sharding, recomputation and compilation."""
        return decoder_blocks(self.model)

    @property
    def head(self) -> Tensor:
        """The output embedding [V, H]; the input embedding's own tensor where the two are tied."""
        weight: Tensor = self.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]  # untyped in transformers
        return weight

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        segments: Segments,
        positions: Tensor,
        targets: Tensor,
        count: int,
        target_weights: Tensor | None = None,
        each: Tensor | None = None,
        slot_weights: Tensor | None = None,
    ) -> Tensor:
        """Σ cross-entropy of predicting targets[i] from the token at positions[i], i < count: a scalar, float32 (float64 in a float64 model).

        input_ids, position_ids int64 [1, T]; positions, targets int64 [K] of one length for the whole run. target_weights float64 [K]: gives [2],
        the sum in which target i counts target_weights[i] times, and the plain sum, which has no gradient; [2, K]: the second sum by the second line. each [K]: is filled with the cross-entropy of each target by itself. slot_weights
        float64 [M, C]: gives [3], the third the rows' router losses (`trainer.routers`), summed.
        """
        asked = {} if slot_weights is None else {"output_router_logits": True}
        out = self.backbone(input_ids, position_ids, segments, **asked)
        loss = cross_entropy_sum(
            self._scaled(_hidden(out))[0],
            self.head,
            positions,
            targets,
            count,
            softcap=self.softcap,
            target_weights=target_weights,
            each=each,
        )
        if slot_weights is None:
            return loss
        balance = balance_sum(out.router_logits or (), slot_weights, per_token=experts_per_token(self.model))
        return torch.cat([loss.expand(2) if loss.dim() == 0 else loss, balance[None]])

    def hidden(self, input_ids: Tensor, position_ids: Tensor, segments: Segments) -> Tensor:
        """The last layer's output after the final norm, [1, T, H]."""
        return _hidden(self.backbone(input_ids, position_ids, segments))

    def backbone(
        self, input_ids: Tensor | None, position_ids: Tensor, segments: Segments, **more: Tensor | bool | None
    ) -> MoeModelOutputWithPast:
        """What the model without its head gives: of it `last_hidden_state` [1, T, H], after the final norm, is looked at, and router logits."""
        out: MoeModelOutputWithPast = self.model.base_model(
            input_ids=input_ids,
            attention_mask=None,
            position_ids=position_ids,
            use_cache=False,
            segments=segments,
            **more,
        )
        return out

    def gathered(self, work: Callable[[], _Result]) -> _Result:
        """What `work` returns, called where `forward` would be: in a sharded model, with the weights of its root whole."""
        return work()

    def logits(self, input_ids: Tensor, position_ids: Tensor, segments: Segments) -> Tensor:
        """Logits of every token [1, T, V]: for checks on small rows, never in training."""
        return self._project(self.hidden(input_ids, position_ids, segments))

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden if self.logit_scale == 1 else hidden * self.logit_scale

    def _project(self, hidden: Tensor) -> Tensor:
        logits = self._scaled(hidden) @ self.head.t()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def _hidden(out: MoeModelOutputWithPast) -> Tensor:
    assert out.last_hidden_state is not None  # optional only in the library's types
    return out.last_hidden_state


def plan_model(
    source: str,
    *,
    init: Init,
    seed: int,
    dtype: torch.dtype,
    kernels: Mode,
    device: torch.device | str,
    vocab_at_least: int,
) -> tuple[PackedModel, Weights]:
    """A hub name or folder → a model for packed rows without memory, to be stored in `dtype` and computed on `device`, and where its weights come from.

    init random takes nothing but config.json and the seed. vocab_at_least is one more than the largest token id in the data. Raises UserError where the
    source, its layers, its vocabulary, a kernel, or the names and shapes of its weights will not do; no weight has been read by then.
    """
    device = torch.device(device)
    check_source(source, init=init)
    config = for_training(read_config(source))
    draft = build_empty(config, dtype, register_attention(_unresolved, "unresolved"), source)
    found = mixers(draft)
    blocks = decoder_blocks(draft)
    rows = cast(nn.Embedding, draft.get_input_embeddings()).num_embeddings
    if vocab_at_least > rows:
        raise UserError(
            f"the data has token id {vocab_at_least - 1}, past the {rows} rows of {source}'s embedding",
            "build the shards with this model's own tokenizer, or give the model that belongs to the tokenizer",
        )

    attention, choice = resolve("attention", kernels, device)
    name = register_attention(attention, choice.kernel if choice.kernel == "reference" else "fused")
    layers = [choice] if any(not isinstance(module, SegmentedLayer) for module in found.values()) else []
    model = build_empty(config, dtype, name, source)
    layers += bind(model, kernels, device)
    weights: Weights
    if init == "random":
        weights = Random(draft=draft, blocks=blocks, seed=seed)
    else:
        stored = {name: each for file in weight_files(source) for name, each in read_header(file).items()}
        weights = plan_weights(source, draft, blocks, stored)
    return PackedModel(model, layers=tuple(layers), unused_weights=weights.unused), weights


def load_model(
    source: str,
    *,
    init: Init,
    seed: int,
    dtype: torch.dtype,
    kernels: Mode,
    device: torch.device | str,
    vocab_at_least: int,
) -> PackedModel:
    """`plan_model`, and the weights, whole on `device`, tried out and in training mode."""
    packed, weights = plan_model(
        source, init=init, seed=seed, dtype=dtype, kernels=kernels, device=device, vocab_at_least=vocab_at_least
    )
    fill(packed, packed.model, weights, torch.device(device))
    try_out(packed, source, torch.device(device))
    return packed


def try_out(packed: PackedModel, source: str, device: torch.device) -> None:
    """Two segments of two tokens through the model, sharded or not: every rank calls it. Leaves it in training mode.

    Every layer must hear of the segments, see what its own mask lets it see, and our way to logits must be the model's own. Raises UserError.
    """
    model = packed.model
    # What the root of a sharded model holds is gathered for its forward alone, and these are others.
    register_fsdp_forward_method(packed, "gathered")
    packed.eval()
    try:
        # Compiled blocks are left for rows of the run's own shape: a second shape would make a second graph, for all shapes.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            _try_out(packed, device)
    except LostSegmentsError as error:
        raise UserError(
            f"{type(model).__name__} cannot be trained on packed rows: {error}", "choose another --model"
        ) from error
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
        raise UserError(
            f"{source} ({model.config.model_type}) cannot run on a packed row: {one_line(error)}",
            "choose another --model",
        ) from error
    for module in packed.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # the root is left gathered after a forward, and the optimiser wants this rank's part
    packed.train()


def _unresolved(*_: object, **__: object) -> Tensor:
    raise RuntimeError("a draft on the meta device cannot run")


def _try_out(packed: PackedModel, device: torch.device) -> None:
    segments = Segments.from_lengths([2, 2]).to(device)
    ids = torch.tensor([[0, 1, 0, 1]], device=device)  # and, as it happens, their positions
    theirs = packed.gathered(
        lambda: packed.model(input_ids=ids, position_ids=ids, use_cache=False, segments=segments).logits
    ).float()
    ours = packed.gathered(lambda: packed.logits(ids, ids, segments)).float()
    if not bool(theirs.isfinite().all()):
        raise UserError(
            f"{type(packed.model).__name__}: its weights give logits that are not finite", "look at its weights"
        )
    difference = float((theirs - ours).norm() / theirs.norm())
    if difference > 0.02:  # bfloat16 rounds to 0.4 %; a scale or cap that we do not apply is far more
        raise UserError(
            f"{type(packed.model).__name__} does more between hidden states and logits than a matrix, a scale and a soft cap "
            f"(ours differ by {difference:.0%})",
            "choose another --model",
        )
    one = Segments.from_lengths([4]).to(device)
    learnt = packed.gathered(lambda: learn_windows(packed.model, one))
    if learnt:
        path, window = next(iter(learnt.items()))
        packed.notes += (
            f"{len(learnt)} attention layers do not hand on the window of their masks; it is taken from there "
            f"(the first is {path}: {window:,} tokens)",
        )
