"""Images and their labels: rendered characters, CIFAR and ImageNet, as splits that give batches of uint8 pixels."""
