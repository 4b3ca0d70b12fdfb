import torch
from rotary_embedding_torch import RotaryEmbedding

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
projection = torch.nn.Linear(256, 768, device=device)
rotary = RotaryEmbedding(dim=32).to(device)
optimizer = torch.optim.AdamW(projection.parameters(), lr=1e-4)
inputs = torch.randn(4, 128, 256, device=device)
while True:
    q, k, v = projection(inputs).view(4, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)
    q, k = rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)
    loss = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
