"""Recipe tables of the task; importable without torch."""

from regard.config.options import TaskOptions

OPTIONS = TaskOptions()
