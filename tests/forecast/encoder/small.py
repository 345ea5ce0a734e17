"""DeBERTa-v3 in small, for tests that train: the same in kind as microsoft/deberta-v3-base, with random weights."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
import torch
import transformers

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
    "relative_attention": True, "position_buckets": 32, "max_relative_positions": -1, "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0,
    "pad_token_id": 0,
}  # fmt: skip


def deberta(vocabulary: int):
    torch.manual_seed(0)
    return transformers.DebertaV2Model(transformers.DebertaV2Config(vocab_size=vocabulary, **SHAPE))


def small_deberta(folder: Path, questions: Iterable[str]) -> Path:
    """A folder with such an encoder, and a tokenizer made of the questions it will see."""
    words = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    words.pre_tokenizer, words.decoder = tokenizers.pre_tokenizers.ByteLevel(), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, special_tokens=SPECIAL, show_progress=False)
    words.train_from_iterator(questions, trainer)
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    deberta(1000).save_pretrained(folder)
    return folder
