"""Stop strings end a response wherever tokens cut them, and what is graded ends before them."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tiny import tiny_policy
from tokencredit.policy.sampling import SamplingParams
from tokencredit.policy.token_text import tokens_up_to_stop
from tokencredit.rollout.sampler import sample

BYTES = pre_tokenizers.ByteLevel.alphabet()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte a token, and a few longer ones that hold a stop string in their middle or cut it."""
    vocab = {piece: index for index, piece in enumerate(["<eos>", *sorted(BYTES), "ab", "b.", "..", "xEN", "ND;", "é"])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


TOKENIZER = byte_tokenizer()


def first_end(stops: tuple[str, ...], tokens: list[int]) -> int | None:
    return tokens_up_to_stop(TOKENIZER, stops, tokens)


def by_hand(stops: tuple[str, ...], tokens: list[int]) -> int | None:
    """The whole text read again after every token."""
    texts = (TOKENIZER.decode(tokens[:count]) for count in range(1, len(tokens) + 1))
    return next((count for count, text in enumerate(texts, 1) if any(stop in text for stop in stops)), None)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(sorted(set(TOKENIZER.get_vocab().values()) - {0})), max_size=40),
    st.lists(st.text(alphabet="ab.END;é\n", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_stop_string_is_found_at_the_token_that_completes_it(tokens: list[int], stops: list[str]) -> None:
    assert first_end(tuple(stops), tokens) == by_hand(tuple(stops), tokens)


def test_stop_strings_are_found_across_tokens() -> None:
    vocab = TOKENIZER.get_vocab()
    tokens = [vocab["a"], vocab["xEN"], vocab["D"], vocab["b."], vocab[".."]]
    assert first_end(("END",), tokens) == 3
    assert first_end(("...",), tokens) == 5
    assert first_end(("nothing",), tokens) is None


def test_sampling_ends_a_row_at_its_stop_and_grades_what_stands_before() -> None:
    policy = tiny_policy()
    free = sample(policy, [[3, 4, 5]] * 3, SamplingParams(group_size=8, max_new_tokens=12, seed=1)).rollouts
    stopping = replace(policy, stops=("+", "3;"))
    held = sample(stopping, [[3, 4, 5]] * 3, SamplingParams(group_size=8, max_new_tokens=12, seed=1)).rollouts
    ended_by_stop = 0
    for row in range(len(held.prompts)):
        ids = held.tokens[row][held.mask[row]].tolist()
        text = str(policy.tokenizer.decode(ids))
        has_stop = any(stop in text for stop in stopping.stops)
        # None goes on behind its first stop string, and only those that ended are called finished.
        assert not any(stop in str(policy.tokenizer.decode(ids[:-1])) for stop in stopping.stops)
        assert bool(held.finished[row]) == (has_stop or ids[-1] in policy.end_tokens)
        assert not any(stop in stopping.decode(ids) for stop in stopping.stops)
        ended_by_stop += has_stop
    assert ended_by_stop > 3
    assert int(free.mask.sum()) > int(held.mask.sum())
    assert torch.equal(free.tokens[:, 0], held.tokens[:, 0])


def test_a_stop_that_ends_in_a_space_is_found_by_tokenizers_that_drop_it() -> None:
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(["<eos>", "\u2581", "A", "B", ":", "\u2581B"])}, []))
    tokenizer.decoder = decoders.Metaspace()
    spaced = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    assert tokens_up_to_stop(spaced, (": ",), (2, 4, 5, 2)) == 3
