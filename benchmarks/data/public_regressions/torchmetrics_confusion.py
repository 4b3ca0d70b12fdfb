import torch
from torchmetrics import ConfusionMatrix

torch.manual_seed(0)
model = torch.nn.Conv2d(3, 4, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
metric = ConfusionMatrix(num_classes=4)
images, labels = torch.randn(8, 3, 128, 128), torch.randint(4, (8, 128, 128))
while True:
    outputs = model(images)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    metric.update(outputs.detach().argmax(1), labels)
