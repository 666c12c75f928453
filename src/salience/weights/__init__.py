"""From per-example losses to the step: checks and the importance-weighted mean."""

from salience.weights.losses import bad_losses, per_example, refuse_bad, weighted_mean

__all__ = ["bad_losses", "per_example", "refuse_bad", "weighted_mean"]
