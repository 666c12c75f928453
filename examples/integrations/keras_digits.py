"""Keras on torch: importance sampling in fit, and a run that is interrupted and resumed."""

import os
import tempfile

os.environ["KERAS_BACKEND"] = "torch"

import keras

from salience import ImportanceLoader
from salience.compare.digits import digits
from salience.integrations.keras import importance


def make() -> tuple[keras.Model, ImportanceLoader]:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((1, 8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    loader = ImportanceLoader(digits(train=True), batch_size=64)
    importance(model, loader)
    return model, loader


class Stop(keras.callbacks.Callback):
    """Stands for a run that is killed in the middle of its sixth epoch."""

    def on_train_batch_end(self, *_: object, **__: object) -> None:
        if self.model.optimizer.iterations == 123:
            raise KeyboardInterrupt


test = digits(train=False).tensors
with tempfile.TemporaryDirectory() as directory:
    for callbacks in ([Stop()], []):
        model, loader = make()
        backup = keras.callbacks.BackupAndRestore(directory + "/backup", save_freq=10)
        try:
            model.fit(
                loader, epochs=10, validation_data=test, callbacks=[backup, *callbacks], verbose=0
            )
        except KeyboardInterrupt:
            print(
                f"interrupted in epoch {loader.epoch} after {int(model.optimizer.iterations)} steps"
            )

_, accuracy = model.evaluate(*test, verbose=0)
steps = int(model.optimizer.iterations)
print(f"test error: {100 * (1 - accuracy):.1f} % after {steps} steps, resumed once")
