"""A transformers causal LM that takes packed rows and gives the sum of its loss.

`load_model` reads the config, builds the model once without memory to see whether every layer of it can keep segments apart and which kernels it
needs, and only then makes or reads weights. `PackedModel` runs the library's backbone on the flattened row and our loss on the output
embedding, so logits of unsupervised tokens are never made and a mixture of experts adds no router loss.

    model = load_model("Qwen/Qwen3-0.6B", init="pretrained", seed=0, dtype=torch.bfloat16, kernels="auto", device="cuda", vocab_at_least=151669)
    loss = model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count) / supervised_tokens
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from packer.errors import UserError
from trainer.isolate import SegmentedDelta, bind, isolating, register_attention
from trainer.kernels import Choice, Mode, resolve
from trainer.kernels.loss import cross_entropy_sum
from trainer.refuse import mixers
from trainer.segments import LostSegmentsError, Segments

Init = Literal["pretrained", "random"]


class PackedModel(nn.Module):
    """layers: what computes each kind of layer and why, to be listed at start. unused_weights: names in the checkpoint that the model has no place for."""

    hf_state_dict_prefix = "model."  # what state_dict() puts before the names that transformers uses

    def __init__(
        self, model: PreTrainedModel, *, layers: tuple[Choice, ...] = (), unused_weights: tuple[str, ...] = ()
    ):
        super().__init__()
        self.model = model
        self.layers = layers
        self.unused_weights = unused_weights
        config = model.config.get_text_config(decoder=True)
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        # Cohere multiplies logits by the one, Granite divides them by the other; a model that does otherwise fails `_try_out`.
        self.logit_scale: float = getattr(config, "logit_scale", None) or 1 / (
            getattr(config, "logits_scaling", None) or 1
        )

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder layers, in order: the units of sharding, recomputation and compilation."""
        backbone = self.model.base_model
        lists = [child for child in backbone.children() if isinstance(child, nn.ModuleList)]
        depth = self.model.config.get_text_config(decoder=True).num_hidden_layers
        return list(next(child for child in lists if len(child) == depth))

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
    ) -> Tensor:
        """Σ cross-entropy of predicting targets[i] from the token at positions[i], i < count: a scalar, float32 (float64 in a float64 model).

        input_ids, position_ids int64 [1, T]; positions, targets int64 [K] of one length for the whole run.
        """
        hidden = self._scaled(self.hidden(input_ids, position_ids, segments))
        return cross_entropy_sum(hidden[0], self.head, positions, targets, count, softcap=self.softcap)

    def hidden(
        self, input_ids: Tensor | None, position_ids: Tensor, segments: Segments, *, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """The last layer's output after the final norm, [1, T, H]. Checks may give inputs_embeds [1, T, H] in place of input_ids."""
        out = self.model.base_model(
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=None,
            position_ids=position_ids,
            use_cache=False,
            segments=segments,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def logits(
        self, input_ids: Tensor | None, position_ids: Tensor, segments: Segments, *, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Logits of every token [1, T, V]: for checks on small rows, never in training."""
        return self._project(self.hidden(input_ids, position_ids, segments, inputs_embeds=inputs_embeds))

    def _scaled(self, hidden: Tensor) -> Tensor:
        return hidden if self.logit_scale == 1 else hidden * self.logit_scale

    def _project(self, hidden: Tensor) -> Tensor:
        logits = self._scaled(hidden) @ self.head.t()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


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
    """A hub name or folder → a model for packed rows on `device`, weights stored in `dtype`, in training mode.

    init random takes nothing but config.json and the seed (the same weights on every rank). vocab_at_least is one more than the largest token id in
    the data. Raises UserError where the source, its layers, its vocabulary or a kernel will not do; weights are read only after all else is well.
    """
    device = torch.device(device)
    config = _read_config(source)
    folder = Path(source)
    if init == "pretrained" and folder.is_dir() and not _has_weights(folder):
        raise UserError(
            f"{source} has a config.json but no weights (*.safetensors).",
            "Give a folder with weights, or start from random ones with --init random.",
        )
    with torch.device("meta"):
        draft = _build(config, dtype, register_attention(_unresolved, "unresolved"), source)
    found = mixers(draft)
    rows = cast(nn.Embedding, draft.get_input_embeddings()).num_embeddings
    if vocab_at_least > rows:
        raise UserError(
            f"the data has token id {vocab_at_least - 1}, past the {rows} rows of {source}'s embedding.",
            "Build the shards with this model's own tokenizer, or give the model that belongs to the tokenizer.",
        )

    attention, choice = resolve("attention", kernels, device)
    name = register_attention(attention, choice.kernel if choice.kernel == "reference" else "fused")
    layers = [choice] if any(not isinstance(module, SegmentedDelta) for module in found.values()) else []
    if init == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _build(config, dtype, name, source)
        unused: tuple[str, ...] = ()
    else:
        model, unused = _read_weights(source, config, dtype, name)
    if any(isinstance(module, SegmentedDelta) for module in found.values()):
        delta, delta_choice = resolve("delta", kernels, device)
        conv, conv_choice = resolve("conv", kernels, device)
        bind(model, delta, conv)
        layers += [delta_choice, conv_choice]
    packed = PackedModel(model, layers=tuple(layers), unused_weights=unused).to(device)
    _try_out(packed.eval())
    return packed.train()


def _unresolved(*_: object, **__: object) -> Tensor:
    raise RuntimeError("a draft on the meta device cannot run")


def _read_config(source: str) -> PretrainedConfig:
    folder = Path(source)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"{source} has no config.json.", "Give a folder that transformers saved, or a hub name.")
    if not folder.exists() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        raise UserError(f"{source}: no such folder, and not a hub name of the form owner/name.", "Check --model.")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        where = "read" if folder.is_dir() else "fetched"
        raise UserError(
            f"the config of {source} cannot be {where}: {_one_line(error)}",
            "Check the name, the network and the transformers version; models that need their own code are not supported.",
        ) from error
    text = config.get_text_config(decoder=True)
    text.use_cache = False
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False  # the router's loss is not part of the objective, so its logits are not kept
    return config


def _build(config: PretrainedConfig, dtype: torch.dtype, attention: str, source: str) -> PreTrainedModel:
    """The model with weights as its class initialises them. The config is copied: transformers writes into it."""
    try:
        with isolating(config.model_type):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # untyped in transformers
                type(config).from_dict(config.to_dict()),
                dtype=dtype,
                attn_implementation=attention,
                trust_remote_code=False,
            )
    except (ValueError, KeyError) as error:
        raise UserError(
            f"{source} ({config.model_type}) cannot be built as a causal language model: {_one_line(error)}",
            "Choose a model that AutoModelForCausalLM knows.",
        ) from error
    return model


def _read_weights(
    source: str, config: PretrainedConfig, dtype: torch.dtype, attention: str
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    try:
        with isolating(config.model_type):
            loaded = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except OSError as error:
        raise UserError(
            f"the weights of {source} cannot be read: {_one_line(error)}",
            "Check the folder or the network, or start from random weights with --init random.",
        ) from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(
            f"{source} lacks {len(missing)} weights of its model, the first {missing[0]}; they would start at random.",
            "Give a complete checkpoint, or start all from random with --init random.",
        )
    return model, tuple(sorted(info["unexpected_keys"]))


def _has_weights(folder: Path) -> bool:
    return any(
        any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."


def _try_out(packed: PackedModel) -> None:
    """Two segments of two tokens through the model: every layer must hear of the segments, and our way to logits must be the model's own."""
    device = packed.head.device
    segments = Segments.from_lengths([2, 2]).to(device)
    ids = torch.tensor([[0, 1, 0, 1]], device=device)  # and, as it happens, their positions
    name = type(packed.model).__name__
    try:
        with torch.no_grad():
            theirs = packed.model(input_ids=ids, position_ids=ids, use_cache=False, segments=segments).logits.float()
            ours = packed.logits(ids, ids, segments).float()
    except LostSegmentsError as error:
        raise UserError(f"{name} cannot be trained on packed rows: {error}", "Choose another --model.") from error
    difference = float((theirs - ours).norm() / theirs.norm())
    if difference > 0.02:  # bfloat16 rounds to 0.4 %; a scale or cap that we do not apply is far more
        raise UserError(
            f"{name} does more between hidden states and logits than a matrix, a scale and a soft cap (ours differ by {difference:.0%}).",
            "Choose another --model.",
        )
