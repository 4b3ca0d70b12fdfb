"""From text to batches on the device: a tokenizer, files of token ids, batches of them.

python -m model.data --encoding stdlib8k --output my.bin notes.txt more.txt
"""
