"""Fine-tune a language model to tell which of five frequent words a sentence goes on with.

The language model is a small GPT-2, trained here on Penn Treebank and saved to a directory, or any
model of the Hugging Face hub (--model). Both are loaded by the same lines, and both are trained by
ImportanceTrainer.
"""

import argparse
import random
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)

from salience.integrations.transformers import ImportanceTrainer
from salience.paper.data.catalogue import collection, data_dir, folder
from salience.paper.data.ptb import END, PADDING, read_sentences

WORDS = ["the", "of", "to", "and", "in"]


def arguments(directory, steps, learning_rate):
    return TrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        logging_steps=max(1, steps // 4),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def train_language_model(sentences, directory, steps):
    """A tokenizer of whole words and a small GPT-2, trained from scratch, into ``directory``."""
    words = sorted({word for sentence in sentences for word in sentence} - {END, "<unk>"})
    numbers = {word: i for i, word in enumerate([PADDING, END, "<unk>", *words])}
    whole_words = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    whole_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=whole_words, pad_token=PADDING, eos_token=END, unk_token="<unk>"
    )
    sizes = {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = GPT2Config(vocab_size=len(numbers), **sizes, **special)
    texts = tokenizer([" ".join(words) for words in sentences], truncation=True, max_length=128)
    trainer = ImportanceTrainer(
        GPT2LMHeadModel(config),
        arguments(directory, steps, 3e-3),
        train_dataset=[{"input_ids": ids} for ids in texts["input_ids"]],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    trainer.model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def beginnings(sentences, tokenizer):
    """Each sentence up to one of WORDS, chosen at random; the label says which one."""
    chance, examples = random.Random(0), []
    for words in sentences:
        places = [i for i, word in enumerate(words) if i > 2 and word in WORDS]
        if places:
            place = chance.choice(places)
            text = tokenizer(" ".join(words[:place]), truncation=True, max_length=128)
            examples.append({**text, "labels": WORDS.index(words[place])})
    return examples


def accuracy(predicted):
    return {"accuracy": (predicted.predictions.argmax(1) == predicted.label_ids).mean().item()}


def fine_tune(name, train, valid, directory, steps):
    """``name``: a directory with a saved model, or a name on the hub."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(WORDS))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    trainer = ImportanceTrainer(
        model,
        arguments(directory, steps, 1e-3),
        train_dataset=beginnings(train, tokenizer),
        eval_dataset=beginnings(valid, tokenizer),
        processing_class=tokenizer,
        compute_metrics=accuracy,
        importance={"score": "auto", "k": 0.5},
    )
    trainer.train()
    reached = trainer.evaluate()["eval_accuracy"]
    print(f"next word: {reached:.1%} of {len(trainer.eval_dataset)} told right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", help="has ptb/ptb.*.txt; by default SALIENCE_DATA")
    parser.add_argument("--model", help="a directory or a name on the hub, instead of training one")
    parser.add_argument("--steps", type=int, default=600, help="of each of the two trainings")
    given = parser.parse_args()
    set_seed(0)
    texts = folder(collection("ptb"), data_dir(given.data_dir))
    train, valid = (read_sentences(Path(texts, f"ptb.{part}.txt")) for part in ("train", "valid"))
    with tempfile.TemporaryDirectory() as directory:
        if given.model is None:
            train_language_model(train, directory, given.steps)
        fine_tune(given.model or directory, train[:4000], valid, directory, given.steps)
