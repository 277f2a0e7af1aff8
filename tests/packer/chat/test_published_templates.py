"""Published chat templates, each on a genuine vocabulary that has its tokens, against conversations of every kind.

Every pair is exactly right or refused, and few are refused. `pytest -s` prints the refusals by reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

import pytest
from transformers import PreTrainedTokenizerFast

from packer.conversation import Rejected
from packer.errors import UserError
from packer.formats import Layout
from packer.render import Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer, load_tokenizer
from tests.fixtures.assistant_turns import TemplateRaises, Undecided
from tests.fixtures.chat_oracle import DATE, Oracle, difference, texts_of
from tests.fixtures.conversations import conversations
from tests.fixtures.genuine_tokenizers import GENUINE
from tests.fixtures.published_templates import Base, Published, fitting_tokenizer, of_others, of_trl

pytestmark = pytest.mark.full
TRL = of_trl()
_outcomes: dict[str, dict[str, str]] = {}


def outcomes_of(published: Published, ours: Tokenizer, theirs: PreTrainedTokenizerFast) -> dict[str, str]:
    """kind of conversation → "right", "refused: …", "WRONG: …" or "undecided: …"; and, where it is refused, "raises" (transformers does) or "prints nothing: …"."""
    oracle = Oracle(theirs, published.family, published.source)
    # Text that spells control tokens has other ids on purpose.
    special = [added.content for added in theirs.added_tokens_decoder.values() if added.special]
    rows = {
        kind: row for kind, row in conversations().items() if not any(token in json.dumps(row) for token in special)
    }
    try:
        template = ChatTemplate(published.source, special_tokens=ours.special_tokens, date=DATE.date())
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
            said = [one for message in row["messages"] if message["role"] == "assistant" for one in texts_of([message])]
            if all(one in expected.unprinted for one in said if one):
                # A template for parts of content, say: nothing that the assistant says comes out of it.
                found[kind] = f"prints nothing: {outcome}"
            else:
                found[kind] = f"refused: {outcome}" + (" (no token ends a turn)" if expected.unterminated else "")
            continue
        wrong = difference(oracle.tokenizer, expected, outcome.ids.tolist(), outcome.loss_mask.tolist())
        found[kind] = f"WRONG: {wrong}" if wrong else "right"
    return found


def try_all(templates: dict[str, Published], places: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Outcomes of every template, tokenizer by tokenizer: loading one takes longer than all conversations of a template."""

    def key(name: str) -> str:
        return repr(templates[name].base)

    found = {}
    for _, group in groupby(sorted(templates, key=key), key=key):
        names = list(group)
        base: Base = templates[names[0]].base
        folder = fitting_tokenizer(base, [templates[name].source for name in names], places)
        ours, theirs = load_tokenizer(str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)
        found.update({name: outcomes_of(templates[name], ours, theirs) for name in names})
    _outcomes.update(found)
    return found


def wrong_in(found: dict[str, dict[str, str]]) -> str:
    lines = [
        f"{name}, {kind}: {what}"
        for name, its in found.items()
        for kind, what in its.items()
        if what.startswith(("WRONG", "undecided"))
    ]
    return "\n".join([f"{len(lines)} pairs", *lines]) if lines else ""


@pytest.mark.parametrize("vocabulary", sorted({published.base.vocabulary for published in TRL.values()}))
def test_trl_s_templates_are_exactly_right_or_refuse(vocabulary: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    templates = {name: published for name, published in TRL.items() if published.base.vocabulary == vocabulary}
    assert not (wrong := wrong_in(try_all(templates, tmp_path_factory))), wrong


def test_few_pairs_of_trl_s_templates_are_refused() -> None:
    """Of the pairs that transformers renders; after those tests whose outcomes it counts."""
    if not TRL or not TRL.keys() <= _outcomes.keys():
        pytest.skip("not every template was tried in this process")
    rendered = [what for name in TRL for what in _outcomes[name].values() if not what.startswith(("raises", "prints"))]
    refused = [what for what in rendered if what.startswith("refused")]
    assert len(refused) < 0.05 * len(rendered), f"{len(refused)} of {len(rendered)}\n{table()}"


@pytest.mark.parametrize("vocabulary", GENUINE)
def test_templates_of_other_packages_are_exactly_right_or_refuse(
    vocabulary: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    templates = {name: published for name, published in of_others().items() if published.base.vocabulary == vocabulary}
    assert not (wrong := wrong_in(try_all(templates, tmp_path_factory))), wrong


def table() -> str:
    """Templates by outcome, and refusals by reason."""
    lines = []
    for name, found in _outcomes.items():
        counts = Counter(what.partition(":")[0] for what in found.values())
        lines.append(f"{name:40} " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    reasons = Counter(
        what for found in _outcomes.values() for what in found.values() if what.startswith(("refused", "prints"))
    )
    return "\n".join([*lines, *(f"{count:5} {what}" for what, count in reasons.most_common())])


@pytest.fixture(scope="module", autouse=True)
def printed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    capture = request.config.pluginmanager.getplugin("capturemanager")
    if _outcomes and request.config.getoption("capture") == "no":
        with capture.global_and_fixture_disabled():
            print("\n" + table())
