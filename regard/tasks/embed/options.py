"""Recipe tables of embedding: none, since the task is not trained."""

from regard.config.options import TaskOptions

OPTIONS = TaskOptions()
