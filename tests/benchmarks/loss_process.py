"""One way to a loss and its gradients, as a process of its own: our chunked sum, cross-entropy over all logits, or only what both are given.

python -m tests.benchmarks.loss_process ours --vocabulary 152000 --tokens 2048 --width 1024 --repeats 2
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.kernels.loss import cross_entropy_sum

THREADS = 2


def ours(hidden: Tensor, weight: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """Positions and targets come with the batch: finding them is no part of a step."""
    positions = (labels != -100).nonzero()[:, 0]
    targets, count = labels[positions], len(positions)
    return lambda: cross_entropy_sum(hidden, weight, positions, targets, count) / count


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(hidden @ weight.T, labels, ignore_index=-100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["ours", "plain", "inputs"])
    parser.add_argument("--vocabulary", type=int, default=152_000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(arguments.tokens, arguments.width, generator=generator).requires_grad_()
    weight = torch.randn(arguments.vocabulary, arguments.width, generator=generator).mul_(0.02).requires_grad_()
    labels = torch.randint(0, arguments.vocabulary, (arguments.tokens,), generator=generator)
    labels[torch.randperm(arguments.tokens, generator=generator)[: arguments.tokens // 2]] = -100
    if arguments.way == "inputs":
        print(json.dumps({"tokens": arguments.tokens, "seconds": 0.0}))
        return
    call = {"ours": ours, "plain": plain}[arguments.way](hidden, weight, labels)
    seconds = []
    for _ in range(arguments.repeats):
        hidden.grad = weight.grad = None
        started = time.perf_counter()
        loss = call()
        torch.autograd.backward(loss)
        seconds.append(time.perf_counter() - started)
    assert hidden.grad is not None
    figures = {"tokens": arguments.tokens, "seconds": min(seconds), "loss": float(loss.detach())}
    print(json.dumps({**figures, "norm": float(hidden.grad.norm())}))


if __name__ == "__main__":
    main()
