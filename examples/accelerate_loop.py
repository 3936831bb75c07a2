"""The schedule in a loop with accelerate: accelerate launch examples/accelerate_loop.py

Or python examples/accelerate_loop.py in one process (pip install accelerate).
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import amata

EPOCHS = 4
y = torch.arange(256) % 4
x = 0.25 * torch.rand(256, 3, 8, 8) + 0.25 * y.view(-1, 1, 1, 1)  # brightness is the class
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
ball = amata.Linf("8/255")
schedule = amata.Linear(k_min=2, k_max=4, tau="16/255")

for epoch in range(EPOCHS):
    u = schedule(epoch, epochs=EPOCHS)
    for images, labels in loader:
        # The attack needs no gradients of weights: without the wrapper nothing is sent.
        net = accelerator.unwrap_model(model)
        x_adv = amata.attacks.pgd(
            net, images, labels, ball=ball, steps=u.steps, step_size=u.step_size
        )
        loss = nn.functional.cross_entropy(model(x_adv), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch + 1}  K {u.steps}  loss {loss.item():.3f}")
