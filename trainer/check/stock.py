"""A model as transformers itself builds and runs it, for what `trainer run` refuses or is not asked about.

model = stock_model("state-spaces/mamba2-130m", config, init="pretrained", seed=0, dtype=torch.float32, device=device)
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from packer.errors import UserError
from trainer.library import one_line


def stock_model(
    source: str, config: PretrainedConfig, *, init: str, seed: int, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """The library's model with its own layers and attention, weights of `source` or random ones; raises UserError where it cannot be had."""
    try:
        if init == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                copy = type(config).from_dict(config.to_dict())
                model: PreTrainedModel = AutoModelForCausalLM.from_config(copy, dtype=dtype, trust_remote_code=False)  # type: ignore[no-untyped-call]  # untyped in transformers
        else:
            model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"{source} ({config.model_type}) cannot be loaded by transformers: {one_line(error)}",
            "choose another --model",
        ) from error
    moved: PreTrainedModel = model.to(device)  # type: ignore[arg-type]  # transformers' stub takes no torch.device
    return moved
