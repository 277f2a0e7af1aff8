"""`trainer check`: proof, on one's own model, kernels and shards, that packing changes nothing.

Five checks in the order in which a fault would make the next one meaningless, each told with its time; the first that fails ends the proof and is explained:

    contract        the rows obey the format, fit the model, and the batch that is made of them says where segments end
    isolation       no segment's output depends on another's tokens or lengths, forward or backward
    equality        an example computes in a packed row what it computes alone, gradients of all parameters included
    normalisation   the gradient of a step does not depend on how its rows are split over passes and ranks
    labels          what is trained on, decoded for the eye; terminators are targets

    windows   small rows cut from the real ones, whose boundaries are known here and not read from any batch
    subject   a model as the checks see it: a pass in, hidden states or logits out
    trace     what goes into and comes out of every module, and which mechanism it is
    proof     the order of the checks, and their report
"""
