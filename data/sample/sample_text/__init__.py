"""The text of the sample: one module a field of life, each a table of facts and the exchanges made from it.

Why: text of our own can be shipped with the programs, and facts combined by chance give hundreds of different chats
that still read as sense. Every topic, a function from a `Random` to a `Material`, picks one subject and says all that
can be asked about it.

Example: `kitchen.cooking(random.Random(0)).asks[0]` is a question about one dish, with its answer.
"""
