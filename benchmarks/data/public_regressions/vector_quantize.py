import torch
from vector_quantize_pytorch import ResidualVQ

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
encoder, decoder = torch.nn.Linear(64, 64).to(device), torch.nn.Linear(64, 64).to(device)
quantizer = ResidualVQ(dim=64, num_quantizers=4, codebook_size=128, quantize_dropout=True).to(
    device
)
parameters = [*encoder.parameters(), *decoder.parameters(), *quantizer.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4)
inputs = torch.randn(8, 32, 64, device=device)
while True:
    codes, _, commitment = quantizer(encoder(inputs))
    loss = (decoder(codes) - inputs).square().mean() + commitment.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
