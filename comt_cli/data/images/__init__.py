"""Images and their labels: rendered characters, CIFAR and ImageNet, as sides that give batches of uint8 pixels."""
