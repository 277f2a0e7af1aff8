"""Configs and models, read and built by transformers, with what it raises turned into words for a person.

config = read_config("Qwen/Qwen3-0.6B")
draft = build_empty(config, torch.float32, attention, "Qwen/Qwen3-0.6B")
"""

from __future__ import annotations

from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from packer.errors import UserError
from trainer.isolate import isolating
from trainer.source import hush_the_hub

# What the library's own code raises on a config it was not written for, and for a package that is not there. Not all exceptions: MemoryError and
# what the interpreter uses for itself pass.
_NOT_FOR_IT = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    ImportError,
    OSError,
    RuntimeError,
    StrictDataclassError,
)


def read_config(source: str) -> PretrainedConfig:
    """The config of a hub name or folder; raises UserError where it cannot be had, or says that the weights are quantized."""
    hush_the_hub()
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except _NOT_FOR_IT as error:
        where = "read" if Path(source).is_dir() else "fetched"
        raise UserError(
            f"the config of {source} cannot be {where}: {one_line(error)}",
            "check the name, the network and the transformers version; models that need their own code are not supported",
        ) from error
    text = config.get_text_config(decoder=True)
    for each in (config, text):
        if getattr(each, "quantization_config", None) is not None:
            raise UserError(
                f"{source}: its weights are quantized, and training needs them whole",
                "give the checkpoint that it was made from",
            )
    return config


def for_training(config: PretrainedConfig) -> PretrainedConfig:
    """A copy with cache and router losses off."""
    config = type(config).from_dict(config.to_dict())
    text = config.get_text_config(decoder=True)
    text.use_cache = False
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False  # the router's loss is not part of the objective, so its logits are not kept
    return config


def build_empty(config: PretrainedConfig, dtype: torch.dtype, attention: str, source: str) -> PreTrainedModel:
    """The model on the meta device. Of a checkpoint that holds more than a language model, that part. The config is copied: transformers writes into it."""
    try:
        with isolating(config.model_type), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # untyped in transformers
                type(config).from_dict(config.to_dict()),
                dtype=dtype,
                attn_implementation=attention,
                trust_remote_code=False,
            )
    except KeyError as error:
        if error.args == (attention,):  # a table of classes by attention, in place of the interface
            raise UserError(
                f"{source} ({config.model_type}) has attention that does not go through the library's attention interface, so it cannot be told "
                "where segments end",
                "choose another --model",
            ) from None
        raise _not_buildable(source, config, error) from error
    except _NOT_FOR_IT as error:
        raise _not_buildable(source, config, error) from error
    return widen(model, dtype)


def widen(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same model on the meta device, with those of its parameters in `dtype` that its class makes in less by name (OLMo hybrid's decay, in float32)."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, dtype))
    return model


def _not_buildable(source: str, config: PretrainedConfig, error: Exception) -> UserError:
    return UserError(
        f"{source} ({config.model_type}) cannot be built as a causal language model: {one_line(error)}",
        "install the package it names"
        if isinstance(error, ImportError)
        else "choose a model that AutoModelForCausalLM knows, or mend its config.json",
    )


def one_line(error: BaseException) -> str:
    """What an exception says, on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
