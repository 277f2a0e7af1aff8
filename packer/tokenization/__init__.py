"""Texts to token ids: encoders, what they are verified with, and how text that only spells control tokens is encoded."""
