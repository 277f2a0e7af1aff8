"""The chat templates that trl publishes, each on a genuine vocabulary that has its tokens, against conversations of every kind.

A family whose own vocabulary is in no registry that tests can reach gets the nearest one, with the family's special tokens added as its vendor has them: one
id each. Every pair is exactly right or refused, and few are refused. `pytest -s` prints the refusals by reason.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from packer.conversation import Rejected
from packer.errors import UserError
from packer.formats import Layout
from packer.render import Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.chat_oracle import DATE, Oracle, TemplateRaises, Undecided, difference, family_of
from tests.fixtures.conversations import conversations
from tests.fixtures.genuine_tokenizers import genuine_tokenizer, trl_templates

pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Base:
    """vocabulary: the genuine one. swallows: added tokens take the white space behind them, as Phi-3's do."""

    vocabulary: str
    bos: str | None
    eos: str
    swallows: bool = False


# By how the names of the templates begin.
_BASES = {
    "cohere": Base("llama3", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek": Base("deepseek_v3", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "diffusion_gemma": Base("gemma3", "<bos>", "<turn|>"),
    "gemma4": Base("gemma3", "<bos>", "<turn|>"),
    "gemma": Base("gemma3", "<bos>", "<end_of_turn>"),
    "glm4moe": Base("llama3", None, "<|endoftext|>"),
    "gptoss": Base("gptoss", "<|startoftext|>", "<|return|>"),
    "idefics3": Base("llama3", "<|begin_of_text|>", "<end_of_utterance>"),
    "lfm2": Base("llama3", "<|startoftext|>", "<|im_end|>"),
    "llama3": Base("llama3_1", "<|begin_of_text|>", "<|eot_id|>"),
    "llava": Base("llama2", "<s>", "</s>"),
    "muse": Base("llama3", "<|begin_of_text|>", "<|eot|>"),
    "nemotron": Base("mistral_nemo", "<s>", "<|im_end|>"),
    "phi3": Base("llama2", "<s>", "<|endoftext|>", swallows=True),
    "qwen": Base("qwen3", None, "<|im_end|>"),
    "smolvlm": Base("llama3", "<|im_start|>", "<end_of_utterance>"),
}
_TOKENS = re.compile(
    r'<\|"\|>|<\|[^|<>\s]+\|>|<｜[^｜<>\s]+｜>|<\|\w+>|<\w+\|>|<\w+_of_\w+>|\[/?[A-Z_]{3,}\]|</?s>|</?think>|</?tool_call>|<image>|\[gMASK\]|<sop>'
)
# Tokens of reasoning and of calls that vendors add as ordinary ones.
_ORDINARY = re.compile("think|tool_call|tool_response")
TEMPLATES = trl_templates()
_outcomes: dict[str, dict[str, str]] = {}


def base_of(name: str) -> str:
    return next(prefix for prefix in _BASES if name.startswith(prefix))


@dataclass(frozen=True)
class Fitting:
    """A tokenizer that has the tokens of a family's templates, as packer and as transformers load it."""

    ours: Tokenizer
    theirs: PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fitting]:
    # Loading takes longer than all conversations of a template, so templates of one family are tried one after the other, on one tokenizer.
    return functools.lru_cache(maxsize=1)(lambda prefix: _fitting(prefix, tmp_path_factory.mktemp(prefix)))


def _fitting(prefix: str, folder: Path) -> Fitting:
    base = _BASES[prefix]
    backend = Backend.from_file(str(genuine_tokenizer(base.vocabulary) / "tokenizer.json"))
    sources = [file.read_text(encoding="utf-8") for name, file in TEMPLATES.items() if base_of(name) == prefix]
    named = {token for source in sources for token in _TOKENS.findall(source)} | {base.eos}
    named |= {base.bos} if base.bos else set()
    known = {added.content for added in backend.get_added_tokens_decoder().values()}
    for token in sorted(named - known):
        special = _ORDINARY.search(token) is None
        backend.add_tokens([AddedToken(token, special=special, normalized=False, rstrip=base.swallows and special)])
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": base.eos, "pad_token": base.eos}
    config |= {"bos_token": base.bos} if base.bos else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return Fitting(load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder))


def outcomes_of(name: str, fitting: Fitting) -> dict[str, str]:
    """kind of conversation → "right", "refused: …", "WRONG: …", "raises" (transformers does), or "undecided: …"."""
    source = TEMPLATES[name].read_text(encoding="utf-8")
    oracle, ours = Oracle(fitting.theirs, family_of(name), source), fitting.ours
    rows = conversations()
    try:
        template = ChatTemplate(source, special_tokens=ours.special_tokens, date=DATE.date())
        renderer = Renderer(ours, template, Policies(layout=Layout(empty_answers="keep")))
        outcomes = renderer.examples(list(rows.values()))
    except UserError as error:
        outcomes = [Rejected("probe", str(error))] * len(rows)
    found = {}
    for (kind, row), outcome in zip(rows.items(), outcomes, strict=True):
        try:
            expected = oracle.expected(row)
        except TemplateRaises as raised:
            found[kind] = "raises" if isinstance(outcome, Rejected) else f"WRONG: transformers raises {raised}"
            continue
        except Undecided as why:
            found[kind] = f"undecided: {why}"
            continue
        if isinstance(outcome, Rejected):
            found[kind] = f"refused: {outcome}"
            if expected.unterminated:
                found[kind] += " (no token ends a turn)"
            continue
        wrong = difference(oracle.tokenizer, expected, outcome.ids.tolist(), outcome.loss_mask.tolist())
        found[kind] = f"WRONG: {wrong}" if wrong else "right"
    return found


@pytest.mark.parametrize(
    "name",
    sorted(TEMPLATES, key=lambda name: (base_of(name), name))
    or [pytest.param("none", marks=pytest.mark.skip("the templates come with the trl wheel, which is not installed"))],
)
def test_every_conversation_is_exactly_right_or_refused(name: str, fitting: Callable[[str], Fitting]) -> None:
    found = _outcomes[name] = outcomes_of(name, fitting(base_of(name)))
    wrong = {kind: what for kind, what in found.items() if what.startswith("WRONG")}
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(f"{kind}: {what}" for kind, what in wrong.items())
    undecided = {kind: what for kind, what in found.items() if what.startswith("undecided")}
    assert not undecided


def test_few_pairs_are_refused() -> None:
    """Of the pairs that transformers renders; after all the others, whose outcomes it counts."""
    if len(_outcomes) < len(TEMPLATES) or not TEMPLATES:
        pytest.skip("not every template was tried in this process")
    rendered = [what for found in _outcomes.values() for what in found.values() if what != "raises"]
    refused = [what for what in rendered if what.startswith("refused")]
    assert len(refused) < 0.05 * len(rendered), table()


def table() -> str:
    """Refusals by reason, and templates by outcome."""
    lines = []
    for name, found in _outcomes.items():
        counts = Counter(what.partition(":")[0] for what in found.values())
        lines.append(f"{name:34} " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    reasons = Counter(what for found in _outcomes.values() for what in found.values() if what.startswith("refused"))
    return "\n".join([*lines, *(f"{count:5} {what}" for what, count in reasons.most_common())])


@pytest.fixture(scope="module", autouse=True)
def printed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if _outcomes and request.config.getoption("capture") == "no":
        with capture.global_and_fixture_disabled():
            print("\n" + table())
