"""`trainer blame`: a step of a run taken apart into rows, examples and where these came from, each with its own loss.

start      which weights: the run's checkpoint nearest to the step, or others
losses     the loss of every example of the step, by the run's own passes
broken     rows whose gradient is not finite, and the layer where that begins
onward     the command that goes on without the worst row
report     what is told, for a person and as JSON
command    from the options to the report
"""
