"""What the names of operators and kernels tell: which do work on the device, which are matrix products, which belong to no layer.

>>> does_work("aten::view"), does_work("aten::mm"), is_product("aten::mm", ""), is_product("aten::mul", "")
(False, True, True, False)
"""

from __future__ import annotations

import re
from functools import lru_cache

# Operators that look at memory in another way, or ask for some: they give the device nothing to do.
_NO_WORK = {
    "_local_scalar_dense",
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "as_strided_",
    "broadcast_tensors",
    "chunk",
    "conj",
    "contiguous",
    "detach",
    "detach_",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "is_nonzero",
    "is_pinned",
    "item",
    "lift_fresh",
    "mH",
    "mT",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "pin_memory",
    "record_stream",
    "reshape",
    "resize_",
    "resolve_conj",
    "resolve_neg",
    "result_type",
    "select",
    "set_",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "squeeze_",
    "t",
    "t_",
    "to",
    "tensor_split",
    "transpose",
    "transpose_",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "unsqueeze_",
    "view",
    "view_as",
    "view_as_complex",
    "view_as_real",
}
# Steps of other operators as well as operators: filling what is summed into, say. A GPU does most of these inside of one kernel.
_STEPS = {"fill_", "zero_", "copy_"}
# Made of such steps and nothing else.
_OF_STEPS = re.compile(
    r"^(_to_copy|type_as|pad|clone|repeat|(select|slice|split|narrow|unbind)\w*_backward|constant_pad_nd|(new_)?(zeros|ones|full)(_like)?)$"
)
# They start an exchange, which is counted by itself.
_EXCHANGES = ("c10d", "_c10d_functional")
_NO_OPERATORS = ("autograd", "torch", "profiler")
_PRODUCT = re.compile(
    # Operators: products, attention, triangular solves. Kernels: libraries' products, fused attention, the chunked linear-attention kernels of fla.
    r"(^|::)_?(mm|addmm|bmm|baddbmm|addbmm|matmul|linear|grouped_mm|scaled_mm|einsum|triangular_solve|linalg_solve_triangular)($|_)"
    r"|scaled_dot_product|attention|attn|fmha|gemm|cutlass|cublas|nvjet|wgmma|(^|_)dot_|chunk_.*(fwd|bwd)|recompute_w_u|solve_tril|wy_repr",
    re.IGNORECASE,
)
_COMMUNICATION = re.compile(r"^(nccl(Dev)?Kernel|nccl:|gloo:|c10d::|rccl)", re.IGNORECASE)


def is_operator(name: str) -> bool:
    """Whether a host event is an operator of the dispatcher, and not an autograd node or a custom function."""
    space, found, _ = name.partition("::")
    return bool(found) and space not in _NO_OPERATORS


def does_work(operator: str) -> bool:
    """Whether an operator that calls no other working operator gives the device something to do."""
    space, _, name = operator.partition("::")
    return not (space in _EXCHANGES or name in _NO_WORK or name.startswith(("empty", "new_empty", "sym_")))


def is_step(operator: str) -> bool:
    """Whether it counts only where no other operator's work is made of it."""
    return operator.partition("::")[2] in _STEPS


def is_made_of_steps(operator: str) -> bool:
    """Whether an operator that calls steps is nothing but them."""
    return bool(_OF_STEPS.match(operator.partition("::")[2]))


@lru_cache(maxsize=4096)  # hundreds of thousands of calls with a few hundred names
def is_product(operator: str, kernel: str) -> bool:
    """Whether it multiplies matrices (or attends), so that arithmetic bounds it; everything else is bound by memory bandwidth."""
    return bool(_PRODUCT.search(operator) or _PRODUCT.search(kernel))


def is_communication(name: str) -> bool:
    """Whether a kernel, or on a CPU an event of a host thread, exchanges data between ranks."""
    return bool(_COMMUNICATION.match(name))


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """An operator or kernel as a table shows it: without namespace, template and arguments.

    >>> plain("aten::mm"), plain("void at::native::vectorized<4, float>(int)"), plain("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    ('mm', 'vectorized', 'flash_attention_backward')
    """
    name = name.removeprefix("void ")
    name = name.partition("(")[0] if not name.startswith("(") else name
    name = re.sub(r"<.*", "", name)
    name = name.rpartition("::")[2] or name
    return name.removeprefix("_").removeprefix("scaled_dot_product_").replace("_for_cpu", "")
