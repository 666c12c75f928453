"""skorch: a grid search over the bias k, then more training with partial_fit."""

import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetClassifier
from torch import nn

from salience.compare.digits import digits
from salience.integrations.skorch import ImportanceNet


class Net(ImportanceNet, NeuralNetClassifier):
    pass


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


train, test = ([tensor.numpy() for tensor in digits(train=part).tensors] for part in (True, False))
net = Net(
    module,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=1e-3,
    batch_size=64,
    max_epochs=5,
    train_split=None,
    verbose=0,
)
grid = {"iterator_train__k": [0.0, 0.5, 1.0]}
search = GridSearchCV(net, grid, cv=2).fit(*train)
best = search.best_estimator_
best.partial_fit(*train)  # goes on with what is known about each example
print(
    f"best {search.best_params_}, test error: {100 * (1 - best.score(*test)):.1f} % "
    f"after {best.importance_.epoch} epochs"
)
