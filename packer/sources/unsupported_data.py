"""Rows of data sets that are more than conversations to learn from: preferences, KTO labels, pictures and sound. They are rejected by name.

>>> hold_supported({"image": "a.png"}, ("image",))
Traceback (most recent call last):
packer.sources.rejected.Rejected: image_or_audio: column 'image' holds what is not text; only text can be packed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packer.sources.rejected import Rejected

# The columns of TRL, axolotl and LLaMA-Factory; of ms-swift; of OpenAI.
PREFERENCE_COLUMNS = (
    "chosen",
    "rejected",
    "chosen_response",
    "rejected_response",
    "rejected_messages",
    "preferred_output",
    "non_preferred_output",
)
# TRL and ms-swift; LLaMA-Factory.
KTO_COLUMNS = ("label", "kto_tag")
MEDIA_COLUMNS = ("image", "images", "audio", "audios", "video", "videos")
# As tables hold a boolean, in text and in numbers.
_TRUTHS = ("true", "false")
_NUMBERS = ("0", "1", "-1", "0.0", "1.0", "-1.0")
# Columns to be looked into, if a row has them.
SUSPECT_COLUMNS = (*PREFERENCE_COLUMNS, *KTO_COLUMNS, *MEDIA_COLUMNS)


def hold_supported(row: Mapping[object, object], suspects: Sequence[str], *, is_pair: bool = False) -> None:
    """Raise Rejected if one of the suspect columns holds what cannot be trained on.

    is_pair: whether the row is a question and an answer, beside which a label of 0 or 1 judges the answer, not the class of a conversation.
    """
    for column in suspects:
        value = row[column]
        if column in PREFERENCE_COLUMNS and value and isinstance(value, str | list | dict):
            raise Rejected(
                "preference_data",
                f"column {column!r} belongs to a pair of answers to prefer and to avoid, which cannot be trained on; "
                "to train on the better answers alone, name their column: --map completion=chosen beside a prompt, "
                "--map messages=chosen for whole conversations",
            )
        if column in KTO_COLUMNS and _is_verdict(value, with_numbers=is_pair or column == "kto_tag"):
            raise Rejected(
                "preference_data",
                f"column {column!r} says whether the answer is a good one (KTO), which cannot be trained on; "
                "keep the rows where it is true, and remove the column",
            )
        if column in MEDIA_COLUMNS and value:
            raise Rejected("image_or_audio", f"column {column!r} holds what is not text; only text can be packed")


def _is_verdict(value: object, *, with_numbers: bool) -> bool:
    """Whether a label says that an answer is a good or a bad one."""
    spelled = str(value).strip().lower() if isinstance(value, str | int | float) else ""
    return spelled in _TRUTHS or (with_numbers and spelled in _NUMBERS)
