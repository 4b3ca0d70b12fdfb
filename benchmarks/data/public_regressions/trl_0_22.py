"""Fine-tune a small Llama with SFTTrainer on long sequences that are made here."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = {f"<{word}>": word for word in range(4096)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")),
    eos_token="<1>",
    pad_token="<2>",
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=4096,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        pad_token_id=2,
    )
)
tokens = torch.randint(3, 4096, (512, 1024)).tolist()
trainer = SFTTrainer(
    model,
    SFTConfig(
        "out",
        per_device_train_batch_size=1,
        max_steps=1_000_000,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=Dataset.from_dict({"input_ids": tokens}),
    processing_class=tokenizer,
)
trainer.train()
