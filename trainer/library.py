"""Configs and models, read and built by transformers, with what it raises turned into words for a person.

config = read_config("Qwen/Qwen3-0.6B")
model, unused = read_weights("Qwen/Qwen3-0.6B", config, torch.float32, attention)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from packer.errors import UserError
from trainer.isolate import isolating

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
    """The config of a hub name or folder, its cache and router losses off; raises UserError where it cannot be had."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except _NOT_FOR_IT as error:
        where = "read" if Path(source).is_dir() else "fetched"
        raise UserError(
            f"the config of {source} cannot be {where}: {one_line(error)}",
            "check the name, the network and the transformers version; models that need their own code are not supported",
        ) from error
    text = config.get_text_config(decoder=True)
    text.use_cache = False
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False  # the router's loss is not part of the objective, so its logits are not kept
    return config


def build(config: PretrainedConfig, dtype: torch.dtype, attention: str, source: str) -> PreTrainedModel:
    """The model with weights as its class initialises them. The config is copied: transformers writes into it."""
    try:
        with isolating(config.model_type):
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
    return model


def _not_buildable(source: str, config: PretrainedConfig, error: Exception) -> UserError:
    return UserError(
        f"{source} ({config.model_type}) cannot be built as a causal language model: {one_line(error)}",
        "install the package it names"
        if isinstance(error, ImportError)
        else "choose a model that AutoModelForCausalLM knows, or mend its config.json",
    )


def read_weights(
    source: str, config: PretrainedConfig, dtype: torch.dtype, attention: str
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model with the weights of `source`, and names of weights it has no place for; raises UserError on missing, damaged or misshapen ones."""
    try:
        with isolating(config.model_type), _quiet():
            loaded = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except (SafetensorError, *_NOT_FOR_IT) as error:
        raise UserError(
            f"the weights of {source} cannot be read: {one_line(error)}",
            "check the folder or the network, or start from random weights with --init random",
        ) from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    misshapen = sorted(info["mismatched_keys"])
    if misshapen:
        name, there, here = cast("tuple[str, tuple[int, ...], tuple[int, ...]]", misshapen[0])
        raise UserError(
            f"{source}: {len(misshapen)} weights have not the shape that its config.json says, the first is {name}: {list(there)} in the file, "
            f"{list(here)} by the config",
            "give the config.json that belongs to the weights, or start all from random with --init random",
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(
            f"{source} lacks {len(missing)} weights of its model, the first {missing[0]}; they would start at random",
            "give a complete checkpoint, or start all from random with --init random",
        )
    return model, tuple(sorted(info["unexpected_keys"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's report of missing and misshapen weights: we say it ourselves, in one line."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def one_line(error: BaseException) -> str:
    """What an exception says, on one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
