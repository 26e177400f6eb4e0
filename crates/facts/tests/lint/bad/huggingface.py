import transformers
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    name,
    load_in_8bit=True,  #~ hf-argument-removed
    use_flash_attention_2=True,  #~ hf-argument-removed
)
arguments = TrainingArguments(
    output_dir="out",
    evaluation_strategy="steps",  #~ hf-argument-removed
    per_gpu_train_batch_size=4,  #~ hf-argument-removed
    no_cuda=False,  #~ hf-argument-removed
    overwrite_output_dir=True,  #~ hf-argument-removed
)
other = transformers.Seq2SeqTrainingArguments("out", fp16_backend="auto")  #~ hf-argument-removed
trainer = Trainer(model=model, args=arguments, tokenizer=tokenizer)  #~ hf-argument-removed
