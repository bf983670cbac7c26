"""Recipe tables of embedding: none of its own, since the task is not trained."""

from regard.config.options import TaskOptions

OPTIONS = TaskOptions()
