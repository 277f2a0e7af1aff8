"""The loss: our chunked sum over supervised tokens beside cross-entropy over all logits, each a process of its own, interleaved, 2 threads.

Half of the tokens are supervised. Memory is told twice: of the whole process, and of the loss, which is what a process holds beyond one that has only
made the inputs (the library, hidden states, the weight). The weight's gradient counts as the loss's, on both sides.

python -m tests.benchmarks.bench_loss                            # vocabulary 152,000, 2,048 tokens, width 1,024
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from tests.benchmarks.harness import interleave, python, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=152_000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes = ["--vocabulary", arguments.vocabulary, "--tokens", arguments.tokens, "--width", arguments.width]
    results = interleave(
        {way: python("loss_process", way, *sizes) for way in ("ours", "plain", "inputs")}, repeats=arguments.repeats
    )
    ours, plain, inputs = (results[name] for name in ("ours", "plain", "inputs"))
    before = statistics.median(inputs.memory)
    print(f"{'':10} {'seconds, forward and backward':>34} {'peak memory, MB':>26} {'of the loss, MB':>16} {'loss':>10}")
    for name, found in (("ours", ours), ("plain", plain)):
        seconds = spread([own["seconds"] for own in found.own], "{:.2f}")
        memory = spread([bytes_ / 1e6 for bytes_ in found.memory])
        alone = (statistics.median(found.memory) - before) / 1e6
        print(f"{name:10} {seconds:>34} {memory:>26} {alone:>16,.0f} {found.own[0]['loss']:>10.4f}")
    figures = {
        "time, ours ÷ plain": statistics.median(own["seconds"] for own in ours.own)
        / statistics.median(own["seconds"] for own in plain.own),
        "peak memory of the loss, ours ÷ plain": (statistics.median(ours.memory) - before)
        / (statistics.median(plain.memory) - before),
        "peak memory of the process, ours ÷ plain": statistics.median(ours.memory) / statistics.median(plain.memory),
    }
    for name, value in figures.items():
        print(f"{name:44} {value:.2f}")
    for field in ("loss", "norm"):
        a, b = ours.own[0][field], plain.own[0][field]
        assert abs(a - b) <= 1e-4 * abs(b), f"{field} differs: {a} and {b}"
    if arguments.json:
        arguments.json.write_text(json.dumps({"ratios": figures}, indent=1))


if __name__ == "__main__":
    main()
