"""A small Hugging Face Trainer, plain or with the trainer of `farrier.torch`."""

import torch
import transformers

import farrier.torch


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(3)
        self.rows = torch.randint(0, 64, (count, 12), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def small_model():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=64
    )
    return transformers.LlamaForCausalLM(config)


def make(folder, whole, accumulation, *, cpu=True, steps=7, **more):
    transformers.set_seed(5)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulation,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        max_grad_norm=0.5,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=cpu,
        seed=5,
        disable_tqdm=True,
    )
    if "model_init" not in more:
        more["model"] = small_model()
    trainer = transformers.Trainer(args=arguments, train_dataset=Rows(400), **more)
    if whole:
        farrier.torch.trainer(trainer, policy=farrier.torch.Policy(warmups=2, min_speedup=0.0, profile=False))
    return trainer


def logged(trainer):
    """Loss, norm and rate of each step of the last run."""
    entries = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return [(entry["loss"], float(entry["grad_norm"]), entry["learning_rate"]) for entry in entries]


def losses(folder, whole, accumulation, **more):
    trainer = make(folder, whole, accumulation, **more)
    trainer.train()
    return logged(trainer), trainer
