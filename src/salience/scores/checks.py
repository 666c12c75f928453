"""placeholder until the scores branch is merged"""


def check_scores(scores, n, name="score", *, unknown=False):
    return scores
