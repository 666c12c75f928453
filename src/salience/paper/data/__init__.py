"""The paper's data sets: MNIST, CIFAR-10 and Penn Treebank."""
