"""Fine-tunes a model. The old name evaluation_strategy is not used here."""
import argparse
import os

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, Trainer, TrainingArguments
from unsloth import FastLanguageModel

parser = argparse.ArgumentParser()
parser.add_argument("--evaluation_strategy", default="steps")
parser.add_argument("--debug", action="store_true")
args = parser.parse_args()

torch.autograd.set_detect_anomaly(args.debug)
torch.autograd.set_detect_anomaly(False)
if args.debug:
    torch.autograd.set_detect_anomaly(True)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-3.1-8B", use_fast=True)
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/llama-3", load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B",
    torch_dtype=torch.bfloat16,
    attn_implementation="flash_attention_2",
    quantization_config=BitsAndBytesConfig(load_in_4bit=True),
)
model = PeftModel.from_pretrained(model, "adapter")
training = TrainingArguments(
    output_dir="out",
    eval_strategy=args.evaluation_strategy,
    per_device_train_batch_size=4,
    bf16=True,
    use_cpu=False,
)
trainer = Trainer(model=model, args=training, processing_class=tokenizer)
pipeline = build(tokenizer=tokenizer, evaluation_strategy="no")

flag = "--xla_gpu_" + args.name
flags = " ".join(["--xla_gpu_autotune_level=4", "--xla_gpu_enable_" + args.feature])
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
os.environ.setdefault("JAX_ENABLE_X64", "True")
os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() // 8)
os.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64"
