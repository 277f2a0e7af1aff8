"""`trainer compare`: does packing change what a model learns, and what does it save, on one's own model and shards.

The same model is trained from the same start on the same examples, in the same groups per optimiser step, three ways (a fourth with --against), with several
seeds each, in one process:

    padded-stock     2-D padded batches of at most a packed pass's slots, layers and attention of transformers
    padded-kernels   the same batches, our layers
    packed           rows, our layers

Loss, optimiser and schedule are the same code in all of them; so a padded step differs from a packed one only in what it is meant to differ in, and its
figures flatter it where a stock trainer would also make the logits of all tokens.

    groups       the examples of a step, as rows or as padded batches
    setting      what the rungs share: rows, order, seeds, the held-out examples
    stock        transformers' own model behind the face of ours
    rungs        a rung's model at its start, and its work
    training     one run of one rung, timed
    held_out     what its weights are worth to one who uses them, one example at a time
    cost         operations, launches and memory of a step
    statistics   equivalent or not, and what that means
    comparison   all of it, with every seed
    strict       in float64, weights after every step
    document     one document for programs
"""
