"""The model a second and a third time, in float64: as a run computes it with reference kernels, and as transformers alone computes it.

Rounding hides small faults: in float32 two right computations of a hybrid model's logits differ by 1e-4, in float64 by 1e-14. A large model is
cut down to its first blocks, as many as hold one of each kind, and to the vocabulary of the windows; all that is left has its real weights.

    doubles = make_doubles(model, ids=ids, device=device, keep=ranks.first)      # every rank: a sharded model gathers its weights
    doubles.packed, doubles.alone
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from trainer.check.trace import GLOBAL_KERNEL, mechanism_of
from trainer.float64 import float32_means_float64
from trainer.isolate import bind, isolating, register_attention
from trainer.kernels import attention
from trainer.masks import learn_windows
from trainer.model import PackedModel
from trainer.segments import Segments

# 8 bytes each, in two models and two gradients: 3.2 GB.
_MOST_PARAMETERS = 100_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubles:
    """packed: with reference kernels; alone: the library's own model and attention, the same weights, float64 both.

    ids: the tokens that the two know, sorted int64 [V], or None: all of them under their own numbers. blocks of all_blocks are left.
    """

    packed: PackedModel
    alone: PreTrainedModel
    ids: Tensor | None
    blocks: int
    all_blocks: int

    def numbers(self, tokens: Tensor) -> Tensor:
        """Tokens as these models number them."""
        return tokens if self.ids is None else torch.searchsorted(self.ids.to(tokens.device), tokens)


def make_doubles(model: PackedModel, *, ids: Tensor, device: torch.device, keep: bool) -> Doubles | None:
    """Copies on `device` where `keep`; elsewhere only takes part in gathering, and gives None. ids: every token that they will be shown."""
    size = sum(parameter.numel() for parameter in model.model.parameters())
    config, blocks = _copy(model.model.config), model.blocks
    text = config.get_text_config(decoder=True)
    left, known = len(blocks), None
    if size > _MOST_PARAMETERS and text.num_hidden_layers == len(blocks):
        left, known = _one_of_each(model, text), torch.unique(ids)
        _cut(text, left, len(known))
    weights = _gather(model, left, known, keep=keep)
    if not keep:
        return None
    with torch.random.fork_rng(devices=[]), torch.device(device):
        name = register_attention(attention.reference, "float64")
        with isolating(config.model_type):
            ours: PreTrainedModel = AutoModelForCausalLM.from_config(_copy(config), attn_implementation=name)  # type: ignore[no-untyped-call]
        theirs: PreTrainedModel = AutoModelForCausalLM.from_config(_copy(config), attn_implementation="eager")  # type: ignore[no-untyped-call]  # untyped in transformers
    for copy in (ours, theirs):
        copy.double().load_state_dict(weights)
        copy.train(False)
    bind(ours, "reference", device)
    packed = PackedModel(ours)
    with float32_means_float64():
        learn_windows(ours, Segments.from_lengths([4]).to(device))
    return Doubles(packed=packed, alone=theirs, ids=known, blocks=left, all_blocks=len(blocks))


def _copy(config: PretrainedConfig) -> PretrainedConfig:
    return type(config).from_dict(config.to_dict())


def _one_of_each(model: PackedModel, text: PretrainedConfig) -> int:
    """How many of the first blocks hold one of each kind: by the modules in it, what they mix by, and what the config calls it."""
    called = getattr(text, "layer_types", None) or [""] * len(model.blocks)
    kinds = [
        (name, *((path, type(module).__name__, mechanism_of(module)) for path, module in block.named_modules()))
        for name, block in zip(called, model.blocks, strict=True)
    ]
    return max(kinds.index(kind) for kind in kinds) + 1


def _cut(text: PretrainedConfig, blocks: int, vocabulary: int) -> None:
    """A text config of fewer blocks and tokens. What it lists a block is cut to the same length."""
    whole = text.num_hidden_layers
    for name, value in list(vars(text).items()):
        if isinstance(value, list | tuple) and len(value) == whole and whole > 1:
            setattr(text, name, value[:blocks])
    text.num_hidden_layers, text.vocab_size = blocks, vocabulary
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, name, None)


def _gather(model: PackedModel, blocks: int, ids: Tensor | None, *, keep: bool) -> dict[str, Tensor]:
    """The weights of the first blocks and of all outside the blocks, whole and in float64; of embedding and head only the rows of `ids`."""
    names = {module: path for path, module in model.model.named_modules()}
    dropped = tuple(f"{names[block]}." for block in model.blocks[blocks:])
    tables = {id(model.model.get_input_embeddings().weight), id(model.head)}
    by_name = {**dict(model.model.named_parameters(remove_duplicate=False)), **dict(model.model.named_buffers())}
    weights = {}
    for name in model.model.state_dict():
        if name.startswith(dropped):
            continue
        value = by_name[name]
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            if ids is not None and id(value) in tables:
                whole = whole[ids.to(whole.device)]
            weights[name] = whole.detach().double() if whole.is_floating_point() else whole.detach().clone()
    return weights


@contextmanager
def plain_functions(model: nn.Module) -> Iterator[None]:
    """While inside, the library's layers compute with its own torch code: where fused kernels are installed it calls those instead, and they know no
    float64. It keeps its torch function as what the other one wraps."""
    files: Sequence[str] = sorted({kind.__module__ for module in model.modules() for kind in type(module).__mro__})
    with ExitStack() as stack:
        for file in files:
            for name, value in list(vars(sys.modules[file]).items()) if file in sys.modules else []:
                plain = getattr(value, "__wrapped__", None)
                if GLOBAL_KERNEL.search(name) and plain is not None:
                    stack.callback(setattr, sys.modules[file], name, value)
                    setattr(sys.modules[file], name, functools.partial(plain))
        yield
