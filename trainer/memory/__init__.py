"""What a run needs, said before it starts: memory a rank by part, the fewest ranks that fit, steps and hours. `trainer plan` prints it.

A pass of the real model is made on the meta device, where tensors have sizes and no memory (`trace`); how FSDP2 shards and gathers, which follows from
shapes alone, is laid over it moment by moment (`moments`); the largest moment is the answer (`plan`).
"""
